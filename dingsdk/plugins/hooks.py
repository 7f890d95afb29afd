"""The hooks as typed methods: hooks that only observe, and hooks that return an answer.

A call is cheap if no plugin implements the hook, so callers need not check that first.
"""

from __future__ import annotations

import copy
import inspect
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import pluggy

from dingsdk.errors import DingError, PluginHookError, error_text, listing
from dingsdk.plugins import hookspecs
from dingsdk.plugins.interfaces import missing_members

P = ParamSpec("P")
R = TypeVar("R")
Facts = Mapping[str, object]

_logger = logging.getLogger(__name__)


def _calls(spec: Callable[P, R], call: str = "_call") -> Callable[Concatenate[Any, P], R]:
    """Return a method that passes a hook's implementations to ``call``, with keyword arguments."""
    name = spec.__name__

    def fire(self: _Hooks, **facts: object) -> Any:
        return getattr(self, call)(name, getattr(self._hook, name).get_hookimpls(), facts)

    fire.__doc__ = spec.__doc__
    return cast(Callable[Concatenate[Any, P], R], fire)


def _gathers(spec: Callable[P, object]) -> Callable[Concatenate[Any, P], dict[str, Any]]:
    """Return a method that calls every implementation of a hook, and merges the answers."""
    return cast(Callable[Concatenate[Any, P], dict[str, Any]], _calls(spec, "_gather"))


class _Hooks:
    """Calls hooks of the loaded plugins through pluggy's hook relay; thread-safe."""

    def __init__(self, hook: pluggy.HookRelay) -> None:
        self._hook = hook
        self._logged: set[tuple[str, ...]] = set()

    def has_listener(self, name: str) -> bool:
        """Whether a plugin implements ``dingsdk_<name>``; for callers that make many calls."""
        return bool(getattr(self._hook, f"dingsdk_{name}").get_hookimpls())

    def _is_new(self, *key: str) -> bool:
        is_new = key not in self._logged
        self._logged.add(key)
        return is_new


class Observers(_Hooks):
    """Calls the observe hooks of all loaded plugins; an exception of a plugin is only logged."""

    run_started = _calls(hookspecs.dingsdk_run_started)
    run_finished = _calls(hookspecs.dingsdk_run_finished)
    before_task = _calls(hookspecs.dingsdk_before_task)
    after_task = _calls(hookspecs.dingsdk_after_task)
    after_episode = _calls(hookspecs.dingsdk_after_episode)
    after_collect = _calls(hookspecs.dingsdk_after_collect)
    after_iter = _calls(hookspecs.dingsdk_after_iter)
    after_evaluate = _calls(hookspecs.dingsdk_after_evaluate)
    after_checkpoint = _calls(hookspecs.dingsdk_after_checkpoint)
    pace_changed = _calls(hookspecs.dingsdk_pace_changed)
    connection_lost = _calls(hookspecs.dingsdk_connection_lost)

    def _call(self, hook: str, impls: Sequence[pluggy.HookImpl], facts: Facts) -> None:
        # pluggy's own loop ends at the first exception; here every observer is called.
        for impl in reversed(impls):
            self.call(impl, facts)

    def call(self, impl: pluggy.HookImpl, facts: Facts) -> None:
        """Call one implementation with those of the hook's arguments (``facts``) that it takes.

        An exception is logged; the first time for a plugin and hook, with a traceback. A config
        is copied: a change to it would not be in the config that the run has saved.
        """
        hook = impl.function.__name__
        try:
            if "config" in impl.argnames:
                facts = {**facts, "config": copy.deepcopy(facts["config"])}
            _answer(impl, facts)
        except (Exception, SystemExit) as error:
            is_new = self._is_new(impl.plugin_name, hook)
            _logger.log(
                logging.ERROR if is_new else logging.DEBUG,
                "%s failed: %s",
                _describe(impl, hook, error),
                error_text(error),
                exc_info=is_new,
            )


class Answers(_Hooks):
    """Calls the decide and report hooks of the loaded plugins.

    Raises:
        PluginHookError: a decide hook raised an exception, or returned something that its caller
            cannot use. If the exception is a DingError, it is raised itself, with a note that names
            the plugin, the hook and the line.
    """

    convert_config = _calls(hookspecs.dingsdk_convert_config)
    create_component = _calls(hookspecs.dingsdk_create_component)
    write_checkpoint = _calls(hookspecs.dingsdk_write_checkpoint)
    read_checkpoint = _calls(hookspecs.dingsdk_read_checkpoint)
    should_stop = _calls(hookspecs.dingsdk_should_stop)
    progress_columns = _gathers(hookspecs.dingsdk_progress_columns)
    result_fields = _gathers(hookspecs.dingsdk_result_fields)

    def _call(self, hook: str, impls: Sequence[pluggy.HookImpl], facts: Facts) -> Any:
        for impl in reversed(impls):
            answer = _ask(impl, hook, facts)
            if answer is not None:
                if advice := DECISIONS[hook](answer, facts):
                    raise _wrong_answer(impl, hook, answer, advice)
                return answer
        return None

    def _gather(self, hook: str, impls: Sequence[pluggy.HookImpl], facts: Facts) -> dict[str, Any]:
        answers: list[tuple[str, str, Any]] = []
        for impl in impls:
            try:
                found = _ask(impl, hook, facts) or {}
                if not isinstance(found, Mapping):
                    raise _wrong_answer(
                        impl, hook, found, "return a dict of values by name, or None"
                    )
            except Exception as error:
                if self._is_new(hook, impl.plugin_name):
                    _logger.error("%s (left out)", error)
                continue
            answers += [(str(name), impl.plugin_name, value) for name, value in found.items()]
        given = facts.get("result")
        own = set(given) if isinstance(given, Mapping) else set()
        merged: dict[str, Any] = {}
        for name, plugin, value in answers:
            owners = [other for each, other, _ in answers if each == name]
            if name in own or len(owners) > 1:
                if self._is_new(hook, name):
                    who = listing(owners) + (" and dingsdk" if name in own else "")
                    text = "%s: %s give %r a value; kept as name@plugin"
                    _logger.error(text, hook, who, name)
                name = f"{name}@{plugin}"
            merged[name] = value
        return merged


def _wrong_component(made: object, facts: Facts) -> str:
    missing = missing_members(str(facts["kind"]), made)
    return f"the {facts['kind']} have {listing(missing)}; return a part, or None" if missing else ""


def _wrong_stored(answer: object, facts: Facts) -> str:
    if not isinstance(answer, bool):
        return "return True once the checkpoint is stored, or None"
    is_there = not answer or Path(str(facts["path"])).is_file()
    return "" if is_there else f"but there is no file {facts['path']}; write one there, too"


DECISIONS: Mapping[str, Callable[[Any, Facts], str]] = {
    "dingsdk_convert_config": lambda answer, _: (
        "" if isinstance(answer, Mapping) else "return the config as a dict, or None"
    ),
    "dingsdk_create_component": _wrong_component,
    "dingsdk_write_checkpoint": _wrong_stored,
    "dingsdk_read_checkpoint": lambda answer, _: (
        "" if isinstance(answer, Mapping) else "return the contents of the checkpoint, or None"
    ),
    "dingsdk_should_stop": lambda answer, _: (
        "" if isinstance(answer, str) else "return the reason to stop as a str, or None to continue"
    ),
}
"""Decide hook -> function that returns what is wrong with an answer, or an empty text."""


def _wrong_answer(impl: pluggy.HookImpl, hook: str, answer: object, advice: str) -> PluginHookError:
    return PluginHookError(
        f"{_describe(impl, hook, None)} returned {answer!r:.80}; {advice}",
        plugin=impl.plugin_name,
        hook=hook,
    )


def _answer(impl: pluggy.HookImpl, facts: Facts) -> Any:
    return impl.function(*(facts[name] for name in impl.argnames))


def _ask(impl: pluggy.HookImpl, hook: str, facts: Facts) -> Any:
    try:
        return _answer(impl, facts)
    except DingError as error:
        error.add_note(f"raised by {_describe(impl, hook, error)}")
        raise
    except (Exception, SystemExit) as error:
        raise PluginHookError(
            f"{_describe(impl, hook, error)} failed: {error_text(error)}",
            plugin=impl.plugin_name,
            hook=hook,
        ) from error


def _describe(impl: pluggy.HookImpl, hook: str, error: BaseException | None) -> str:
    """Return ``plugin <name>, <hook> (<file>, line <n>)`` for an error of a plugin's hook.

    The line is that of the innermost frame in the file of the hook function; without an exception,
    the first line of the function.
    """
    code = getattr(inspect.unwrap(impl.function), "__code__", None)
    where = ""
    if code is not None:
        file, line = code.co_filename, code.co_firstlineno
        for frame, at in traceback.walk_tb(error.__traceback__ if error else None):
            line = at if frame.f_code.co_filename == file else line
        where = f" ({file}, line {line})"
    return f"plugin {impl.plugin_name}, {hook}{where}"
