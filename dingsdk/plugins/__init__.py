"""Plugins: hooks, registries, discovery, and the plugin manager."""

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.plugins.discovery import install_command as install_command
    from dingsdk.plugins.hooks import Answers as Answers
    from dingsdk.plugins.hooks import Observers as Observers
    from dingsdk.plugins.hookspecs import hookimpl as hookimpl
    from dingsdk.plugins.hookspecs import hookspec as hookspec
    from dingsdk.plugins.inventory import PluginInfo as PluginInfo
    from dingsdk.plugins.inventory import Snapshot as Snapshot
    from dingsdk.plugins.kinds import CONTRACT_VERSIONS as CONTRACT_VERSIONS
    from dingsdk.plugins.kinds import KINDS as KINDS
    from dingsdk.plugins.manager import PluginManager as PluginManager
    from dingsdk.plugins.manager import ask as ask
    from dingsdk.plugins.manager import default_manager as default_manager
    from dingsdk.plugins.manager import observe as observe
    from dingsdk.plugins.manager import use_manager as use_manager
    from dingsdk.plugins.registry import Registry as Registry
    from dingsdk.plugins.switches import Switches as Switches
    from dingsdk.plugins.templates import TEMPLATES as TEMPLATES
    from dingsdk.plugins.templates import Template as Template
    from dingsdk.plugins.templates import new_plugin as new_plugin
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
