"""One lost reply is tolerated; after lasting silence the master is lost and all calls end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.errors import ClosedError, WorkerLostError
from dingsdk.testing import Fault, FaultProxy
from dingsdk.worker.comm import TaskMessage

from .conftest import Served
from .network import Proxy

LOST_AFTER_S = 0.9
JOIN = [Fault.PASS, Fault.PASS]
"""A join takes two requests: the first learns the epoch."""


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[FlaskFSTransport]:
    made = FlaskFSTransport({"threads": 8, "lost_after_s": LOST_AFTER_S}, tmp_path / "run")
    yield made
    made.close()


def test_one_lost_reply_to_a_long_poll_does_not_lose_the_master(served: Served) -> None:
    with FaultProxy(served.address, [*JOIN, Fault.SWALLOW]) as proxy:
        end = served.slave(address=proxy.address)
        assert end.next_task(1.5 * LOST_AFTER_S) is None
        served.end.send("w0", 1, TaskMessage("t1", {}))
        assert end.next_task(5.0).task_id == "t1"
        end.close()
    assert served.listener.of("joined") == [("w0",)]


def test_one_lost_reply_to_a_renewal_does_not_lose_the_master(served: Served) -> None:
    with FaultProxy(served.address, [*JOIN, Fault.SWALLOW]) as proxy:
        end = served.slave(address=proxy.address)
        end.renew(1)
        assert ("w0", 1) in served.listener.of("renewed")
        end.close()


def test_time_without_requests_does_not_count_as_silence(served: Served) -> None:
    with FaultProxy(served.address, [*JOIN, Fault.LOSE_REPLY]) as proxy:
        end = served.slave(address=proxy.address)
        threading.Event().wait(1.2 * LOST_AFTER_S)  # simulates a long task
        assert end.next_task(0.2) is None
        end.close()


def test_master_is_lost_after_silence(served: Served) -> None:
    with FaultProxy(served.address) as proxy:
        end = served.slave(address=proxy.address)
        proxy.silence()
        started = time.monotonic()
        with pytest.raises(WorkerLostError, match="no sign of the master"):
            end.next_task(20.0)
        assert LOST_AFTER_S <= time.monotonic() - started < 4 * LOST_AFTER_S
        end.close()


def test_renewal_without_replies_ends_although_polls_succeed(served: Served) -> None:
    proxy = Proxy(served.port)
    end = served.slave(address=proxy.address)
    proxy.swallow = [b"/v1/renew"] * 1000
    raised: list[Any] = []

    def poll() -> None:
        try:
            while True:
                end.next_task(0.1)
        except (WorkerLostError, ClosedError) as error:
            raised.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    started = time.monotonic()
    with pytest.raises(WorkerLostError):
        end.renew(1)
    assert time.monotonic() - started < 5 * LOST_AFTER_S
    assert len(proxy.swallowed) < 100  # the worker pauses between tries
    thread.join(5.0)
    assert [type(error) for error in raised] == [WorkerLostError]
    end.close()
    proxy.close()
