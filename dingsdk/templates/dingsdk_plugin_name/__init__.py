"""PLUGIN_SUMMARY"""

from dingsdk import hookimpl
from dingsdk.plugins import Registry

from .PLUGIN_FILE import PLUGIN_PART


@hookimpl
def dingsdk_register_plugin_group(registry: Registry) -> None:
    """Register the plugin under its type key."""
    registry.register("PLUGIN_KEY", PLUGIN_PART)
