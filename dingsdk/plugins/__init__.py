"""Plugins: hooks, registries, discovery and the manager that ties them together."""

from __future__ import annotations

from dingsdk.plugins.answers import Answers
from dingsdk.plugins.hookspecs import hookimpl, hookspec
from dingsdk.plugins.inventory import PluginInfo, Snapshot
from dingsdk.plugins.kinds import API_VERSION, CONTRACT_VERSIONS, KINDS
from dingsdk.plugins.manager import PluginManager, ask, default_manager, observe, use_manager
from dingsdk.plugins.observers import Observers
from dingsdk.plugins.registry import Registry
from dingsdk.plugins.switches import Switches

__all__ = [
    "API_VERSION",
    "CONTRACT_VERSIONS",
    "KINDS",
    "Answers",
    "Observers",
    "PluginInfo",
    "PluginManager",
    "Registry",
    "Snapshot",
    "Switches",
    "ask",
    "default_manager",
    "hookimpl",
    "hookspec",
    "observe",
    "use_manager",
]
