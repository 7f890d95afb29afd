"""``bench_env`` measures real env managers and chooses a fast one."""

from __future__ import annotations

import importlib
import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from dingsdk.cli import main
from dingsdk.envs import EnvSpeed, bench_env
from dingsdk.envs.bench import (
    FIRST_TURNS,
    KINDS,
    TURNS,
    _measure,
    _memory_bytes,
    _most_envs,
    step_for,
)
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


def test_config_lines_select_the_measured_manager() -> None:
    lines = EnvSpeed("subprocess", 32, 1.0).config
    assert yaml.safe_load(lines) == {
        "env": {"collector_env_num": 32},
        "env_manager": {"type": "subprocess"},
    }


def test_manager_that_cannot_step_the_env_is_listed_with_its_error() -> None:
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


def test_slow_envs_are_made_in_smaller_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("dingsdk.envs.bench.time", clock)

    def make_slow() -> Any:
        now[0] += 0.125
        return importlib.import_module("checked_envs").Good()

    assert _most_envs(make_slow) == 16


def test_memory_bytes_counts_memory_in_use() -> None:
    before = _memory_bytes()
    # Not from numpy, which may be given memory that an earlier test has freed.
    with mmap.mmap(-1, 64 << 20) as block:
        block.write(bytes(len(block)))
        assert _memory_bytes() - before >= len(block) // 2


def test_speed_of_a_manager_is_its_best_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([30.0, 40.0, 20.0, 10.0])
    monkeypatch.setattr("dingsdk.envs.bench.step_for", lambda manager, seconds: next(found))
    good = importlib.import_module("checked_envs").Good
    kinds = _measure("in_process", None, good, [1, 2], float("inf"))
    assert [(each.env_num, each.steps_per_s) for each in kinds] == [(2, 40.0), (1, 20.0)]


class Bench:
    """Replaces the clock and the measured speeds of one manager with given values.

    Args:
        first: Steps per second by number of envs, in the search.
        last: The same in the final comparison, one per turn; the last value is repeated.
        turn_s: Seconds that a turn takes on the clock.
    """

    def __init__(
        self, first: dict[int, float], last: dict[int, list[float]], turn_s: float = 0.0
    ) -> None:
        self.first, self.last, self.turn_s = first, last, turn_s
        self.now = 100.0
        self.turns: list[int] = []
        self.managers: dict[Any, None] = {}

    def perf_counter(self) -> float:
        return self.now

    def step_for(self, manager: Any, seconds: float) -> float:
        self.now += self.turn_s
        self.managers[manager] = None
        count = manager.env_num
        self.turns.append(count)
        if self.turns.count(count) <= FIRST_TURNS:
            return self.first[count]
        speeds = self.last[count]
        return speeds.pop(0) if len(speeds) > 1 else speeds[0]

    def run(self, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[tuple[str, int, float]]]:
        """Run ``bench_env`` for 10 s. Return the chosen number of envs and all results."""
        for name, value in {
            "time": self,
            "step_for": self.step_for,
            "KINDS": ("in_process",),
            "_most_envs": lambda env_fn: max(self.first),
            "_waits": lambda env_fn: False,
        }.items():
            monkeypatch.setattr(f"dingsdk.envs.bench.{name}", value)
        best, found = bench_env(importlib.import_module("checked_envs").Good, seconds=10)
        assert all(manager.closed for manager in self.managers)
        return best.env_num, [(each.manager, each.env_num, each.steps_per_s) for each in found]


def test_fewest_envs_with_nearly_the_best_speed_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last = {4: [70.0, 100.0, 60.0], 2: [97.0, 1.0], 1: [96.9, 1.0]}
    bench = Bench({4: 50, 2: 50, 1: 50}, last)
    best, found = bench.run(monkeypatch)
    assert best == 2
    assert found == [
        ("in_process", 4, 100.0),
        ("in_process", 2, 97.0),
        ("in_process", 1, 96.9),
    ]
    assert [bench.turns.count(count) for count in (4, 2, 1)] == [FIRST_TURNS + TURNS] * 3


def test_fewer_envs_are_not_tried_once_the_speed_has_fallen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = {16: 90.0, 8: 100.0, 4: 80.0, 2: 79.0, 1: 1000.0}
    _, found = Bench(first, {count: [1.0] for count in first}).run(monkeypatch)
    assert {count for _, count, _ in found} == {16, 8, 4, 2}


def test_search_and_comparison_end_when_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search starts no choice after more than 6 of 10 s; the comparison ends after 10 s."""
    speeds = dict.fromkeys((1, 2, 4, 8, 16), 1.0)
    bench = Bench(speeds, {count: [1.0] for count in speeds}, turn_s=1.0)
    _, found = bench.run(monkeypatch)
    # A choice of the search takes 2 s, so the fourth begins after 6 s.
    assert {count for _, count, _ in found} == {16, 8, 4, 2}
    assert bench.turns == [16, 16, 8, 8, 4, 4, 2, 2, 16, 8, 4, 2]


def test_steps_without_a_transition_do_not_count() -> None:
    good = importlib.import_module("checked_envs").Good
    with InProcessEnvManager({"episode_num": 1}, [good, good]) as manager:
        manager.launch()
        for _ in range(7):
            manager.step_batch(np.zeros(2, np.int64))
        assert manager.done
        assert step_for(manager, 0.01) == 0


@pytest.mark.slow
def test_processes_with_one_env_each_are_advised_for_an_env_that_waits() -> None:
    best, found = bench_env("checked_envs:Waiting", seconds=8)
    assert (best.manager, best.envs_per_process) == ("subprocess", 1)
    assert best.env_num > 2
    assert yaml.safe_load(best.config)["env_manager"] == {
        "type": "subprocess",
        "envs_per_process": 1,
    }
    assert {each.manager for each in found} == set(KINDS)


@pytest.mark.slow
def test_command_prints_speeds_and_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["bench-env", "checked_envs:Good", "--kwargs", "{length: 3}", "--seconds", "1"]) == 0
    )
    table, _, config = capsys.readouterr().out.partition("\nFor the config:\n\n")
    assert "env steps/s" in table
    assert all(kind in table for kind in KINDS)
    assert yaml.safe_load(config)["env_manager"]["type"] in KINDS
    assert main(["bench-env", "checked_envs:Absent"]) == 2
