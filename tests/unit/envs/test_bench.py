"""``bench_env`` measures real env managers and chooses a fast one."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from dingsdk.cli import main
from dingsdk.envs import EnvSpeed, bench_env
from dingsdk.envs.bench import KINDS, _finalists, _measure_kind, _memory_bytes, _most_envs, step_for
from dingsdk.envs.in_process import InProcessEnvManager
from dingsdk.errors import EnvError, UnknownEnvError


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def speeds(*values: float, kinds: str = "abab") -> list[EnvSpeed]:
    return [EnvSpeed(kind, 1, value) for kind, value in zip(kinds, values, strict=False)]


@pytest.mark.slow
def test_native_vector_env_beats_single_envs() -> None:
    best, found = bench_env("CartPole-v1", seconds=1)
    assert best.manager == "vector"
    assert best.env_num >= 16
    assert {each.manager for each in found} == set(KINDS)
    assert [each.steps_per_s for each in found] == sorted(
        (each.steps_per_s for each in found), reverse=True
    )


def test_lines_for_the_config_choose_what_was_found() -> None:
    lines = EnvSpeed("subprocess", 32, 1.0).config
    assert yaml.safe_load(lines) == {
        "env": {"collector_env_num": 32},
        "env_manager": {"type": "subprocess"},
    }


def test_manager_that_cannot_step_the_env_is_left_out_with_the_reason() -> None:
    good = importlib.import_module("checked_envs").Good
    lengths = set()

    def make(length: int) -> Any:
        lengths.add(length)
        return good(length)

    best, found = bench_env(make, {"length": 5}, seconds=1)

    (lost,) = (each for each in found if each.manager == "subprocess")
    assert best.steps_per_s > lost.steps_per_s == 0
    assert lost.error
    assert lengths == {5}


@pytest.mark.slow
def test_env_that_nothing_can_step_is_refused() -> None:
    with pytest.raises(EnvError, match="no env manager can step this env: vector: "):
        bench_env("checked_envs:Words", seconds=1)
    with pytest.raises(UnknownEnvError):
        bench_env("checked_envs:Absent", seconds=1)


def test_envs_are_as_many_as_can_be_made_in_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("dingsdk.envs.bench.time", clock)

    def make_slow() -> Any:
        now[0] += 0.125
        return importlib.import_module("checked_envs").Good()

    assert _most_envs(make_slow) == 16


def test_memory_of_envs_is_what_is_in_use() -> None:
    before = _memory_bytes()
    block = np.ones(64 << 20, np.uint8)
    assert _memory_bytes() - before >= block.nbytes // 2


def test_speed_of_a_manager_is_its_best_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([30.0, 40.0, 20.0, 10.0])
    monkeypatch.setattr("dingsdk.envs.bench.step_for", lambda manager, seconds: next(found))
    good = importlib.import_module("checked_envs").Good
    kinds = _measure_kind("in_process", good, [1, 2], float("inf"))
    assert [(each.env_num, each.steps_per_s) for each in kinds] == [(2, 40.0), (1, 20.0)]


def test_best_of_each_manager_is_compared_again_unless_it_is_hopeless() -> None:
    found = speeds(9, 10, 8, 7, 5, 3, kinds="aaaabc")
    assert sorted(each.steps_per_s for each in _finalists(found)) == [5, 8, 9, 10]
    found = speeds(0, 3.9, 10, kinds="abc")
    assert [each.steps_per_s for each in _finalists(found)] == [10, 3.9]


def test_steps_that_are_no_transitions_do_not_count() -> None:
    good = importlib.import_module("checked_envs").Good
    with InProcessEnvManager({"episode_num": 1}, [good, good]) as manager:
        manager.launch()
        for _ in range(7):
            manager.step_batch(np.zeros(2, np.int64))
        assert manager.done
        assert step_for(manager, 0.01) == 0


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
