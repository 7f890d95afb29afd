"""The named slaves over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from dingsdk_flask_fs.slaves import CollectorSlave, LearnerSlave
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.errors import TaskFailedError
from dingsdk.worker.comm import Master, WorkerInfo

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
    master = Master(transport.master_end(), transport.scheduler)
    master.start()
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
