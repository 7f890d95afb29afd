"""What a parallel run records: curves, evaluations and the best weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dingsdk.pipeline.context import RunContext
from dingsdk.pipeline.parallel_results import (
    ParallelResults,
    _statistics_of,
    _status_of,
    write_collected,
    write_paces,
)
from dingsdk.pipeline.run_folder import find_checkpoints
from dingsdk.worker.commander.base import PlayerProgress
from dingsdk.worker.learner.checkpoint import load_checkpoint
from dingsdk.worker.run_logger import build_tb_logger
from tests.own_plugins import plugin_of, using
from tests.tensorboard_events import curves_of, read_events
from tests.unit.pipeline.coordinators import status


def test_paces_and_policy_lag_are_written_at_the_env_step(tmp_path: Path) -> None:
    with closing(build_tb_logger(tmp_path, "coordinator")) as tb_logger:
        write_paces(tb_logger, status())
    assert sorted(read_events(tmp_path / "coordinator_tb_logger")) == [
        ("pace/c0", 10, 50.0),
        ("pace/e0", 10, 30.0),
        ("policy_lag/largest", 10, 2.0),
        ("policy_lag/mean", 10, 0.25),
        ("policy_lag/p99", 10, 1.0),
        ("relative_pace/c0", 10, 0.5),
    ]


def test_collecting_tasks_write_the_same_curves_as_serial_mode(tmp_path: Path) -> None:
    finished = {
        "reward_raw": [1.0, 3.0],
        "step_count": 40,
        "avg_step_per_episode": 15.0,  # some of the steps are of unfinished episodes
        "sample_count": 80,
        "duration": 2.0,
        "collect_setting": {"eps": 0.5, "name": "linear"},
    }
    games = {
        **finished,
        "game_result": [["wins", "losses"], ["wins", "draws"], []],
        "player_returns": [[1.0, 3.0], [-1.0, -3.0]],
    }
    with closing(build_tb_logger(tmp_path, "coordinator")) as tb_logger:
        write_collected(tb_logger, finished, status(), {"past_players": 3.0})
        write_collected(tb_logger, {"step_count": 4}, status(), {})  # no episode ended
        write_collected(tb_logger, games, status(), {})
    found = list(read_events(tmp_path / "coordinator_tb_logger"))
    assert {tag for tag, _, _ in found} >= {
        "collector_iter/reward_mean",
        "collector_iter/total_envstep_count",
        "collector_iter/eps",
    }
    assert {step for tag, step, _ in found if "_iter/" in tag} == {7}
    assert {step for tag, step, _ in found if "_step/" in tag} == {10}
    values = {tag: value for tag, _, value in reversed(found)}  # values of the first task
    assert values["collector_step/reward_mean"] == 2.0
    assert values["collector_step/avg_envstep_per_episode"] == 15.0
    assert values["collector_step/avg_episode_per_sec"] == 1.0
    assert values["collector_step/total_episode_count"] == 12
    samples = [v for tag, _, v in found if tag == "collector_step/avg_train_sample_per_sec"]
    assert samples == [40, 0, 40]
    assert [tag for tag, _, _ in found].count("collector_step/reward_mean") == 1
    assert "collector_step/name" not in values
    by_player = [
        values[f"collector_step/reward{player}_{key}"]
        for player in (0, 1)
        for key in ("mean", "std", "max", "min")
    ]
    assert by_player == [2, 1, 3, 1, -2, 1, -1, -3]
    shares = [values[f"collector_step/share_of_{name}"] for name in ("wins", "draws", "losses")]
    assert shares == [0.5, 0.25, 0.25]
    assert values["commander_step/past_players"] == 3.0


def test_evaluations_are_reported_and_the_best_policy_is_saved(tmp_path: Path) -> None:
    told: list[Any] = []
    noted: list[Mapping[str, Any]] = []

    def told_of(source: str, mean_return: float, train_iter: int, envstep: int) -> None:
        told.append((source, mean_return, train_iter, envstep))

    section = SimpleNamespace(storage_timeout_s=1.0)
    cfg = SimpleNamespace(system=SimpleNamespace(coordinator=section), env={})
    context = RunContext(cfg=cfg, run_dir=tmp_path)
    with ExitStack() as stack, using(plugin_of(after_evaluate=told_of)):
        results = ParallelResults(context, stack)
        results.coordinator = SimpleNamespace(  # type: ignore[assignment]
            note_evaluation=noted.append
        )
        for train_iter, returns in ((1, [2.0, 4.0]), (2, []), (3, [1.0, 3.0])):
            info = {"reward_raw": returns, "train_iter": train_iter, "env_steps": 10}
            info["task_id"] = "t1"
            results.evaluated(info, {"w": np.full(2, train_iter)})
    assert told == [("t1", 3.0, 1, 10), ("t1", 2.0, 3, 10)]
    assert [each["mean"] for each in noted] == [3.0, 2.0]
    assert list(find_checkpoints(tmp_path)) == ["best"]
    best = load_checkpoint(find_checkpoints(tmp_path)["best"])
    assert (best.iteration, best.envstep, best.state["model"]["w"].tolist()) == (1, 10, [1, 1])
    assert curves_of(tmp_path)["evaluator_step/reward_mean"] == [(10, 3.0), (10, 2.0)]


def test_statistics_and_progress_are_separated_by_player() -> None:
    statistics = {"win_rate": 0.5, "b/win_rate": 0.75, "c/loss": 1.0, "pool/size": 3.0}
    players = ["a", "b", "c"]
    assert _statistics_of("b", players, statistics) == {"win_rate": 0.75}
    assert _statistics_of(None, players, statistics) == {"win_rate": 0.5, "pool/size": 3.0}
    alone = status()
    several = dataclasses.replace(
        alone, players={"a": PlayerProgress(3, 40, 7, 30), "b": PlayerProgress(5, 60, 8, 50)}
    )
    for player, expected in ((None, (3, 40, 7, 30)), ("a", (3, 40, 7, 30)), ("b", (5, 60, 8, 50))):
        found = _status_of(player, several)
        counts = (found.train_iter, found.env_steps, found.episodes, found.samples.collected)
        assert counts == expected
    assert _status_of("a", alone) is alone
