"""``bench_env`` measures real env managers and chooses a fast one."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from dingsdk.envs import bench, bench_env
from dingsdk.envs.bench import KINDS, TURNS, step_for
from dingsdk.envs.in_process import InProcessEnvManager
from dingsdk.errors import EnvError, UnknownEnvError


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.mark.slow
def test_native_vector_env_beats_single_envs() -> None:
    best, found = bench_env("CartPole-v1", seconds=1)
    assert best.manager == "vector"
    assert best.env_num >= 16
    assert {each.manager for each in found} == set(KINDS)
    assert [each.steps_per_s for each in found] == sorted(
        (each.steps_per_s for each in found), reverse=True
    )


def test_manager_that_cannot_step_the_env_is_listed_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "COUNTS", (1, 2))
    monkeypatch.setattr(bench, "TURN_S", 0.01)
    good = importlib.import_module("checked_envs").Good
    lengths = set()

    def make(length: int) -> Any:
        lengths.add(length)
        return good(length)

    best, found = bench_env(make, {"length": 5}, seconds=1)

    lost = [each for each in found if each.manager == "subprocess"]
    assert lost
    assert all(best.steps_per_s > each.steps_per_s == 0 and each.error for each in lost)
    assert lengths == {5}


@pytest.mark.slow
def test_env_that_no_manager_can_step_is_refused() -> None:
    with pytest.raises(EnvError, match="no env manager can step this env: vector: "):
        bench_env("checked_envs:Words", seconds=1)
    with pytest.raises(UnknownEnvError):
        bench_env("checked_envs:Absent", seconds=1)


def measured(
    monkeypatch: pytest.MonkeyPatch,
    speeds: dict[int, list[float]],
    making_s: float,
    turn_s: float = 0.0,
) -> tuple[int, list[tuple[int, float]]]:
    """Return the chosen number of envs and all results of ``bench_env``, run for 10 s.

    Args:
        monkeypatch: Replaces the clock and the measured speeds of one manager.
        speeds: Steps per second by number of envs, one per turn.
        making_s: Seconds that it takes to make an env.
        turn_s: Seconds that a turn takes on the clock.
    """
    clock = [100.0]

    def step_for(manager: Any, seconds: float) -> float:
        clock[0] += turn_s
        return speeds[manager.env_num].pop(0)

    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(bench, "step_for", step_for)
    monkeypatch.setattr(bench, "KINDS", ("in_process",))
    monkeypatch.setattr(bench, "_probe", lambda env_fn: (making_s, False))
    best, found = bench_env(importlib.import_module("checked_envs").Good, seconds=10)
    return best.env_num, [(each.env_num, each.steps_per_s) for each in found]


def test_fewest_envs_with_nearly_the_best_speed_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The speed of a choice is that of its best turn, and envs slow to make are made in fewer."""
    speeds: dict[int, list[float]] = {4: [70, 100, 60], 2: [97, 1, 1], 1: [96.9, 1, 1]}
    assert measured(monkeypatch, speeds, 0.5) == (2, [(4, 100), (2, 97), (1, 96.9)])


def test_measurements_end_when_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = measured(monkeypatch, {n: [1.0] * TURNS for n in (1, 2, 4, 8, 16)}, 0.125, 1.0)
    # A choice takes 3 of the 10 s, so the fourth is the last one to begin.
    assert {count for count, _ in found} == {16, 8, 4, 2}


def test_steps_without_a_transition_do_not_count() -> None:
    good = importlib.import_module("checked_envs").Good
    with InProcessEnvManager({"episode_num": 1}, [good, good]) as manager:
        manager.launch()
        for _ in range(7):
            manager.step_batch(np.zeros(2, np.int64))
        assert manager.done
        assert step_for(manager, 0.01) == 0


@pytest.mark.slow
def test_threads_are_advised_for_an_env_that_waits() -> None:
    best, found = bench_env("checked_envs:Waiting", seconds=8)
    assert (best.manager, best.threads) == ("in_process", best.env_num)
    assert best.env_num > 2
    assert yaml.safe_load(best.config)["env_manager"] == {
        "type": "in_process",
        "threads": best.env_num,
    }
    assert {each.manager for each in found} == set(KINDS)
