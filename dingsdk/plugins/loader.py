"""Brings one plugin at a time into the process, wholly or not at all."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pluggy

from dingsdk.errors import DingError, PluginLoadError, nearest_name, raised_at
from dingsdk.plugins import hookspecs
from dingsdk.plugins.kinds import API_VERSION
from dingsdk.plugins.markers import PROJECT_NAME
from dingsdk.plugins.observers import call_guarded
from dingsdk.plugins.registry import transaction
from dingsdk.plugins.switches import Switches

if TYPE_CHECKING:
    from dingsdk.plugins.manager import PluginManager

_logger = logging.getLogger(__name__)


class Loader:
    """Imports plugin modules and registers them with pluggy; may be called from any thread.

    Attributes:
        modules: Loaded plugin module -> its owner, in the order of loading.
        failures: Module name -> why its last load failed; cleared by a load that works.
    """

    def __init__(self, manager: PluginManager, switches: Switches) -> None:
        self.pluggy = pluggy.PluginManager(PROJECT_NAME)
        self.pluggy.add_hookspecs(hookspecs)
        self.modules: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self._manager = manager
        self._switches = switches
        self._lock = threading.RLock()
        self._announced: list[tuple[object, str]] = []
        self._config: Mapping[str, Any] | None = None
        self._blamed: set[str] = set()

    def start(self) -> None:
        """Call the historic hooks, so that each plugin registered from now on answers them."""
        hook = self.pluggy.hook
        hook.dingsdk_addhooks.call_historic(kwargs={"manager": self._manager})
        for kind, registry in self._manager.registries.items():
            caller = getattr(hook, f"dingsdk_register_{kind}")
            caller.call_historic(kwargs={"registry": registry})

    def load(self, module_name: str, owner: str | None = None) -> None:
        """Import a module and, where it holds hookimpls, register it; once per process.

        Args:
            module_name: Dotted name.
            owner: Whom to name in messages and listings, by default the module.

        Raises:
            PluginLoadError: it is disabled, too new, or raised; nothing of it remains
                registered. Its own error is the cause.
        """
        name = owner or module_name
        if self._switches.is_disabled(module_name):
            raise PluginLoadError(
                f"plugin {name} is needed, but DINGSDK_DISABLED_PLUGINS names it; "
                "take it out of there to use it",
                plugin=name,
                reason="disabled",
            )
        with self._lock:  # another thread may be in the middle of registering it
            if self.pluggy.has_plugin(module_name):
                return
        is_new = module_name not in sys.modules
        with self._wholly(module_name, name):
            # Not under the lock: another thread may hold the import lock of this module and
            # wait for ours.
            module = importlib.import_module(module_name)
            try:
                self._register(module, module_name, name)
            except BaseException:
                if is_new:  # the next try must run its top again, registrations included
                    sys.modules.pop(module_name, None)
                raise
        self.modules[module_name] = name

    def register(self, plugin: object, name: str) -> None:
        """Register an object with hookimpls; as ``load`` does with an imported module."""
        with self._wholly(name, name):
            self._register(plugin, name, name)

    def unregister(self, name: str) -> None:
        """Take a plugin's hookimpls out; the types that it registered stay."""
        with self._lock:
            plugin = self.pluggy.unregister(name=name)
            self._announced = [pair for pair in self._announced if pair[0] is not plugin]

    def configure(self, config: Mapping[str, Any]) -> None:
        """Fire ``dingsdk_configure``, now and for plugins that are loaded later."""
        self.unconfigure()
        with self._lock:
            self._config = config
            for impl in self.pluggy.hook.dingsdk_configure.get_hookimpls():
                call_guarded(impl, {"config": config}, self._blamed)

    def unconfigure(self) -> None:
        """Fire ``dingsdk_unconfigure`` if ``dingsdk_configure`` was fired since the last time."""
        with self._lock:
            if self._config is None:
                return
            self._config = None
            for impl in self.pluggy.hook.dingsdk_unconfigure.get_hookimpls():
                call_guarded(impl, {}, self._blamed)

    @contextmanager
    def _wholly(self, module_name: str, owner: str) -> Iterator[None]:
        try:
            with transaction(owner):
                yield
        except (Exception, SystemExit) as error:
            self.failures[module_name] = f"{type(error).__name__}: {error}"
            if isinstance(error, PluginLoadError) and error.facts.get("plugin") == owner:
                raise
            raise PluginLoadError(
                f"plugin {owner} cannot be loaded: {type(error).__name__}: {error}"
                f"{raised_at(error)}",
                plugin=owner,
                reason="broken",
            ) from error
        self.failures.pop(module_name, None)

    def _register(self, plugin: object, name: str, owner: str) -> None:
        needed = getattr(plugin, "dingsdk_api", API_VERSION)
        if not isinstance(needed, int) or needed > API_VERSION:
            raise PluginLoadError(
                f"plugin {owner} needs version {needed} of the plugin interface, this dingsdk has "
                f"{API_VERSION}; upgrade dingsdk, or install an older release of the plugin",
                plugin=owner,
                reason="too new",
                needed=needed,
                found=API_VERSION,
            )
        with self._lock:
            if any(known is plugin for known, _ in self._announced):
                return
            try:
                self.pluggy.register(plugin, name)
                self._check_hooks(plugin, owner)
            except BaseException:
                # By name: pluggy compares plugins by equality, and would take out another one.
                if self.pluggy.get_plugin(name) is plugin:
                    self.pluggy.unregister(name=name)
                raise
            self._announce(plugin, name)

    def _check_hooks(self, plugin: object, owner: str) -> None:
        hooks = vars(self.pluggy.hook)
        for caller in self.pluggy.get_hookcallers(plugin) or ():
            impl = next(i for i in caller.get_hookimpls() if i.plugin is plugin)
            if not caller.has_spec() and not impl.optionalhook:
                known = [name for name, other in hooks.items() if getattr(other, "spec", None)]
                nearest = nearest_name(caller.name, known)
                advice = f"did you mean {nearest}? " if nearest else ""
                raise PluginLoadError(
                    f"plugin {owner} implements {caller.name}, which is no hook of this dingsdk; "
                    f"{advice}If it comes from a newer dingsdk, mark it "
                    "@hookimpl(optionalhook=True)",
                    plugin=owner,
                    reason="unknown hook",
                    hook=caller.name,
                    nearest=nearest,
                )
            if impl.wrapper or impl.hookwrapper:
                raise PluginLoadError(
                    f"plugin {owner} wraps {caller.name}; the hooks of dingsdk take no wrappers",
                    plugin=owner,
                    reason="wrapper",
                    hook=caller.name,
                )

    def _announce(self, plugin: object, name: str) -> None:
        self._announced.append((plugin, name))
        for impl in self.pluggy.hook.dingsdk_plugin_registered.get_hookimpls():
            news = self._announced if impl.plugin is plugin else [(plugin, name)]
            for other, other_name in list(news):
                facts = {"plugin": other, "name": other_name, "manager": self._manager}
                call_guarded(impl, facts, self._blamed)
        if self._config is not None:
            for impl in self.pluggy.hook.dingsdk_configure.get_hookimpls():
                if impl.plugin is plugin:
                    call_guarded(impl, {"config": self._config}, self._blamed)


def report(error: DingError, is_strict: bool) -> None:
    """Raise the error of a plugin that nobody asked for by type, or log it and go on."""
    if is_strict:
        raise error
    _logger.error("%s (left out)", error, exc_info=error.__cause__)
