"""When a learner reports for the first time."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import default_manager
from dingsdk.worker.comm import BaseCommLearner, Master
from dingsdk.worker.commander.tasks import learner_task
from dingsdk.worker.learner.hooks import LoadCkptHook
from dingsdk.worker.replay_buffer.home import Home

PATIENCE_S = 30.0
SETS = (
    "policy.collect.n_sample=32",
    "policy.learn.batch_size=8",
    "policy.learn.learner.hook.save_ckpt_after_run=true",
)


def test_first_report_of_a_resumed_learner_has_the_iteration_of_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = compile_run("cartpole-dqn", "parallel", "in_memory", SETS, 0)
    section = {"type": "in_memory", "concurrency": "threads"}
    load = LoadCkptHook.__call__

    def load_slowly(hook: LoadCkptHook, engine: Any) -> None:
        threading.Event().wait(4 * Home.exchange_s)
        load(hook, engine)

    with closing(default_manager().create("transports", section, tmp_path)) as transport:
        master = Master(transport.master_end(), transport.scheduler)
        learner = BaseCommLearner({}, transport, "l0")
        task = learner_task(cfg, "t", "b", "p", number=0)
        task["home"] = {"pace": None, "counts": None, "trained_rows": 0}

        def ask(name: str, **data: Any) -> Mapping[str, Any]:
            return master.ask("l0", {"name": name, **data}, PATIENCE_S)

        with closing(master), closing(learner):
            learner.start(master.start())
            ask("learner_start_task", task_info=task)
            learner._learner.last_iter.update(7)
            ask("learner_close_task")  # saves a checkpoint
            monkeypatch.setattr(LoadCkptHook, "__call__", load_slowly)
            ask("learner_start_task", task_info={**task, "resume": True})
            told = {"announcements": [], "confirmed": 0, "env_steps": 0}
            assert ask("learner_learn_task", data=told)["info"]["learner_step"] == 7
            ask("learner_close_task")
