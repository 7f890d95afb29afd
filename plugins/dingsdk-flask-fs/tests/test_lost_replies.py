"""Lost replies, dropped workers and restarted masters: repeated requests have one effect."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.errors import AuthError, ClosedError, WorkerLostError
from dingsdk.worker.comm import TaskAnswer, TaskMessage, WorkerInfo

from .conftest import Listener, Served
from .network import Proxy


@pytest.mark.parametrize("kind", ["join", "turn", "answer", "renew", "leave"])
def test_lost_reply_has_no_second_effect(served: Served, proxy: Proxy, kind: str) -> None:
    proxy.swallow = [f"/v1/{kind}".encode()] * (3 if kind == "join" else 1)
    end = served.slave(address=proxy.address)
    for n in range(1, 4):
        served.end.send("w0", 1, TaskMessage(f"t{n}", {"n": n}))
        task = end.next_task(5.0)
        assert task.task_id == f"t{n}"
        end.answer(TaskAnswer(task.task_id, True, {"n": n}))
        if kind == "answer":
            served.listener.expect(
                lambda events, n=n: ("answered", "w0", f"t{n}", {"n": n}) in events
            )
        end.renew(n)
    assert end.next_task(0.0) is None
    end.close()
    assert set(proxy.swallowed) == {f"/v1/{kind}".encode()}
    assert served.listener.of("joined") == [("w0",)]
    assert served.listener.of("answered") == [("w0", f"t{n}", {"n": n}) for n in range(1, 4)]
    assert [event[1] for event in served.listener.of("renewed")][-1] == 3
    assert served.listener.of("left") == [("w0", "it left")]


def test_answers_and_renewals_arrive_in_the_order_they_were_sent(served: Served) -> None:
    end = served.slave()
    for n in range(1, 51):
        end.answer(TaskAnswer(f"t{n}", True))
        if n % 10 == 0:
            end.renew(n)
    served.listener.expect(lambda events: len(events) == 56)
    order = [event[2] for event in served.listener.events if event[0] in ("answered", "renewed")]
    expected: list[Any] = []
    for n in range(1, 51):
        expected += [f"t{n}", n] if n % 10 == 0 else [f"t{n}"]
    assert order == expected
    end.close()


def test_answer_is_sent_without_another_call(served: Served) -> None:
    end = served.slave()
    end.answer(TaskAnswer("t1", True))
    served.listener.expect(lambda events: ("answered", "w0", "t1", {}) in events)
    end.close()


def test_dropped_worker_is_told_and_joins_as_a_new_incarnation(served: Served) -> None:
    end = served.slave()
    served.end.drop("w0", 1, "silent")
    for call in (lambda: end.next_task(1.0), lambda: end.answer(TaskAnswer("t", True))):
        with pytest.raises(WorkerLostError):
            call()
    with pytest.raises(WorkerLostError):
        end.renew(1)
    with pytest.raises(WorkerLostError):
        served.end.send("w0", 1, TaskMessage("t1", {}))
    end.join(WorkerInfo("w0", "collector"), 5.0)
    served.end.send("w0", 2, TaskMessage("t1", {}))
    assert end.next_task(5.0).task_id == "t1"
    assert served.listener.of("answered") == []
    end.close()


def test_drop_wakes_a_waiting_worker_at_once(served: Served) -> None:
    end = served.slave()
    timer = threading.Timer(0.2, served.end.drop, ("w0", 1, "silent"))
    timer.start()
    started = time.monotonic()
    with pytest.raises(WorkerLostError):
        end.next_task(20.0)
    assert time.monotonic() - started < 5.0
    timer.join()
    end.close()


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
