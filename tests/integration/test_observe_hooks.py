"""A plugin is told about the begin and the end of a run and about what its collectors collect."""

from __future__ import annotations

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


class Watcher:
    """Records the phases of a run and the sources of its samples."""

    def __init__(self) -> None:
        self.life: list[str] = []
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
    def dingsdk_after_collect(self, source: str, sample_count: int) -> None:
        assert sample_count > 0
        self.sources.add(source)


@pytest.mark.parametrize(
    ("mode", "sources"),
    [("serial", {"collector"}), ("parallel", {"collector-0", "collector-1"})],
)
def test_observer_sees_the_phases_of_a_run(tmp_path: Path, mode: Any, sources: set[str]) -> None:
    watcher, manager = Watcher(), PluginManager()
    manager.register_plugin(watcher, "watcher")
    with use_manager(manager):
        dingsdk.train("cartpole-dqn", mode=mode, sets=SMALL, output=tmp_path)

    assert watcher.life == ["configure cartpole-dqn", "started", "finished limit", "unconfigure"]
    assert watcher.sources == sources
