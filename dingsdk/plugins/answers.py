"""The hooks that are asked for an answer, as typed methods: decide hooks and report hooks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

import pluggy

from dingsdk.errors import DingError, PluginHookError, listing
from dingsdk.plugins import hookspecs

P = ParamSpec("P")
R = TypeVar("R")

_logger = logging.getLogger(__name__)


def _decide(spec: Callable[P, R]) -> Callable[Concatenate[Answers, P], R]:
    """Return a method that asks every implementation of a hook until one answers."""
    name = spec.__name__

    def ask(self: Answers, **facts: object) -> object:
        for impl in reversed(getattr(self._hook, name).get_hookimpls()):
            answer = _call(impl, name, facts)
            if answer is not None:
                return answer
        return None

    ask.__doc__ = spec.__doc__
    return ask  # type: ignore[return-value]


def _report(
    spec: Callable[P, Mapping[str, Any] | None],
) -> Callable[Concatenate[Answers, P], dict[str, Any]]:
    """Return a method that asks every implementation of a hook, and puts the answers together."""
    name = spec.__name__

    def ask(self: Answers, **facts: object) -> dict[str, Any]:
        impls = getattr(self._hook, name).get_hookimpls()
        return self._gather(name, impls, facts) if impls else {}

    ask.__doc__ = spec.__doc__
    return ask  # type: ignore[return-value]


class Answers:
    """Asks the loaded plugins; may be called from any thread.

    Args:
        hook: The relay of the plugin manager.

    Raises:
        PluginHookError: a decide hook raised. Errors of dingsdk pass with a note that names the
            plugin, the hook and the line.
    """

    create_component = _decide(hookspecs.dingsdk_create_component)
    write_checkpoint = _decide(hookspecs.dingsdk_write_checkpoint)
    read_checkpoint = _decide(hookspecs.dingsdk_read_checkpoint)
    should_stop = _decide(hookspecs.dingsdk_should_stop)
    progress_columns = _report(hookspecs.dingsdk_progress_columns)
    result_fields = _report(hookspecs.dingsdk_result_fields)

    def __init__(self, hook: pluggy.HookRelay) -> None:
        self._hook = hook
        self._logged: set[tuple[str, ...]] = set()

    def listens(self, name: str) -> bool:
        """Whether a plugin implements ``dingsdk_<name>``."""
        return bool(getattr(self._hook, f"dingsdk_{name}").get_hookimpls())

    def _gather(
        self, hook: str, impls: list[pluggy.HookImpl], facts: Mapping[str, object]
    ) -> dict[str, Any]:
        answers: list[tuple[str, str, Any]] = []
        for impl in impls:
            try:
                found = _call(impl, hook, facts) or {}
                if not isinstance(found, Mapping):
                    raise PluginHookError(
                        f"plugin {impl.plugin_name}: {hook} returned a {type(found).__name__}; "
                        "return a dict of values by name, or None",
                        plugin=impl.plugin_name,
                        hook=hook,
                    )
            except Exception as error:
                self._log_once((hook, impl.plugin_name), "%s (left out)", error)
                continue
            answers += [(str(name), impl.plugin_name, found[name]) for name in found]
        given = facts.get("result")
        own = set(given) if isinstance(given, Mapping) else set()
        merged: dict[str, Any] = {}
        for name, plugin, value in answers:
            owners = [other for each, other, _ in answers if each == name]
            if name in own or len(owners) > 1:
                who = listing(owners) + (" and dingsdk" if name in own else "")
                self._log_once(
                    (hook, name), "%s: %s give %r a value; kept as name@plugin", hook, who, name
                )
                name = f"{name}@{plugin}"
            merged[name] = value
        return merged

    def _log_once(self, key: tuple[str, ...], text: str, *args: object) -> None:
        if key not in self._logged:
            self._logged.add(key)
            _logger.error(text, *args)


def _call(impl: pluggy.HookImpl, hook: str, facts: Mapping[str, object]) -> Any:
    function: Callable[..., object] = impl.function
    try:
        return function(*(facts[name] for name in impl.argnames))
    except DingError as error:
        error.add_note(f"raised by {describe(impl, hook, error)}")
        raise
    except Exception as error:
        raise PluginHookError(
            f"{describe(impl, hook, error)} failed: {type(error).__name__}: {error}",
            plugin=impl.plugin_name,
            hook=hook,
        ) from error


def describe(impl: pluggy.HookImpl, hook: str, error: BaseException) -> str:
    """Return ``plugin <name>, <hook> (<file>, line <n>)``: where the plugin's code raised.

    The line is the innermost one in the file of its function.
    """
    code = getattr(inspect.unwrap(impl.function), "__code__", None)
    where = ""
    if code is not None:
        file, line = code.co_filename, code.co_firstlineno
        frames = error.__traceback__
        while frames is not None:
            if frames.tb_frame.f_code.co_filename == file:
                line = frames.tb_lineno
            frames = frames.tb_next
        where = f" ({file}, line {line})"
    return f"plugin {impl.plugin_name}, {hook}{where}"
