"""The observe hooks as typed methods; what an observer raises is logged and goes no further.

A call that no plugin listens to only compares an empty list, so that callers need no guard of
their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec

import pluggy

from dingsdk.plugins import hookspecs
from dingsdk.plugins.answers import describe

P = ParamSpec("P")

_logger = logging.getLogger(__name__)


def _broadcast(spec: Callable[P, None]) -> Callable[Concatenate[Observers, P], None]:
    """Return a method that calls every implementation of a hook, by keyword arguments."""
    name = spec.__name__

    def fire(self: Observers, **facts: object) -> None:
        if impls := getattr(self._hook, name).get_hookimpls():
            # pluggy's own loop ends at the first exception; here every observer has its turn.
            for impl in reversed(impls):
                self._call(impl, facts)

    fire.__doc__ = spec.__doc__
    return fire  # type: ignore[return-value]


class Observers:
    """Broadcasts to every loaded plugin; may be called from any thread.

    Args:
        hook: The relay of the plugin manager.
    """

    run_started = _broadcast(hookspecs.dingsdk_run_started)
    run_finished = _broadcast(hookspecs.dingsdk_run_finished)
    before_task = _broadcast(hookspecs.dingsdk_before_task)
    after_task = _broadcast(hookspecs.dingsdk_after_task)
    after_episode = _broadcast(hookspecs.dingsdk_after_episode)
    after_collect = _broadcast(hookspecs.dingsdk_after_collect)
    after_iter = _broadcast(hookspecs.dingsdk_after_iter)
    after_evaluate = _broadcast(hookspecs.dingsdk_after_evaluate)
    after_checkpoint = _broadcast(hookspecs.dingsdk_after_checkpoint)
    pace_changed = _broadcast(hookspecs.dingsdk_pace_changed)
    connection_lost = _broadcast(hookspecs.dingsdk_connection_lost)

    def __init__(self, hook: pluggy.HookRelay) -> None:
        self._hook = hook
        self._blamed: set[tuple[str, str]] = set()

    def has_listener(self, name: str) -> bool:
        """Whether a plugin listens to a hook, for callers with many calls to make."""
        return bool(getattr(self._hook, f"dingsdk_{name}").get_hookimpls())

    def _call(self, impl: pluggy.HookImpl, facts: Mapping[str, object]) -> None:
        """Call one hookimpl with what it names of ``facts``, the hook's arguments by name.

        What it raises is logged, with a traceback the first time per plugin and hook.
        """
        function: Callable[..., object] = impl.function
        try:
            function(*(facts[name] for name in impl.argnames))
        except Exception as error:
            blame = (impl.plugin_name, function.__name__)
            is_first = blame not in self._blamed
            self._blamed.add(blame)
            _logger.log(
                logging.ERROR if is_first else logging.DEBUG,
                "%s failed: %s: %s",
                describe(impl, function.__name__, error),
                type(error).__name__,
                error,
                exc_info=is_first,
            )
