"""Closing at any moment ends in time, wakes all waiting calls, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.errors import ClosedError
from dingsdk.worker.comm import TaskAnswer, WorkerInfo
from dingsdk.worker.comm.requests import transport as request_transport

from .conftest import AN_ANSWER, Served


def test_close_ends_a_join_that_finds_no_master(transport: FlaskFSTransport) -> None:
    end = transport.slave_end("http://127.0.0.1:9")
    timer = threading.Timer(0.2, end.close)
    timer.start()
    started = time.monotonic()
    with pytest.raises(ClosedError):
        end.join(WorkerInfo("w0", "collector"), 30.0)
    assert time.monotonic() - started < 3.0
    timer.join()


def test_listener_can_close_the_master(served: Served) -> None:
    """The listener calls close() in the thread that serves the request."""
    is_closed = threading.Event()

    def answered(worker_id: str, answer: TaskAnswer) -> None:
        served.end.close(1.0)
        is_closed.set()

    served.listener.task_answered = answered  # type: ignore[method-assign]
    peer = served.peer()
    peer.join()
    with contextlib.suppress(OSError, http.client.HTTPException):  # the master may not answer
        peer.call("answer", {"answers": [AN_ANSWER]})
    assert is_closed.wait(5.0)


def test_close_waits_for_the_running_request(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_transport, "TELL_S", 0.1)
    is_asked, may_answer = threading.Event(), threading.Event()

    def answered(worker_id: str, answer: TaskAnswer) -> None:
        is_asked.set()
        may_answer.wait(20.0)

    served.listener.task_answered = answered  # type: ignore[method-assign]
    peer = served.peer()
    peer.join()

    def ask() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            peer.call("answer", {"answers": [AN_ANSWER]})

    asking = threading.Thread(target=ask)
    closing = threading.Thread(target=served.end.close, args=(30.0,))
    asking.start()
    assert is_asked.wait(10.0)
    timer = threading.Timer(1.0, may_answer.set)
    timer.start()
    closing.start()
    for thread in (timer, closing, asking):
        thread.join(20.0)
        assert not thread.is_alive()
    assert "did not end" not in caplog.text
