"""Plugins: hooks, registries, discovery and the manager that ties them together."""

from __future__ import annotations

from dingsdk.plugins.hooks import Answers, Observers
from dingsdk.plugins.hookspecs import hookimpl, hookspec
from dingsdk.plugins.inventory import PluginInfo, Snapshot
from dingsdk.plugins.kinds import API_VERSION, CONTRACT_VERSIONS, KINDS
from dingsdk.plugins.manager import PluginManager, ask, default_manager, observe, use_manager
from dingsdk.plugins.registry import Registry
from dingsdk.plugins.switches import Switches
from dingsdk.plugins.templates import TEMPLATES, Template, new_plugin

__all__ = [
    "API_VERSION",
    "CONTRACT_VERSIONS",
    "KINDS",
    "TEMPLATES",
    "Answers",
    "Observers",
    "PluginInfo",
    "PluginManager",
    "Registry",
    "Snapshot",
    "Switches",
    "Template",
    "ask",
    "default_manager",
    "hookimpl",
    "hookspec",
    "new_plugin",
    "observe",
    "use_manager",
]
