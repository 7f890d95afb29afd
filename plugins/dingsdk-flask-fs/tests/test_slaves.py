"""The named slaves over HTTP, and a worker whose master stops answering."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from dingsdk_flask_fs.slaves import CollectorSlave, LearnerSlave
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.errors import ClosedError, ConfigError, TaskFailedError
from dingsdk.worker import create_comm_collector
from dingsdk.worker.comm import Master, Slave, WorkerInfo
from dingsdk.worker.comm.requests import slave_end

TASK = {"task_id": "a", "buffer_id": "b"}
COLLECTOR = {
    "deal_with_resource": lambda: {"gpu": 0},
    "deal_with_collector_start": lambda info: {"started": info["task_id"]},
    "deal_with_collector_data": lambda: {"data_id": "d1", "task_id": "mine"},
    "deal_with_collector_close": lambda: {"closed": True},
}
LEARNER = {
    "deal_with_resource": lambda: {"gpu": 1},
    "deal_with_learner_start": lambda info: {"started": info["task_id"]},
    "deal_with_learner_learn": lambda data: {"learned": data},
    "deal_with_learner_close": lambda: None,
}


def master_of(transport: FlaskFSTransport) -> Master:
    master = Master(
        transport.master_end(),
        transport.scheduler,
        on_join=lambda info: None,
        on_renew=lambda worker_id: None,
        on_lost=lambda info, reason: None,
    )
    master.start()
    return master


@pytest.mark.parametrize(
    ("slave_class", "callbacks", "tasks"),
    [
        (
            CollectorSlave,
            COLLECTOR,
            [
                ({"name": "resource"}, {"gpu": 0}),
                ({"name": "collector_start_task", "task_info": TASK}, {"started": "a"}),
                (
                    {"name": "collector_data_task"},
                    {"data_id": "d1", "task_id": "mine", "buffer_id": "b"},
                ),
                ({"name": "collector_close_task"}, {"closed": True, **TASK}),
            ],
        ),
        (
            LearnerSlave,
            LEARNER,
            [
                ({"name": "resource"}, {"gpu": 1}),
                ({"name": "learner_start_task", "task_info": TASK}, {"started": "a"}),
                ({"name": "learner_learn_task", "data": [1]}, {"learned": [1], **TASK}),
                ({"name": "learner_close_task"}, TASK),
            ],
        ),
    ],
)
def test_named_slave_serves_its_tasks(
    transport: FlaskFSTransport, slave_class: Any, callbacks: Any, tasks: Any
) -> None:
    master = master_of(transport)
    info = WorkerInfo("w0", "collector")
    with pytest.raises(ValueError, match="deal_with_resource"):
        slave_class(transport, info, callback_fn={})
    slave = slave_class(transport, info, callback_fn=callbacks)
    slave.start(master.address, 5.0)
    for task, result in tasks:
        assert master.ask("w0", task, 5.0) == result
    with pytest.raises(TaskFailedError) as caught:
        master.ask("w0", {"name": "nonsense"}, 5.0)
    assert caught.value.result == {"message": "task name error"}
    assert slave.close()
    master.close()


def test_answer_is_sent_while_the_next_task_is_served(
    transport: FlaskFSTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a wake-up the sender thread would check for answers only after this time: too late.
    monkeypatch.setattr(slave_end, "PRESENCE_S", 60.0)
    served, may_answer, may_end = threading.Event(), threading.Event(), threading.Event()

    def first(task: Any) -> None:
        served.set()
        may_answer.wait(5.0)

    master = master_of(transport)
    slave = Slave(
        transport,
        WorkerInfo("w0", "collector"),
        callback_fn={"first": first, "second": lambda task: {"waited": may_end.wait(20.0)}},
    )
    slave.start(master.address)
    kept_busy = master.new_task("w0", {"name": "first"}).start()
    assert served.wait(5.0)
    # The worker gets both tasks in its next request.
    quick = master.new_task("w0", {"name": "nothing"}).start()
    slow = master.new_task("w0", {"name": "second"}).start()
    may_answer.set()
    kept_busy.join(5.0)
    quick.join(10.0)
    may_end.set()
    assert slow.value(5.0) == {"waited": True}
    slave.close()
    master.close()


def test_worker_closes_in_time_while_its_master_hangs(transport: FlaskFSTransport) -> None:
    master = master_of(transport)
    collector = create_comm_collector(
        {"type": "flask_fs"}, transport=transport, worker_id="collector-0"
    )
    collector.start(master.address, 5.0)
    waiting, stop = threading.Event(), threading.Event()

    def never() -> bool:
        waiting.set()
        return False

    collector.start_job(lambda: stop.wait(20.0) and None, stop.set, "job")
    server = master._end._server
    server._is_stopped = True
    server._server.pull_trigger()
    server._loop.join(5.0)

    def serve() -> None:
        with contextlib.suppress(ClosedError), collector.condition:
            collector.task_wait(never, 30.0)

    task = threading.Thread(target=serve, daemon=True)
    task.start()
    assert waiting.wait(5.0)
    threading.Event().wait(1.5)  # wait until a renewal hangs
    started = time.monotonic()
    collector.close()
    assert time.monotonic() - started < 5.0
    task.join(5.0)
    master.close(1.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("port", "7235"),
        ("threads", 1),
        ("max_connections", 0),
        ("max_message_bytes", 10),
        ("lost_after_s", 0),
        ("request_timeout_s", "soon"),
        ("digest", "md5"),
    ],
)
def test_config_value_that_cannot_work_is_named(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        FlaskFSTransport({key: value}, tmp_path)
    assert caught.value.path == f"system.transport.{key}"
