"""A collector on a full disk waits, reports nothing, and can still be closed."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from dingsdk.pipeline.parallel import worker_config
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.worker import make_transport
from dingsdk.policy import create_policy
from dingsdk.worker.comm import Master
from dingsdk.worker.commander.tasks import collector_task
from dingsdk.worker.coordinator import create_role

SETS = ("env.collector_env_num=2", "policy.collect.n_sample=8")


def test_collector_without_room_reports_nothing_and_closes_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = compile_run("cartpole-dqn", "parallel", "flask_fs", SETS, 3)
    cfg = worker_config(cfg, tmp_path)
    learner_side = make_transport(cfg, tmp_path)
    model = create_policy(cfg["policy"], enable_field=["learn"]).learn_mode.state_dict()["model"]
    learner_side.policy_store().publish("policy", model, 0)
    cfg.system.transport.min_free_bytes = 1 << 49
    transport = make_transport(cfg, tmp_path)
    master = Master(
        transport.master_end(),
        transport.scheduler,
        on_join=lambda info: None,
        on_renew=lambda worker_id: None,
        on_lost=lambda info, reason: None,
    )
    collector = create_role("collector", cfg).create_worker(transport, "w0")
    collector.start(master.start())
    task = collector_task(cfg, "t", "b", "policy", number=0, collect_setting={"eps": 0.5})
    master.ask("w0", {"name": "collector_start_task", "task_info": task}, 30.0)
    deadline, pause = time.monotonic() + 20.0, threading.Event()
    while "trying again" not in caplog.text:
        assert time.monotonic() < deadline
        pause.wait(0.02)
    answer = master.ask("w0", {"name": "collector_data_task"}, 10.0)
    assert [report for report in answer["reports"] if "data_id" in report] == []
    assert not answer["has_ended"]
    started = time.monotonic()
    collector.close()
    assert time.monotonic() - started < 5.0
    assert len(learner_side.data_store()) == 0
    for each in (master, transport, learner_side):
        each.close()
