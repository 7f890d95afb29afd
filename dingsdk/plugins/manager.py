"""The plugin manager: finds, loads and creates parts by kind and type key."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pkgutil import resolve_name
from types import MappingProxyType, ModuleType
from typing import Any

import pluggy

from dingsdk.config import to_easydict
from dingsdk.config.aliases import rename_aliases
from dingsdk.errors import (
    ConfigError,
    PluginLoadError,
    PluginNotInstalledError,
    UnknownPluginError,
    error_text,
    listing,
    nearest_name,
    raised_at,
    wrong_type,
)
from dingsdk.plugins.builtins import BUILTINS
from dingsdk.plugins.discovery import SHIPPED, Advert, discover, install_command
from dingsdk.plugins.hooked import HookedPlugins, refused
from dingsdk.plugins.hooks import Answers, Observers
from dingsdk.plugins.interfaces import check_made
from dingsdk.plugins.inventory import PluginInfo, Snapshot, list_plugins, take_snapshot
from dingsdk.plugins.kinds import KINDS, NAMES, OBSERVERS
from dingsdk.plugins.registry import Registry, Transaction, place_of, transaction, unknown
from dingsdk.plugins.switches import Switches, is_named

_logger = logging.getLogger(__name__)


class PluginManager:
    """Has a registry for each kind, and loads plugins when they are needed; thread-safe.

    Args:
        switches: Which plugins may be loaded.
        discover: Returns the adverts of the installed plugins; called when first needed.

    Attributes:
        registries: Kind -> its registry.
        modules: Loaded plugin module -> its owner, in the order of loading.
        failures: Module name -> why its last load failed; removed when a load succeeds.
        observers: The observe hooks.
        answers: The decide and report hooks.
        has_observers: Whether ``load_observers`` was called.
        given: ``module:name`` of the envs that a program gave as classes or functions; they are
            not judged, unlike names in a config.
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
        for kind, key, place in BUILTINS:
            self.registries[kind].declare(key, place)
        self.modules: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self.has_observers = False
        self.given: set[str] = set()
        self._hooked = HookedPlugins(self)
        self.observers = self._hooked.observers
        self.answers = Answers(self.hook)
        self._discover = discover
        self._adverts: Sequence[Advert] | None = None
        self._lock = threading.RLock()
        # Historic calls: pluggy calls these hooks of each plugin that is registered later.
        self.hook.dingsdk_addhooks.call_historic(kwargs={"manager": self})
        for kind, registry in self.registries.items():
            caller = getattr(self.hook, f"dingsdk_register_{kind}")
            caller.call_historic(kwargs={"registry": registry})

    @property
    def hook(self) -> pluggy.HookRelay:
        """pluggy's hook relay. For observe hooks, use ``observe()``, which catches exceptions."""
        return self._hooked.relay

    # what is available

    def registry(self, kind: str) -> Registry:
        """Return the registry of a kind, or raise UnknownPluginError."""
        if kind not in self.registries:
            raise unknown("kinds", kind, sorted(KINDS))
        return self.registries[kind]

    def known(self, kind: str) -> list[str]:
        """Return the type keys that configs can name, sorted; imports nothing."""
        usable = {a.key for a in self.adverts(kind) if self.why_not(a) is None}
        return sorted(usable.union(self.registry(kind).query()))

    def adverts(self, kind: str | None = None, key: str | None = None) -> list[Advert]:
        """Return the adverts of installed distributions: all, of one kind, or for one key."""
        with self._lock:
            if self._adverts is None:
                found = self._discover()
                self.switches.check(found)
                self._adverts = found
            return [
                advert
                for advert in self._adverts
                if kind in (None, advert.kind) and key in (None, advert.key)
            ]

    def forget_adverts(self) -> None:
        """Discover the installed plugins again at the next use, to find newly installed ones."""
        importlib.invalidate_caches()
        with self._lock:
            self._adverts = None

    def why_not(self, advert: Advert) -> str | None:
        """Return why an advertised plugin may not be loaded (switch or contract), or None."""
        return self.switches.why_not(advert.names) or advert.misfit

    def plugins(self) -> list[PluginInfo]:
        """Return all types and their providers, built-in ones too; imports nothing."""
        return list_plugins(self)

    # parts by type

    def get(
        self,
        kind: str,
        type_key: str,
        import_names: Sequence[str] = (),
        config_path: str = "",
    ) -> Any:
        """Return the class of a type; load the plugin that provides it, if needed.

        First imports ``import_names``, which may register the type. Then looks among the registered
        types, and then for an installed plugin that advertises the type.

        Args:
            kind: One of ``KINDS``.
            type_key: The type, as written in configs.
            import_names: Modules to import first.
            config_path: Dotted path of the config section, for messages.

        Raises:
            UnknownPluginError: nothing provides the type.
            PluginLoadError: the plugin that provides it cannot be loaded or is disabled, or several
                plugins provide it.
            ConfigTypeError: the type key or ``import_names`` have the wrong type.
        """
        registry = self.registry(kind)
        if not import_names and isinstance(type_key, str) and type_key in registry.own:
            return registry.own[type_key]
        where = f"{config_path}.type" if config_path else "type"
        if not isinstance(type_key, str):
            raise wrong_type(where, f"the type of one of the {kind}", type_key)
        if import_names:
            self._import_all(import_names, config_path)
        entry = registry.entry(type_key)
        if entry is None or self._is_contested(kind, type_key, entry.owner):
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
        """Create ``cls(cfg, *args, **kwargs)``, where ``cfg["type"]`` names the class ``cls``.

        The class gets its section as an EasyDict. An exception of the constructor is raised
        unchanged, with a note that names the type, its provider and the config path. Other errors
        are those of ``class_of``, and PluginLoadError if a function made something else.
        """
        component = self.class_of(kind, cfg, config_path)
        cfg = to_easydict(rename_aliases(cfg, config_path))
        made = self.answers.create_component(
            kind=kind, type_key=cfg["type"], cls=component, cfg=cfg, args=args, kwargs=kwargs
        )
        if made is not None:
            return made
        entry = self.registry(kind).entry(cfg["type"])
        place = f" at {config_path}" if config_path else ""
        what = f"type {cfg['type']!r} of {kind}, from {entry.owner if entry else 'unknown'}{place}"
        try:
            made = component(cfg, *args, **kwargs)
        except Exception as error:
            error.add_note(f"raised while creating {what}")
            raise
        if type(made) is not component:  # the class itself was checked when the config was compiled
            check_made(kind, component, made, what)
        return made

    def builtin_types(self, kind: str) -> list[str]:
        """Return the type keys of a kind that dingsdk itself provides, sorted."""
        return sorted(key for each, key, _ in BUILTINS if each == kind)

    def class_of(self, kind: str, cfg: Mapping[str, Any], config_path: str = "") -> Any:
        """Return the class that ``cfg["type"]`` names, after ``cfg["import_names"]``; see ``get``.

        Both keys may be given by their aliases. Raises ConfigError if there is no ``type``.
        """
        if not isinstance(cfg, Mapping):
            raise wrong_type(config_path, f"the section of one of the {kind}", cfg)
        cfg = rename_aliases(cfg, config_path)
        if "type" not in cfg:
            raise ConfigError(
                f"{config_path or 'the config'} names no type; one of the {kind} is needed: "
                f"{listing(self.known(kind))}",
                path=f"{config_path}.type" if config_path else "type",
                known=self.known(kind),
            )
        return self.get(kind, cfg["type"], cfg.get("import_names") or (), config_path)

    def named(self, name: str) -> Any:
        """Return the object that an installed plugin advertises under ``name``.

        Meant for a package's ``__getattr__``; see ``dingsdk.plugins.kinds.NAMES``.

        Raises:
            PluginNotInstalledError: a plugin of this repository has the name, but is not installed.
            PluginLoadError: the plugin is disabled or broken, or several plugins have the name.
            AttributeError: no plugin has the name.
        """
        if name.startswith("_"):  # looked up by the import system and by inspection
            raise AttributeError(f"no plugin provides {name!r}")
        adverts = self.adverts(NAMES, name)
        if adverts:
            advert = self._only_usable(adverts, name)
            try:
                return resolve_name(advert.value)
            except (Exception, SystemExit) as error:
                raise PluginLoadError(
                    f"cannot load {name} from {advert}: {error_text(error)}",
                    plugin=advert.distribution,
                    kind=NAMES,
                    reason="broken",
                ) from error
        if install := SHIPPED.get((NAMES, name)):
            raise PluginNotInstalledError(
                f"{name} is part of the plugin {install}, which is not installed; to get it: "
                f"{install_command(install)}",
                name=name,
                install=install,
            )
        raise AttributeError(f"no plugin provides {name!r}")

    def import_part(self, kind: str, type_key: str, import_names: Sequence[str] = ()) -> Any:
        """Import the plugin of a part of any group of entry points, and return the part.

        A part is what ``get`` or ``named`` returns, or the module of a plugin that only observes,
        of which there may be several with one key, as ``key@distribution``. Raises their errors.
        """
        if kind == NAMES:
            return self.named(type_key)
        if kind != OBSERVERS:
            return self.get(kind, type_key, import_names)
        key, at, owner = type_key.partition("@")
        found = self.adverts(kind, key)
        advert = next(each for each in found if not at or is_named([owner], [each.distribution]))
        self.load(advert.module, advert.distribution, must_provide=True, attribute=advert.attribute)
        return importlib.import_module(advert.module)

    def _import_all(self, import_names: Sequence[str], config_path: str) -> None:
        where = f"{config_path}.import_names" if config_path else "import_names"
        is_list = isinstance(import_names, list | tuple)
        if not is_list or not all(isinstance(name, str) for name in import_names):
            raise wrong_type(where, "a list of names of modules", import_names)
        for name in import_names:
            with _noted(f"named in {where}"):
                self.load(name)

    def _is_contested(self, kind: str, key: str, owner: str) -> bool:
        """Whether another plugin provides the type of a plugin that was loaded, too."""
        found = [a for a in self._adverts or () if (a.kind, a.key) == (kind, key)]
        providers = {a.distribution for a in found if self.why_not(a) is None}
        return owner in providers and len(providers) > 1

    def _load_advertised(self, kind: str, key: str, where: str) -> None:
        """Load the plugin that provides a type."""
        adverts = self.adverts(kind, key)
        if not adverts:
            # The plugin may have been installed after the first discovery, for example from a
            # notebook.
            self.forget_adverts()
            adverts = self.adverts(kind, key)
        if not adverts:
            raise self._unknown(kind, key, where)
        with _noted(f"asked for as {where} = {key!r}"):
            advert = self._only_usable(adverts, f"{where}: {key!r} of the {kind}")
            self.load(advert.module, advert.distribution, attribute=advert.attribute)
        if key not in self.registry(kind):
            raise PluginLoadError(
                f"{advert} advertises {key!r} among the {kind}, but its hook "
                f"dingsdk_register_{kind} does not register it; that is a defect of the plugin",
                plugin=advert.distribution,
                kind=kind,
                reason="not registered",
            )

    def _only_usable(self, adverts: Sequence[Advert], what: str) -> Advert:
        usable = [advert for advert in adverts if self.why_not(advert) is None]
        if len(usable) == 1:
            return usable[0]
        first = adverts[0]
        if usable:
            raise PluginLoadError(
                f"{what} is provided by more than one plugin: {' and '.join(map(str, usable))}; "
                "uninstall one, or name it in DINGSDK_DISABLED_PLUGINS",
                plugin=first.key,
                kind=first.kind,
                reason="duplicate",
                providers=[advert.distribution for advert in usable],
            )
        raise PluginLoadError(
            f"{what} is provided by {first}, which is not loaded: {self.why_not(first)}",
            plugin=first.distribution,
            kind=first.kind,
            reason="disabled" if self.switches.why_not(first.names) else "too new",
        )

    def _unknown(self, kind: str, key: str, where: str) -> UnknownPluginError:
        known = self.known(kind)
        absent = {name for each, name in SHIPPED if each == kind}
        proposed = [] if key in absent else [*known, *absent]
        nearest = nearest_name(key, proposed)
        install = SHIPPED.get((kind, nearest or key)) if nearest not in known else None
        others = [other for other in KINDS if other != kind and key in self.known(other)]
        advice = ""
        if install:
            advice = f" To get it: {install_command(install)}."
        elif others and not nearest:
            advice = f" There is one among the {' and the '.join(others)}."
        elif kind == "policies" and not nearest:
            advice = " Pass a class of your own as policy=."
        return unknown(kind, key, known, advice, proposed=proposed, path=where, install=install)

    # loading

    def load(
        self,
        module_name: str,
        owner: str | None = None,
        *,
        must_provide: bool = False,
        attribute: str = "",
    ) -> None:
        """Import a module and register its hookimpls, if it has any; once per process.

        Args:
            module_name: Dotted name.
            owner: The plugin's name in messages and listings; by default the module name.
            must_provide: Whether to refuse a module that neither implements a hook nor
                registers a type.
            attribute: What the plugin's entry point names in the module; it is not used, but has to
                exist.

        Raises:
            PluginLoadError: the module is disabled, raised an exception, or lacks the attribute;
                everything that it registered is removed again.
        """
        owner = owner or module_name
        if self.switches.is_disabled(module_name):
            text = (
                "is needed, but DINGSDK_DISABLED_PLUGINS names it; take it out of there to use it"
            )
            raise refused(owner, "disabled", text)
        if self._hooked.has(module_name):
            return
        is_new = module_name not in sys.modules
        with self._wholly(module_name, owner) as changes:
            # Without our lock: another thread may hold the import lock of this module and wait
            # for our lock.
            module = importlib.import_module(module_name)
            try:
                if attribute and not hasattr(module, attribute.partition(".")[0]):
                    raise AttributeError(
                        f"its entry point is {module_name}:{attribute}, but the module has no "
                        f"{attribute!r}; name only the module there, whose hook registers the type"
                    )
                needs_hooks = must_provide and not changes.changes
                self._hooked.add(module, module_name, owner, needs_hooks)
            except BaseException:
                if is_new:  # so that the next try runs the module, and its registrations, again
                    sys.modules.pop(module_name, None)
                raise
        self.modules[module_name] = owner

    def load_observers(self) -> None:
        """Load the plugins of group ``dingsdk.plugins`` and the modules in ``DINGSDK_PLUGINS``.

        Only the first call has an effect. A plugin that fails is logged and left out; with
        ``DINGSDK_STRICT_PLUGINS``, its error is raised.
        """
        with self._lock:
            if self.has_observers:
                return
            self.has_observers = True
        wanted = [
            (a.module, a.distribution, a.attribute)
            for a in self.adverts(OBSERVERS)
            if not self.why_not(a)
        ]
        installed = {name for advert in self.adverts() for name in advert.names}
        wanted += [
            (name, name, "") for name in self.switches.plugins if not is_named([name], installed)
        ]
        for module, owner, attribute in wanted:
            with self._reported():
                self.load(module, owner, must_provide=True, attribute=attribute)

    def register_plugin(self, plugin: object, name: str | None = None) -> str:
        """Register an object whose methods are hookimpls; return its name."""
        name = name or getattr(plugin, "__name__", None) or f"{type(plugin).__name__}-{id(plugin)}"
        with self._wholly(name, name):
            self._hooked.add(plugin, name, name)
        return name

    def unregister_plugin(self, name: str) -> None:
        """Remove the hookimpls of ``register_plugin``; types that they registered stay."""
        self._hooked.remove(name)

    def add_hookspecs(self, namespace: ModuleType | type) -> None:
        """Declare the hooks of a module or class; for ``dingsdk_addhooks``. Idempotent."""
        self._hooked.declare(namespace)

    @contextmanager
    def _wholly(self, module_name: str, owner: str) -> Iterator[Transaction]:
        try:
            with transaction(owner) as changes:
                yield changes
        except (Exception, SystemExit) as error:
            self.failures[module_name] = error_text(error)
            if isinstance(error, PluginLoadError) and error.facts.get("plugin") == owner:
                raise
            text = f"{error_text(error)}{raised_at(error, module_name)}"
            raise refused(owner, "broken", f"cannot be loaded: {text}") from error
        self.failures.pop(module_name, None)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Log the error of a plugin that no config named; with the strict switch, raise it."""
        try:
            yield
        except PluginLoadError as error:
            if self.switches.strict:
                raise
            _logger.error("%s (left out)", error, exc_info=error.__cause__)

    # life of runs and processes

    def configure(self, config: Mapping[str, Any]) -> None:
        """Call ``dingsdk_configure`` of all plugins, and later of plugins that are loaded later."""
        self.load_observers()
        self._hooked.configure(config)

    def unconfigure(self) -> None:
        """Call ``dingsdk_unconfigure`` of all plugins after ``configure``; idempotent."""
        self._hooked.unconfigure()

    def snapshot(self, without: Collection[str] = ()) -> Snapshot:
        """Return the registered types, in a picklable form, for ``restore`` in a child process.

        Args:
            without: Kinds that the child does not need. Plugins that advertise only these kinds are
                not loaded there; types that they registered are imported when they are used.
        """
        return take_snapshot(self, without)

    def restore(self, snapshot: Snapshot) -> None:
        """Register the types of a snapshot in this process, and set its log level.

        If a plugin cannot be loaded here, the error is logged; with ``DINGSDK_STRICT_PLUGINS``, it
        is raised. The types of such a plugin are still declared; using them raises an error.
        """
        if snapshot.log_level:
            logging.getLogger("dingsdk").setLevel(snapshot.log_level)
        self.given.update(snapshot.given)
        for module, owner in snapshot.modules:
            with self._reported():
                self.load(module, owner)
        for kind, key, owner, place in snapshot.entries:
            registry = self.registry(kind)
            entry = registry.entry(key)
            if entry is None or place not in (entry.place, place_of(entry.target)):
                registry.declare(key, place, owner, force_overwrite=True)


@contextmanager
def _noted(note: str) -> Iterator[None]:
    """Add a note to a PluginLoadError that the block raises."""
    try:
        yield
    except PluginLoadError as error:
        error.add_note(note)
        raise


_lock = threading.RLock()
_default: PluginManager | None = None


def default_manager() -> PluginManager:
    """Return the manager of this process; the first call reads the ``DINGSDK_*`` switches.

    Raises:
        ConfigError: a switch is unknown, or its value is neither on nor off.
    """
    global _default
    with _lock:
        if _default is None:
            _default = PluginManager(Switches.from_environ(os.environ))
        return _default


@contextmanager
def use_manager(manager: PluginManager) -> Iterator[PluginManager]:
    """Make ``manager`` the default inside the block, for tests and for tools."""
    global _default
    with _lock:
        previous, _default = _default, manager
    try:
        yield manager
    finally:
        with _lock:
            _default = previous


def ask() -> Answers:
    """Return the decide and report hooks, to call as ``ask().should_stop(...)``.

    The first call loads the plugins that only observe, as ``observe`` does.
    """
    observe()
    return default_manager().answers


def observe() -> Observers:
    """Return the observe hooks, to call as ``observe().after_iter(...)``.

    The first call loads the plugins that only observe. Calling a hook that no plugin implements
    takes less than 1 us.
    """
    manager = _default or default_manager()
    if not manager.has_observers:
        manager.load_observers()
    return manager.observers
