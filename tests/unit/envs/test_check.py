"""``check_env`` finds the faults of an env and reports each in its check."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.cli import main
from dingsdk.envs import EnvCheck, check_env
from dingsdk.envs.check import (
    _Subject,
)
from dingsdk.errors import ConfigError

MADE, SPACES, RESET, STEPS, SEEDS, MANAGER, CHILD, ASYNC, POLICIES = (
    "can be made and closed",
    "spaces",
    "reset",
    "steps and episodes",
    "seeds",
    "env manager vector",
    "env manager subprocess",
    "env manager async_subprocess",
    "policies that take it",
)
ALL = [MADE, SPACES, RESET, STEPS, SEEDS, MANAGER, CHILD, ASYNC, POLICIES]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("CHECKED_ENVS_PARENT", str(os.getpid()))


def envs() -> Any:
    return importlib.import_module("checked_envs")


def by_name(found: list[EnvCheck]) -> dict[str, EnvCheck]:
    return {each.name: each for each in found}


def test_good_env_passes_every_check() -> None:
    found = check_env("checked_envs:Good")
    assert [each.name for each in found] == ALL
    assert {each.state for each in found} == {"ok"}
    details = {each.name: each.detail for each in found}
    assert "episodes of [7, 7] random steps" in details[STEPS]
    assert details[SEEDS] == "the same seed gives the same episode"
    assert {"dqn", "ppo"} <= set(details[POLICIES].split(", "))


@pytest.mark.slow
def test_class_kwargs_and_wrappers_can_be_given() -> None:
    found = by_name(check_env(envs().Good, {"length": 3}))
    assert "episodes of [3, 3]" in found[STEPS].detail
    limit = {"type": "TimeLimit", "max_episode_steps": 2}
    found = by_name(check_env("checked_envs:Good", {"length": 9}, [limit]))
    assert "episodes of [2, 2]" in found[STEPS].detail
    for wrong in ((3, None), (envs().Good, [limit])):
        with pytest.raises(ConfigError, match="give an id"):
            check_env(wrong[0], {}, wrong[1] or ())


@pytest.mark.parametrize(
    ("env", "broken", "text"),
    [
        ("RaisesWhenMade", MADE, "raised OSError: no simulator"),
        ("Absent", MADE, "not known to gymnasium"),
        ("NoEnv", MADE, "NoEnv has the observation_space None"),
        ("NoSpace", MADE, "NoSpace has the observation_space None"),
        ("ObsAlone", RESET, "gymnasium's API has (obs, info)"),
        ("NoSeed", RESET, "reset(seed=None) raised TypeError"),
        ("RaisesInClose", MADE, "close() raised OSError: the window is gone"),
        ("WrongShape", RESET, "obs: float32[3], its observation space says float32[2]"),
        ("OldStep", STEPS, "step() returned 4 values, gymnasium's API has (obs, "),
        ("RaisesInStep", STEPS, "raised KeyError: 'lost'"),
    ],
)
def test_env_that_cannot_be_used_ends_the_checks(env: str, broken: str, text: str) -> None:
    found = check_env(f"checked_envs:{env}" if env != "NoEnv" else envs().NoEnv)
    assert [each.name for each in found] == ALL[: ALL.index(broken) + 1]
    assert [each.state for each in found] == ["ok"] * ALL.index(broken) + ["problem"]
    assert text in found[-1].detail


@pytest.mark.parametrize(
    ("env", "broken", "text"),
    [
        pytest.param(
            "OwnRandomness",
            [SEEDS, MANAGER, CHILD, ASYNC],
            "(in the first observation)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "SharedState",
            [MANAGER, CHILD],
            "keep all state and randomness in",
            marks=pytest.mark.slow,
        ),
        pytest.param("DiesInAChild", [CHILD, ASYNC], "EnvError", marks=pytest.mark.slow),
    ],
)
def test_env_that_behaves_differently_in_workers_is_found(
    env: str, broken: list[str], text: str
) -> None:
    found = by_name(check_env(f"checked_envs:{env}"))
    assert [name for name in ALL if found[name].state == "problem"] == broken
    assert text in found[broken[-1]].detail


@pytest.mark.slow
def test_env_of_a_local_function_cannot_be_sent_to_a_child_process() -> None:
    good = envs().Good
    found = by_name(check_env(lambda: good()))
    assert [name for name in ALL if found[name].state == "problem"] == [CHILD, ASYNC]


@pytest.mark.slow
def test_env_of_two_players_passes() -> None:
    pytest.importorskip("pettingzoo", reason="the extra multiagent is not installed")
    wrappers = ["flatten_players"]
    found = by_name(check_env("pettingzoo.classic.tictactoe.tictactoe:env", wrappers=wrappers))
    assert {each.state for each in found.values()} == {"ok"}
    assert found[MADE].detail == "2 players"
    assert "dqn" in found[POLICIES].detail


@pytest.mark.slow
def test_env_with_a_vector_env_is_checked_in_that_and_in_the_others() -> None:
    found = by_name(check_env("CartPole-v1"))
    assert {each.state for each in found.values()} == {"ok"}
    assert "share one random stream" in found[MANAGER].detail
    for kind in ("in_process", "subprocess", "async_subprocess"):
        assert found[f"env manager {kind}"].detail == "the same results as alone"


def test_observation_out_of_bounds_gives_one_warning() -> None:
    subject = _Subject(envs().OutOfBounds, 0)
    subject.observation_space = envs().BOX
    subject.check_bounds(np.array([1, -1], np.float32), "reset()")
    assert subject.warnings == []
    for _ in range(2):
        subject.check_bounds(np.array([2, 0], np.float32), "reset()")
    (text,) = subject.warnings
    assert text.startswith("reset() gives observations outside of the bounds")


@pytest.mark.parametrize(
    ("env", "warned", "text"),
    [
        pytest.param(
            "Endless",
            [STEPS],
            "no episode ended in 20,000 random steps",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "WideObs", [RESET], "gives float64 where the observation", marks=pytest.mark.slow
        ),
        ("Words", [SPACES, CHILD, ASYNC, POLICIES], "only policies in the dict form"),
        ("Continuous", [SPACES, CHILD, ASYNC, POLICIES], "have no columns"),
    ],
)
def test_usable_env_with_a_weakness_gives_a_warning(env: str, warned: list[str], text: str) -> None:
    found = by_name(check_env(f"checked_envs:{env}"))
    assert {name: found[name].state for name in ALL} == {
        name: "warning" if name in warned else "ok" for name in ALL
    }
    assert text in found[warned[0]].detail


def test_exit_code_of_the_command_shows_problems(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "checked_envs:OldStep"]) == 1
    assert "problem  steps and episodes" in capsys.readouterr().out
    assert main(["check-env", "checked_envs:Words"]) == 0  # warnings
    assert main(["check-env", "checked_envs:Good", "--wrapper", "NoSuchWrapper"]) == 1
    assert "no 'NoSuchWrapper' among the env_wrappers" in " ".join(capsys.readouterr().out.split())
    assert main(["check-env", "checked_envs:Good", "--kwargs", "3"]) == 2
    assert "--kwargs: expected a mapping" in capsys.readouterr().err
