"""Handles SIGINT, SIGTERM and SIGHUP: the first one stops the run cleanly, the next exits at once.

A terminal that closes may send SIGHUP several times, so SIGHUP never exits at once. In a notebook
or a Python shell, the second SIGINT raises KeyboardInterrupt: an exit would lose all variables.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

PATIENCE_S = 4.0
"""How long a run may take to stop by itself after a signal, before it is broken off."""

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def exit_code(received: int | None) -> int:
    """Return the exit code of a program that was stopped by a signal; 0 for None."""
    return 128 + received if received is not None else 0


def _announce(line: str) -> None:
    """Write a line for the user, unless nobody can read it."""
    with contextlib.suppress(OSError, ValueError):  # the terminal is closed
        sys.stderr.write(f"{line}\n")


def _is_interactive() -> bool:
    """Whether the process is a notebook or a Python shell."""
    return hasattr(sys, "ps1")


class StopOnSignal:
    """In the ``with`` block, the first signal sets an event, and the second one exits the process.

    Does nothing outside the main thread, because Python allows no signal handlers there. Leaves
    SIGHUP alone if it is ignored, as `nohup` does.

    Args:
        stop: The event that the first signal sets.
        doing: What happens after the first signal, for the line that tells the user of it.
        saved: Returns a text that says what was saved, for the line of the second signal.
        can_break: Whether parts in a block ``breakable`` are broken off, ``PATIENCE_S`` after the
            first signal: they may be in an env that never returns. Uses SIGALRM.

    Attributes:
        received: The first signal; None before it.
    """

    def __init__(
        self,
        stop: threading.Event,
        doing: str = "stopping and saving a checkpoint",
        saved: Callable[[], str] = str,
        can_break: bool = False,
    ) -> None:
        self._stop = stop
        self.doing = doing
        self._saved = saved
        self._can_break = can_break
        self._is_breakable = False
        self._previous: dict[int, Any] = {}
        self._is_armed = False
        self.received: signal.Signals | None = None

    def __enter__(self) -> StopOnSignal:
        if threading.current_thread() is threading.main_thread():
            for number in _HANDLED:
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._previous[number] = signal.signal(number, self._handle)
            if self._can_break:
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
            if name is signal.SIGHUP:
                return
            if name is signal.SIGINT and _is_interactive():
                raise KeyboardInterrupt
            saved = self._saved()
            _announce(f"{name.name} again: exiting at once" + (saved and f"; {saved}"))
            # Not sys.exit: cleanup code could delay it, and the second signal must exit at once.
            os._exit(exit_code(name))
        self.received = name
        again = "interrupt again to stop" if _is_interactive() else "press Ctrl-C again to exit"
        _announce(f"{name.name}: {self.doing}; {again} at once")
        self._stop.set()
        if not self._is_armed:
            self.break_after(PATIENCE_S)

    def break_after(self, timeout_s: float) -> bool:
        """Break a part off after ``timeout_s`` seconds from now on, also without a signal.

        Returns:
            Whether that is possible: False outside the main thread and without ``can_break``.
        """
        if signal.SIGALRM not in self._previous:
            return False
        self._is_armed = True
        signal.setitimer(signal.ITIMER_REAL, timeout_s, timeout_s)
        return True

    @contextlib.contextmanager
    def breakable(self, timeout_s: float | None = None) -> Iterator[bool]:
        """In the block, a part that does not return in time after a signal is broken off.

        It ends by a KeyboardInterrupt. With ``timeout_s``, it is also broken off after that time.
        Yields whether a part can be broken off.
        """
        self._is_breakable = True
        try:
            yield timeout_s is None or self.break_after(timeout_s)
        finally:
            self._is_breakable = False

    def _break(self, number: int, frame: FrameType | None) -> None:
        if self._is_breakable:
            raise KeyboardInterrupt
