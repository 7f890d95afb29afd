"""Plugins: hooks, registries, discovery and the manager that ties them together."""

from __future__ import annotations

from dingsdk.plugins.default import default_manager, observe, use_manager
from dingsdk.plugins.kinds import API_VERSION, KINDS
from dingsdk.plugins.listing import PluginInfo
from dingsdk.plugins.manager import PluginManager
from dingsdk.plugins.markers import hookimpl, hookspec
from dingsdk.plugins.names import resolve_plugin_name
from dingsdk.plugins.observers import Observers
from dingsdk.plugins.registry import Registry
from dingsdk.plugins.snapshot import Snapshot
from dingsdk.plugins.switches import Switches

__all__ = [
    "API_VERSION",
    "KINDS",
    "Observers",
    "PluginInfo",
    "PluginManager",
    "Registry",
    "Snapshot",
    "Switches",
    "default_manager",
    "hookimpl",
    "hookspec",
    "observe",
    "resolve_plugin_name",
    "use_manager",
]
