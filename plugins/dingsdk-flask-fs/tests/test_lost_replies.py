"""Lost replies, dropped workers and restarted masters: repeated requests have one effect."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.errors import AuthError, ClosedError, WorkerLostError
from dingsdk.worker.comm import WorkerInfo

from .conftest import SECRET, Listener, Served
from .network import Proxy


def test_renewal_without_replies_ends_although_polls_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", SECRET)
    transport = FlaskFSTransport({"threads": 8, "lost_after_s": 0.9}, tmp_path / "run")
    served = Served(transport)
    proxy = Proxy(served.port)
    end = served.slave(address=proxy.address)
    proxy.swallow = [b"/v1/renew"] * 1000
    raised: list[Exception] = []

    def poll() -> None:
        try:
            while True:
                end.next_task(0.1)
        except WorkerLostError as error:
            raised.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    started = time.monotonic()
    with pytest.raises(WorkerLostError):
        end.renew(1)
    assert time.monotonic() - started < 4.5
    assert len(proxy.swallowed) < 100  # the worker pauses between tries
    thread.join(5.0)
    assert len(raised) == 1
    proxy.close()
    transport.close()


def test_restarted_master_refuses_the_old_epoch_and_lets_the_worker_rejoin(
    served: Served, transport: FlaskFSTransport, tmp_path: Path
) -> None:
    end = served.slave()
    served.end.close()
    again = FlaskFSTransport({"port": served.port, "threads": 8}, tmp_path / "run")
    listener = Listener()
    master = again.master_end()
    master.open(listener)
    with pytest.raises((WorkerLostError, ClosedError)):
        _ask_until_told(end)
    assert listener.events == []
    end.join(WorkerInfo("w0", "collector"), 5.0)
    assert end._epoch == 2
    assert listener.events == [("joined", "w0")]
    end.close()
    again.close()


def _ask_until_told(end: Any) -> None:
    for _ in range(10):
        end.next_task(1.0)


def test_worker_with_another_secret_gets_a_clear_error(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", "another secret of good length")
    end = served.transport.slave_end(served.address)
    with pytest.raises(AuthError, match="secret is another one, or the clocks differ"):
        end.join(WorkerInfo("w0", "collector"), 5.0)
    assert served.listener.events == []
