"""Time limits for calls that may never return, and for messages that may never be complete."""

from __future__ import annotations

import logging
import numbers
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from dingsdk.errors import ConfigError, wrong_type

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

CLOSE_S = 10.0
"""How long a part may take to close; longer than env managers need to end their processes."""
_log = logging.getLogger(__name__)


def checked_timeout(timeout_s: Any) -> float:
    """Return seconds to wait: 0 for a negative number, and at most what a lock can wait.

    Raises:
        ConfigTypeError: it is not a number.
        ConfigError: it is NaN (also a ValueError), with which a wait would never end.
    """
    if type(timeout_s) is float and 0.0 <= timeout_s <= threading.TIMEOUT_MAX:
        return timeout_s  # most waits; the checks below take longer than some of them
    is_number = isinstance(timeout_s, numbers.Real)
    if not is_number or isinstance(timeout_s, bool):
        raise wrong_type("timeout_s", "a number of seconds", timeout_s)
    if timeout_s != timeout_s:
        raise ConfigError("timeout_s is nan; expected a number of seconds", path="timeout_s")
    return float(min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))


class Closing:
    """Base of classes that are closed at the end of a ``with`` block."""

    def close(self) -> object:
        """Release what it holds; idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def returns_within(timeout_s: float, call: Callable[[], object]) -> bool:
    """Run ``call`` in a new thread; return whether it returned in time.

    If it did not, the thread keeps running. When the interpreter is ending, ``call`` runs in the
    caller's thread, without a time limit.

    Raises:
        Exception: the exception of ``call``, if it was raised in time.
    """
    if sys.is_finalizing():
        # Other threads do not run any more: Python 3.11 would wait for the start of one forever.
        call()
        return True
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="close", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if raised:
        raise raised[0]
    return not thread.is_alive()


def set_patience(link: Connection, seconds: float) -> None:
    """Set how long a read or a write of a pipe or a socket waits for a byte.

    After that time it raises BlockingIOError. Part of a message may have been read or written.

    Args:
        link: A connection in both directions, as ``Pipe()`` returns.
        seconds: The time; 0 for no limit.
    """
    time_value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(link.fileno())) as view:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            view.setsockopt(socket.SOL_SOCKET, option, time_value)


def close_in_time(close: Callable[[], object], path: str) -> None:
    """Call ``close`` of a part; stop waiting after ``CLOSE_S``, and log that.

    Args:
        close: The function to call.
        path: Config path of the part, for the log.
    """
    if not returns_within(CLOSE_S, close):
        warn_of_left(path)


def warn_of_left(path: str, part: str = "") -> None:
    """Log that ``close()`` of a part did not return in time.

    Args:
        path: Config path of the part.
        part: Description of the plugin's part whose code hangs, if it is known.
    """
    where = path + (part and f", in {part}")
    _log.warning("close() of %s did not return in time; it is abandoned", where)
