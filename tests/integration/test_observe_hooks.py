"""A plugin that only observes sees every phase of a run, and cannot break it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dingsdk
from dingsdk import hookimpl
from dingsdk.plugins import PluginManager, use_manager

SMALL = (
    "system.max_env_steps=600",
    "env.collector_env_num=4",
    "env.collector_episode_num=2",
    "env.n_evaluator_episode=2",
    "env.evaluator_env_num=2",
    "policy.learn.batch_size=16",
    "policy.collect.n_sample=64",
)
IN_BOTH_MODES = {
    "after_episode",
    "after_collect",
    "after_iter",
    "after_evaluate",
    "after_checkpoint",
}
IN_PARALLEL_MODE = {"before_task", "after_task"}


class Watcher:
    """Counts the calls of each hook."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.life: list[str] = []
        self.mean_returns: list[float] = []
        self.sources: set[str] = set()

    @hookimpl
    def dingsdk_configure(self, config: Any) -> None:
        self.life.append(f"configure {config['exp_name']}")

    @hookimpl
    def dingsdk_unconfigure(self) -> None:
        self.life.append("unconfigure")

    @hookimpl
    def dingsdk_run_started(self, config: Any, run_dir: Path) -> None:
        assert (run_dir / "config.yaml").is_file()
        self.life.append("started")

    @hookimpl
    def dingsdk_run_finished(self, run_dir: Path, result: Any) -> None:
        self.life.append(f"finished {result['reason']}")

    @hookimpl
    def dingsdk_before_task(self, worker_id: str, task: Any) -> None:
        self.seen["before_task"] += 1

    @hookimpl
    def dingsdk_after_task(self, worker_id: str, task: Any, outcome: Any) -> None:
        self.seen["after_task"] += 1

    @hookimpl
    def dingsdk_after_episode(self, source: str, episode_return: float) -> None:
        self.seen["after_episode"] += 1
        self.sources.add(source)

    @hookimpl
    def dingsdk_after_collect(self, source: str, sample_count: int) -> None:
        self.seen["after_collect"] += 1

    @hookimpl
    def dingsdk_after_iter(self, iteration: int, log_vars: Any) -> None:
        self.seen["after_iter"] += 1
        raise RuntimeError("an observer must not break a run")

    @hookimpl
    def dingsdk_after_evaluate(self, source: str, mean_return: float) -> None:
        self.seen["after_evaluate"] += 1
        self.mean_returns.append(mean_return)

    @hookimpl
    def dingsdk_after_checkpoint(self, path: Path, iteration: int) -> None:
        self.seen["after_checkpoint"] += 1


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    watcher, manager = Watcher(), PluginManager()
    manager.register_plugin(watcher, "watcher")
    with use_manager(manager):
        yield watcher


@pytest.mark.parametrize(
    ("mode", "expected", "sources"),
    [
        ("serial", IN_BOTH_MODES, {"collector", "evaluator"}),
        ("parallel", IN_BOTH_MODES | IN_PARALLEL_MODE, {"collector-0", "collector-1", "evaluator"}),
    ],
)
def test_observer_sees_every_phase_of_a_run(
    tmp_path: Path, watcher: Watcher, mode: Any, expected: set[str], sources: set[str]
) -> None:
    result = dingsdk.train("cartpole-dqn", mode=mode, sets=SMALL, output=tmp_path)

    assert set(watcher.seen) == expected
    assert watcher.sources == sources
    life = ["configure cartpole-dqn", "started", "finished limit", "unconfigure"]
    assert watcher.life == life
    assert watcher.seen["after_iter"] == result.train_iter
    assert watcher.mean_returns == [each.mean for each in result.evaluations]
