"""Turns SIGINT and SIGTERM into a clean stop of the run, and a second one into an exit."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

PATIENCE_S = 4.0
"""How long a run may take to notice that it shall stop, before it is broken off."""

_HANDLED = (signal.SIGINT, signal.SIGTERM)


def exit_code(received: int | None) -> int:
    """Return the exit code of a program that a signal has stopped, 0 for None."""
    return 128 + received if received is not None else 0


def to_stderr(line: str) -> None:
    """Write a line for the user."""
    sys.stderr.write(f"{line}\n")


class StopOnSignal:
    """While the ``with`` block lasts, the first signal sets an event, the second one exits.

    Outside the main thread, where Python allows no handlers, it does nothing.

    Args:
        announce: Called with a line for the user at each signal; must not take a lock that
            the main thread may hold.
        doing: What the first signal leads to, for that line.
        saved: Returns what is saved so far, for the line of the second signal.
        may_break: Asked every ``PATIENCE_S`` after the first signal. Where it answers True, the
            main thread, which may be deep in an env that never ends, gets a KeyboardInterrupt.
            None for a main thread that notices by itself. Uses SIGALRM.

    Attributes:
        received: The first signal; None before it.
    """

    def __init__(
        self,
        stop: threading.Event,
        announce: Callable[[str], None] = to_stderr,
        doing: str = "stopping and saving a checkpoint",
        saved: Callable[[], str] = str,
        may_break: Callable[[], bool] | None = None,
    ) -> None:
        self._stop = stop
        self._announce = announce
        self.doing = doing
        self._saved = saved
        self._may_break = may_break
        self._previous: dict[int, Any] = {}
        self._is_armed = False
        self.received: signal.Signals | None = None

    def __enter__(self) -> StopOnSignal:
        if threading.current_thread() is threading.main_thread():
            for number in _HANDLED:
                self._previous[number] = signal.signal(number, self._handle)
            if self._may_break is not None:
                self._previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._break)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        if signal.SIGALRM in self._previous:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number)
        if self.received is not None:
            saved = self._saved()
            self._announce(f"{name.name} again: exiting at once" + (saved and f"; {saved}"))
            # Not sys.exit: the point of the second signal is that nothing may hold it up.
            os._exit(exit_code(name))
        self.received = name
        self._announce(f"{name.name}: {self.doing}; press Ctrl-C again to exit at once")
        self._stop.set()
        if not self._is_armed:
            self.break_after(PATIENCE_S)

    def break_after(self, timeout_s: float) -> bool:
        """Ask ``may_break`` after so many seconds too, signal or not, and again after as many.

        Returns:
            Whether that is possible in this thread.
        """
        if signal.SIGALRM not in self._previous:
            return False
        self._is_armed = True
        signal.setitimer(signal.ITIMER_REAL, timeout_s, timeout_s)
        return True

    def _break(self, number: int, frame: FrameType | None) -> None:
        if self._may_break is not None and self._may_break():
            raise KeyboardInterrupt
