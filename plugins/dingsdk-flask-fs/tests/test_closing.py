"""Closing at any moment ends in time, wakes all waiting calls, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time

import numpy as np
import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.data import SampleBatch
from dingsdk.errors import ClosedError
from dingsdk.testing import open_files
from dingsdk.worker.comm import Slave, TaskAnswer, TaskMessage, WorkerInfo
from dingsdk.worker.comm.files.data_store import FileDataStore
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
        served.end.close()
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


def test_worker_can_be_closed_by_its_own_task(served: Served) -> None:
    transport = served.transport
    closed: list[bool] = []
    slave = Slave(
        transport,
        WorkerInfo("w0", "collector"),
        callback_fn={"end": lambda task: closed.append(slave._joined().close() is None)},
    )
    slave.start(served.address, 5.0)
    served.end.send("w0", 1, TaskMessage("t1", {"name": "end"}))
    served.listener.expect(lambda events: ("left", "w0", "it left") in events)
    assert slave.close(5.0)
    assert closed == [True]


def test_stores_can_be_closed_while_files_are_written(transport: FlaskFSTransport) -> None:
    store = FileDataStore(transport.data_dir, is_durable=True)
    descriptors = open_files(collect=True)
    raised: list[BaseException] = []
    is_writing = threading.Barrier(5)

    def write(number: int) -> None:
        n = 0
        try:
            while True:
                store.put(f"w{number}-{n}", SampleBatch({"c": np.arange(1000)}))
                n += 1
                if n == 1:
                    is_writing.wait(5.0)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    is_writing.wait(5.0)
    started = time.monotonic()
    store.close()
    store.close()
    for thread in threads:
        thread.join(5.0)
    assert time.monotonic() - started < 5.0
    assert [type(error) for error in raised] == [ClosedError] * 4
    assert open_files() < descriptors
    again = FileDataStore(transport.data_dir)
    for data_id in again.ids():  # all stored payloads are complete
        assert len(again.get(data_id)) == 1000
    again.close()
    assert not list(transport.data_dir.rglob(".tmp-*"))
