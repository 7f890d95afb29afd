"""The plugin manager: finds, loads and creates parts by kind and type key."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

import pluggy

from dingsdk.errors import (
    ConfigError,
    ConfigTypeError,
    PluginLoadError,
    UnknownPluginError,
    nearest_name,
)
from dingsdk.plugins import hints
from dingsdk.plugins.builtins import BUILTINS
from dingsdk.plugins.discovery import Advert, discover
from dingsdk.plugins.kinds import KINDS, OBSERVERS
from dingsdk.plugins.listing import PluginInfo, list_plugins
from dingsdk.plugins.loader import Loader, report
from dingsdk.plugins.observers import Observers
from dingsdk.plugins.registry import Registry
from dingsdk.plugins.snapshot import Snapshot, restore_snapshot, take_snapshot
from dingsdk.plugins.switches import Switches, is_named


class PluginManager:
    """Holds a registry per kind and fills them on demand; safe for concurrent use.

    Args:
        switches: Which plugins may be loaded.
        discover: Returns the adverts of what is installed; called when first needed.
    """

    def __init__(
        self,
        switches: Switches | None = None,
        discover: Callable[[], Sequence[Advert]] = discover,
    ) -> None:
        self.switches = switches or Switches()
        self.registries: Mapping[str, Registry] = MappingProxyType(
            {kind: Registry(kind) for kind in KINDS}
        )
        self.builtins = frozenset(BUILTINS)
        for kind, key, place in BUILTINS:
            self.registries[kind].declare(key, place)
        self.loader = Loader(self, self.switches)
        self.loader.start()
        self.observers = Observers(self.hook)
        self._discover = discover
        self._adverts: Sequence[Advert] | None = None
        self._specs: set[int] = set()
        self._lock = threading.RLock()
        self.has_observers = False

    @property
    def hook(self) -> pluggy.HookRelay:
        """pluggy's relay; for the observe hooks prefer ``observe()``, which isolates errors."""
        return self.loader.pluggy.hook

    def registry(self, kind: str) -> Registry:
        """Return the registry of a kind.

        Raises:
            UnknownPluginError: there is no such kind.
        """
        if kind not in self.registries:
            nearest = nearest_name(kind, KINDS)
            advice = f" did you mean {nearest!r}?" if nearest else ""
            raise UnknownPluginError(
                f"no kind {kind!r};{advice} Kinds: {', '.join(sorted(KINDS))}",
                kind=kind,
                asked=kind,
                known=sorted(KINDS),
                nearest=nearest,
                install=None,
            )
        return self.registries[kind]

    def get(
        self,
        kind: str,
        type_key: str,
        import_names: Sequence[str] = (),
        config_path: str = "",
    ) -> Any:
        """Return the class of that type, loading what provides it.

        Looks in this order: what ``import_names`` register, what is registered, the one
        installed plugin that advertises the type.

        Args:
            kind: One of ``KINDS``.
            type_key: The type, as configs spell it.
            import_names: Modules to import first.
            config_path: Dotted path of the config section, for messages.

        Raises:
            UnknownPluginError: nothing provides the type.
            PluginLoadError: what provides it cannot be loaded, is disabled, or is ambiguous.
            ConfigTypeError: the type key or ``import_names`` have the wrong type.
        """
        registry = self.registry(kind)
        where = f"{config_path}.type" if config_path else "type"
        if not isinstance(type_key, str):
            raise ConfigTypeError(
                f"{where} names one of the {kind} and must be text, found {type_key!r}",
                path=where,
                expected="str",
                found=type(type_key).__name__,
            )
        self._import_all(import_names, config_path)
        if type_key not in registry:
            self._load_advertised(kind, type_key, where)
        return registry.get(type_key)

    def create(
        self,
        kind: str,
        cfg: Mapping[str, Any],
        *args: Any,
        config_path: str = "",
        **kwargs: Any,
    ) -> Any:
        """Create ``cls(cfg, *args, **kwargs)`` of the class that ``cfg["type"]`` names.

        An error raised inside the constructor passes through unchanged, with a note that
        names the type, what provides it and the config path.

        Raises:
            ConfigError: as for ``class_of``.
            UnknownPluginError: as for ``get``.
            PluginLoadError: as for ``get``.
        """
        component = self.class_of(kind, cfg, config_path)
        try:
            return component(cfg, *args, **kwargs)
        except Exception as error:
            entry = self.registry(kind).entry(cfg["type"])
            owner = entry.owner if entry else "unknown"
            place = f" at {config_path}" if config_path else ""
            error.add_note(
                f"raised while creating type {cfg['type']!r} of {kind}, from {owner}{place}"
            )
            raise

    def class_of(self, kind: str, cfg: Mapping[str, Any], config_path: str = "") -> Any:
        """Return the class that ``cfg["type"]`` names, after ``cfg["import_names"]``.

        Raises:
            ConfigError: ``cfg`` is no section, or has no ``type``.
            UnknownPluginError: as for ``get``.
            PluginLoadError: as for ``get``.
        """
        if not isinstance(cfg, Mapping):
            raise ConfigTypeError(
                f"{config_path or 'the config'} is the section of one of the {kind} and must be "
                f"a dict, found {cfg!r}",
                path=config_path,
                expected="mapping",
                found=type(cfg).__name__,
            )
        if "type" not in cfg:
            raise ConfigError(
                f"{config_path or 'the config'} names no type; one of the {kind} is needed: "
                f"{', '.join(self.known(kind)) or 'none'}",
                path=f"{config_path}.type" if config_path else "type",
                known=self.known(kind),
            )
        return self.get(kind, cfg["type"], cfg.get("import_names") or (), config_path)

    def known(self, kind: str) -> list[str]:
        """Return the type keys that configs can name now, sorted; imports nothing."""
        usable = {advert.key for advert in self.adverts(kind) if self.why_not(advert) is None}
        return sorted(usable.union(self.registry(kind).query()))

    def adverts(self, kind: str | None = None, key: str | None = None) -> list[Advert]:
        """Return what installed distributions advertise: all, for a kind, or for one key."""
        with self._lock:
            if self._adverts is None:
                self._adverts = self._discover()
            found = self._adverts
        return [a for a in found if kind in (None, a.kind) and key in (None, a.key)]

    def why_not(self, advert: Advert) -> str | None:
        """Return why the switches forbid loading what is advertised, or None."""
        return self.switches.why_not(advert.names)

    def load(self, advert: Advert) -> None:
        """Import and register what is advertised, once.

        Raises:
            PluginLoadError: it cannot be loaded, or is disabled.
        """
        reason = self.why_not(advert)
        if reason is not None:
            raise PluginLoadError(
                f"{advert.key!r} of the {advert.kind} is provided by {advert}, which is not "
                f"loaded: {reason}",
                plugin=advert.distribution,
                kind=advert.kind,
                reason="disabled",
            )
        self.loader.load(advert.module, advert.distribution)

    def load_observers(self) -> None:
        """Load the plugins of group ``dingsdk.plugins`` and the modules in ``DINGSDK_PLUGINS``.

        Runs once; a plugin that fails is logged by name and left out, or raises under
        ``DINGSDK_STRICT_PLUGINS``.
        """
        with self._lock:
            if self.has_observers:
                return
            self.has_observers = True
        for advert in self.adverts(OBSERVERS):
            if self.why_not(advert) is None:
                self._load_unasked(advert.module, advert.distribution)
        for name in self.switches.plugins:
            if not any(is_named([name], advert.names) for advert in self.adverts()):
                self._load_unasked(name, None)

    def plugins(self) -> list[PluginInfo]:
        """Return what provides what: built-in, registered and installed; imports nothing."""
        return list_plugins(self)

    def snapshot(self) -> Snapshot:
        """Return what is registered, picklable, for ``restore`` in a child process."""
        return take_snapshot(self)

    def restore(self, snapshot: Snapshot) -> None:
        """Register here what was registered where ``snapshot`` was taken."""
        restore_snapshot(self, snapshot)

    def configure(self, config: Mapping[str, Any]) -> None:
        """Tell the plugins that a run with this compiled config is about to start."""
        self.load_observers()
        self.loader.configure(config)

    def unconfigure(self) -> None:
        """Tell the plugins that the run of the last ``configure`` is over; idempotent."""
        self.loader.unconfigure()

    def register_plugin(self, plugin: object, name: str | None = None) -> str:
        """Register an object whose methods are hookimpls; return its name.

        Raises:
            PluginLoadError: it is too new or implements an unknown hook; nothing remains.
        """
        name = name or getattr(plugin, "__name__", None) or f"{type(plugin).__name__}-{id(plugin)}"
        self.loader.register(plugin, name)
        return name

    def unregister_plugin(self, name: str) -> None:
        """Take out the hookimpls of ``register_plugin``; the types they registered stay."""
        self.loader.unregister(name)

    def add_hookspecs(self, namespace: ModuleType | type) -> None:
        """Declare the hooks of a module or class; for ``dingsdk_addhooks``. Idempotent."""
        if id(namespace) not in self._specs:
            self.loader.pluggy.add_hookspecs(namespace)
            self._specs.add(id(namespace))

    def _import_all(self, import_names: Sequence[str], config_path: str) -> None:
        where = f"{config_path}.import_names" if config_path else "import_names"
        is_list = isinstance(import_names, list | tuple)
        if not is_list or not all(isinstance(name, str) for name in import_names):
            raise ConfigTypeError(
                f"{where} is a list of module names, found {import_names!r}",
                path=where,
                expected="list of str",
                found=type(import_names).__name__,
            )
        for name in import_names:
            try:
                self.loader.load(name)
            except PluginLoadError as error:
                error.add_note(f"named in {where}")
                raise

    def _load_advertised(self, kind: str, key: str, where: str) -> None:
        adverts = self.adverts(kind, key)
        if not adverts:
            # Perhaps it was installed after the first look, say from a notebook.
            importlib.invalidate_caches()
            with self._lock:
                self._adverts = None
            adverts = self.adverts(kind, key)
        usable = [advert for advert in adverts if self.why_not(advert) is None]
        if not adverts:
            raise self._unknown(kind, key, where)
        if len(usable) > 1:
            raise PluginLoadError(
                f"{where}: {key!r} of the {kind} is provided by more than one plugin: "
                f"{' and '.join(map(str, usable))}; uninstall one, or name it in "
                "DINGSDK_DISABLED_PLUGINS",
                plugin=key,
                kind=kind,
                reason="duplicate",
                providers=[advert.distribution for advert in usable],
            )
        advert = (usable or adverts)[0]
        try:
            self.load(advert)
        except PluginLoadError as error:
            error.add_note(f"asked for as {where} = {key!r}")
            raise
        if key not in self.registry(kind):
            raise PluginLoadError(
                f"{advert} advertises {key!r} among the {kind}, but its hook "
                f"dingsdk_register_{kind} does not register it; that is a defect of the plugin",
                plugin=advert.distribution,
                kind=kind,
                reason="not registered",
            )

    def _unknown(self, kind: str, key: str, where: str) -> UnknownPluginError:
        known = self.known(kind)
        to_install = {name: dist for (other, name), dist in hints.TYPES.items() if other == kind}
        nearest = None if key in to_install else nearest_name(key, [*known, *to_install])
        install = to_install.get(nearest or key) if nearest not in known else None
        others = [other for other in KINDS if other != kind and key in self.known(other)]
        advice = []
        if nearest:
            advice.append(f"Did you mean {nearest!r}?")
        if install:
            advice.append(f"To get it: {hints.install_command(install)}.")
        elif others and not nearest:
            advice.append(f"There is one among the {' and the '.join(others)}.")
        message = f"{where}: no {key!r} among the {kind}."
        return UnknownPluginError(
            " ".join([message, *advice, f"Known: {', '.join(known) or 'none'}"]),
            path=where,
            kind=kind,
            asked=key,
            known=known,
            nearest=nearest,
            install=install,
        )

    def _load_unasked(self, module: str, owner: str | None) -> None:
        try:
            self.loader.load(module, owner)
        except PluginLoadError as error:
            report(error, self.switches.strict)
