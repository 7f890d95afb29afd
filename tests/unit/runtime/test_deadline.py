"""Time limits for calls that may never return and for messages that stop halfway."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from multiprocessing import Pipe

import pytest

from dingsdk.runtime import deadline
from dingsdk.runtime.deadline import (
    close_in_time,
    returns_within,
    set_patience,
)
from tests.programs import python

PATIENCE_S = 10.0
LEFT = "close() of some.key did not return in time; it is abandoned"


class Part:
    """Closes at once or, if ``hangs``, when ``go_on`` is set."""

    def __init__(self, hangs: bool = False) -> None:
        self.go_on = threading.Event()
        if not hangs:
            self.go_on.set()
        self.closes = 0
        self.thread: threading.Thread | None = None

    def close(self) -> None:
        self.thread = threading.current_thread()
        self.go_on.wait(PATIENCE_S)
        self.closes += 1


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Part]:
    monkeypatch.setattr(deadline, "CLOSE_S", 0.01)
    part = Part(hangs=True)
    yield part
    part.go_on.set()
    assert part.thread is not None
    part.thread.join(PATIENCE_S)
    assert part.closes == 1


def test_call_returns_when_the_interpreter_is_ending() -> None:
    code = """
from dingsdk.runtime.deadline import returns_within

class Part:
    within = staticmethod(returns_within)

    def __del__(self):
        print(self.within(60.0, lambda: print("closed")))

part = Part()
"""
    done = python("-c", code, check=True)
    assert done.stdout.split() == ["closed", "True"], done.stderr


def test_call_that_does_not_return_is_left_in_a_daemon_thread(
    hanging: Part,
) -> None:
    assert not returns_within(0.01, hanging.close)
    assert hanging.thread is not None
    assert hanging.thread.is_alive()
    assert hanging.thread.daemon


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_exception_of_a_call_is_raised(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        returns_within(PATIENCE_S, fail)
    assert caught.value is error


def test_only_a_part_that_does_not_close_in_time_is_logged(
    hanging: Part, caplog: pytest.LogCaptureFixture
) -> None:
    close_in_time(Part(hangs=False).close, "another.key")
    close_in_time(hanging.close, "some.key")
    assert caplog.messages == [LEFT]


def test_incomplete_send_and_incomplete_receive_time_out() -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        set_patience(ours, 0.02)
        with pytest.raises(BlockingIOError):
            ours.send_bytes(bytes(1 << 22))
    ours, theirs = Pipe()
    with ours, theirs:
        set_patience(ours, 0.02)
        os.write(theirs.fileno(), struct.pack("!i", 4) + b"do")
        with pytest.raises(BlockingIOError):
            ours.recv_bytes()
