"""Logs grow with the time of a run, not with its speed."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from dingsdk import train
from dingsdk.worker import run_logger
from tests.tensorboard_events import read_events

from .short_runs import QUICK

FREE = 10
EACH_TIME = (
    "policy.learn.learner.hook.log_show_after_iter=1",
    "policy.collect.collector.collect_print_freq=1",
    "policy.eval.evaluator.eval_freq=2",
    "policy.eval.evaluator.eval_interval_s=null",
    "policy.other.replay_buffer.type=advanced",
    "policy.other.replay_buffer.monitor.sampled_data_attr.print_freq=1",
    "policy.other.replay_buffer.monitor.sampled_data_attr.average_range=1",
)


@pytest.mark.parametrize(
    ("mode", "transport", "changes"),
    [
        ("serial", "", EACH_TIME),
        (
            "parallel",
            "in_memory",
            (
                *EACH_TIME[:1],
                "policy.eval.evaluator.eval_freq=2",
                "policy.eval.evaluator.eval_interval_s=null",
            ),
        ),
    ],
)
def test_each_curve_and_table_has_some_free_logs_and_then_one_in_ten_seconds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    transport: str,
    changes: tuple[str, ...],
) -> None:
    monkeypatch.setattr(run_logger, "FREE_LOGS", FREE)
    sets = [*QUICK, *changes, "exp_name=run", "system.max_env_steps=100000"]
    run = train("cartpole-dqn", mode, transport or None, sets, 3, tmp_path)
    assert run.train_iter >= 200
    most = FREE + 2 + run.elapsed_s / run_logger.LOG_EVERY_S
    counts = Counter(
        (folder.name, tag)
        for folder in (tmp_path / "run" / "log").rglob("*_tb_logger")
        for tag, *_ in read_events(folder)
    )
    assert len(counts) > 20
    assert {name: count for name, count in counts.items() if count > most} == {}
    for path in (tmp_path / "run" / "log").rglob("*_logger.txt"):
        tables = re.findall(r"^-[-+]*-$", path.read_text(), re.MULTILINE)
        assert len(tables) <= most * 5, path  # a table has several parts
