"""Deadlines for what may never come: the end of a call to code of others, the rest of a message."""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

CLOSE_S = 10.0
"""How long a part may take to close; more than env managers take to end their processes."""
_log = logging.getLogger(__name__)


def returns_within(timeout_s: float, call: Callable[[], object]) -> bool:
    """Call in a thread of its own; return whether that returned in time, else leave it behind.

    Raises:
        Exception: what ``call`` raised in time.
    """
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
    """Let a read or a write of a pipe or a socket fail after so long without a byte.

    It raises BlockingIOError, then, and of a message a part may have been read or written.

    Args:
        link: One that goes both ways, as of ``Pipe()``.
        seconds: 0 for any time.
    """
    time_value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(link.fileno())) as view:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            view.setsockopt(socket.SOL_SOCKET, option, time_value)


class Closable(Protocol):
    """What has a ``close()``."""

    def close(self) -> object:
        """Close it; may take any time."""


Part = TypeVar("Part", bound=Closable)


def close_in_time(close: Callable[[], object], path: str) -> None:
    """Call ``close`` of the part of a config section; leave it behind after ``CLOSE_S``."""
    if not returns_within(CLOSE_S, close):
        warn_of_left(path)


def warn_of_left(path: str, part: str = "") -> None:
    """Log that the part of a config section is left behind; ``part`` is which one of it."""
    where = path + (part and f", in {part}")
    _log.warning("close() of %s did not return in time; it is left behind", where)


@contextmanager
def closing_in_time(part: Part, path: str) -> Iterator[Part]:
    """Close the part at the end, as ``close_in_time``."""
    try:
        yield part
    finally:
        close_in_time(part.close, path)
