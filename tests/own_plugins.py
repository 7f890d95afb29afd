"""A plugin manager with the parts and plugins of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dingsdk import hookimpl
from dingsdk.plugins import PluginManager, use_manager


@contextmanager
def using(*plugins: Any, **parts: Mapping[str, Any]) -> Iterator[PluginManager]:
    """Use a new plugin manager with some plugins, and with parts by their type.

    Args:
        *plugins: Objects with hooks.
        **parts: The parts of each kind, such as ``policies={"mine": Mine}``.
    """
    with use_manager(PluginManager()) as manager:
        for kind, by_type in parts.items():
            for name, part in by_type.items():
                manager.registry(kind).register(name, part)
        for plugin in plugins:
            manager.register_plugin(plugin)
        yield manager


def plugin_of(**functions: Callable[..., Any]) -> Any:
    """Return a plugin whose hooks are functions, given by their names without ``dingsdk_``."""
    hooks = {f"dingsdk_{name}": staticmethod(hookimpl(each)) for name, each in functions.items()}
    return type("Plugin", (), hooks)()
