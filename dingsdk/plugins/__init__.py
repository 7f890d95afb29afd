"""Plugins: hooks, registries, discovery and the manager that ties them together."""

from __future__ import annotations

from dingsdk.plugins.hookspecs import hookimpl, hookspec
from dingsdk.plugins.inventory import PluginInfo, Snapshot
from dingsdk.plugins.kinds import API_VERSION, KINDS
from dingsdk.plugins.manager import PluginManager, default_manager, observe, use_manager
from dingsdk.plugins.observers import Observers
from dingsdk.plugins.registry import Registry
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
    "use_manager",
]
