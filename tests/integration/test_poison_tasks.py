"""Over flask_fs, a task whose workers are always killed is given up, and the run continues."""

from __future__ import annotations

import logging
import math
import os
import signal
from pathlib import Path

import pytest

from dingsdk.policy.threads import torch_threads
from dingsdk.worker.coordinator import TaskState

from .process_cluster import ProcessCluster


def evaluation(cluster: ProcessCluster) -> TaskState | None:
    tasks = cluster.coordinator.running_tasks()
    return next((task for task in tasks if task.is_evaluation), None)


@pytest.mark.slow
def test_evaluation_whose_workers_are_always_killed_is_given_up_and_training_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "dingsdk.worker.coordinator")
    ids = set()
    with torch_threads(1):
        # Long enough that each worker is killed in the middle.
        cluster = ProcessCluster(tmp_path / "run", ["env.n_evaluator_episode=1000000"])
        try:
            for attempt in (1, 2, 3):

                def is_running(attempt: int = attempt) -> bool:
                    task = evaluation(cluster)
                    return (
                        task is not None
                        and task.attempt == attempt
                        and task.began_at < math.inf
                        and task.worker is not None
                    )

                cluster.expect(is_running)
                task = evaluation(cluster)
                assert task is not None
                assert task.worker is not None
                ids.add(task.task_id)
                os.kill(cluster.pid(task.worker.worker_id), signal.SIGKILL)

            cluster.expect(lambda: "is given up" in caplog.text)
            cluster.expect_training()
        finally:
            cluster.close()

    assert len(ids) == 1
    given_up = [record.message for record in caplog.records if "is given up" in record.message]
    assert len(given_up) == 1
    assert "3 workers were lost over it" in given_up[0]
    assert ids.pop() in given_up[0]
