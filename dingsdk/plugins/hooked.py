"""The plugins whose hooks are called: what each of them must be, and what it is told."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pluggy

from dingsdk.errors import PluginLoadError, spelling
from dingsdk.plugins import hookspecs
from dingsdk.plugins.hooks import Observers


class HookedPlugins:
    """The modules and objects whose functions implement hooks; thread-safe.

    Args:
        manager: Passed to the hooks that get the plugin manager.

    Attributes:
        observers: The observe hooks of these plugins.
    """

    def __init__(self, manager: object) -> None:
        self._manager = manager
        self._pluggy = pluggy.PluginManager(hookspecs.PROJECT_NAME)
        self._pluggy.add_hookspecs(hookspecs)
        self._pluggy.add_hookspecs(hookspecs.REGISTER_HOOKS)
        self.observers = Observers(self.relay)
        self._specs: set[int] = set()
        self._announced: list[tuple[object, str]] = []
        self._config: Mapping[str, Any] | None = None
        self._lock = threading.RLock()

    @property
    def relay(self) -> pluggy.HookRelay:
        """pluggy's hook relay."""
        return self._pluggy.hook

    def declare(self, namespace: ModuleType | type) -> None:
        """Declare the hooks of a module or class; idempotent."""
        if id(namespace) not in self._specs:
            self._pluggy.add_hookspecs(namespace)
            self._specs.add(id(namespace))

    def has(self, name: str) -> bool:
        """Return whether there is a plugin of that name; waits for a thread that adds one."""
        with self._lock:
            return self._pluggy.has_plugin(name)

    def add(self, plugin: object, name: str, owner: str, needs_hooks: bool = False) -> None:
        """Add a plugin, unless it is there already, and tell the others.

        Args:
            owner: The plugin's name in messages.
            needs_hooks: Whether to refuse a plugin that implements no hook.

        Raises:
            PluginLoadError: a hook function would never be called, or not as it expects.
        """
        with self._lock:
            if any(known is plugin for known, _ in self._announced):
                return
            try:
                self._check_functions(plugin, owner)
                self._pluggy.register(plugin, name)
                self._check_hooks(plugin, name, owner, needs_hooks)
            except BaseException:
                # By name: pluggy compares plugins by equality, and could remove another one.
                if self._pluggy.get_plugin(name) is plugin:
                    self._pluggy.unregister(name=name)
                raise
            self._announce(plugin, name)

    def remove(self, name: str) -> None:
        """Remove a plugin."""
        with self._lock:
            plugin = self._pluggy.unregister(name=name)
            self._announced = [pair for pair in self._announced if pair[0] is not plugin]

    def configure(self, config: Mapping[str, Any]) -> None:
        """Call ``dingsdk_configure`` of all plugins, and later of plugins that are added later."""
        self.unconfigure()
        with self._lock:
            self._config = config
            self._tell(self.relay.dingsdk_configure, config=config)

    def unconfigure(self) -> None:
        """Call ``dingsdk_unconfigure`` of all plugins after ``configure``; idempotent."""
        with self._lock:
            if self._config is None:
                return
            self._config = None
            self._tell(self.relay.dingsdk_unconfigure)

    def _tell(self, hook: pluggy.HookCaller, **facts: object) -> None:
        for impl in hook.get_hookimpls():
            self.observers.call(impl, facts)

    def _announce(self, plugin: object, name: str) -> None:
        self._announced.append((plugin, name))
        for impl in self.relay.dingsdk_plugin_registered.get_hookimpls():
            news = self._announced if impl.plugin is plugin else [(plugin, name)]
            for other, other_name in list(news):
                facts = {"plugin": other, "name": other_name, "manager": self._manager}
                self.observers.call(impl, facts)
        if self._config is not None:
            for impl in self.relay.dingsdk_configure.get_hookimpls():
                if impl.plugin is plugin:
                    self.observers.call(impl, {"config": self._config})

    def _check_functions(self, plugin: object, owner: str) -> None:
        """Refuse hook functions that would never be called, or not as they expect."""
        for name in dir(plugin):
            marks: Any = self._pluggy.parse_hookimpl_opts(plugin, name)
            hook = (marks and marks["specname"]) or name
            spec = getattr(getattr(self.relay, hook, None), "spec", None)
            function = getattr(plugin, name, None) if spec or marks else None
            if not inspect.isroutine(function) or hasattr(function, "dingsdk_spec"):
                continue
            plain = inspect.unwrap(function)
            code = getattr(plain, "__code__", None)
            where = f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
            if marks is None:
                text = "so it would never be called; mark it with @dingsdk.hookimpl, or rename it"
                defines = f"defines {name} without @hookimpl{where}"
                raise refused(owner, "not marked", f"{defines}, {text}", hook=hook)
            is_lazy = (
                inspect.iscoroutinefunction(plain)
                or inspect.isasyncgenfunction(plain)
                or inspect.isgeneratorfunction(plain)
            )
            if is_lazy or marks["wrapper"] or marks["hookwrapper"]:
                text = "is async, a generator or a wrapper, which is never run; write a plain def"
                raise refused(owner, "no plain function", f"{name}{where} {text}", hook=hook)
            for each in inspect.signature(function).parameters.values() if spec else ():
                # pluggy refuses arguments that the hook does not have.
                if each.default is not each.empty or each.kind is each.KEYWORD_ONLY:
                    text = "is never passed; take its default, or the * before it, away"
                    what = f"the argument {each.name!r} of {hook}{where}"
                    raise refused(owner, "argument", f"{what} {text}", hook=hook)

    def _check_hooks(self, plugin: object, name: str, owner: str, needs_hooks: bool) -> None:
        callers = self._pluggy.get_hookcallers(plugin) or []
        if needs_hooks and not callers:
            text = f"has no effect: {name} implements no hook and registers no type"
            advice = (
                "write its hooks as functions of the module, not of a class, and mark them with "
                "@dingsdk.hookimpl"
            )
            raise refused(owner, "no hooks", f"{text}; {advice}")
        for caller in callers:
            impl = next(i for i in caller.get_hookimpls() if i.plugin is plugin)
            if not caller.has_spec() and not impl.optionalhook:
                hooks = vars(self.relay).items()
                known = [name for name, other in hooks if getattr(other, "spec", None)]
                nearest, hint = spelling(caller.name, known)
                raise refused(
                    owner,
                    "unknown hook",
                    f"implements {caller.name}, which is no hook of this dingsdk{hint} If it "
                    "comes from a newer dingsdk, mark it @hookimpl(optionalhook=True)",
                    hook=caller.name,
                    nearest=nearest,
                )


def refused(owner: str, reason: str, text: str, **facts: object) -> PluginLoadError:
    """Return the error of a plugin that is not loaded; ``text`` follows its name."""
    return PluginLoadError(f"plugin {owner} {text}", plugin=owner, reason=reason, **facts)
