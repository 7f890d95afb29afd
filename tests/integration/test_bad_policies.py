"""A policy that returns invalid values ends the run with one typed error, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk import train
from dingsdk.errors import (
    ConfigError,
    NonFiniteError,
    PolicyOutputError,
    PolicyOutputTypeError,
    SchemaMismatchError,
    TaskFailedError,
)
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.policy import DQNPolicy
from tests.runs import SMALL

SETS = (
    *SMALL,
    "env.collector_episode_num=1",
    "policy.nstep=1",
    "policy.eval.evaluator.eval_freq=1000",
    "system.max_env_steps=2000",
)


def changes(method: str, change: Callable[[Any], Any]) -> type[DQNPolicy]:
    """Return a subclass of DQN that changes the return value of one method."""

    def changed(self: DQNPolicy, *args: Any, **kwargs: Any) -> Any:
        return change(getattr(DQNPolicy, method)(self, *args, **kwargs))

    return type(f"Bad{method.title()}", (DQNPolicy,), {method: changed})


def action(change: Callable[[Any], Any]) -> type[DQNPolicy]:
    return changes("act", lambda output: {"action": change(output["action"])})


def column(name: str, change: Callable[[Any], Any]) -> type[DQNPolicy]:
    return changes("samples", lambda made: made.with_columns(**{name: change(made.columns[name])}))


def loss(value: Any) -> type[DQNPolicy]:
    return changes("learn", lambda log: {**log, "total_loss": value})


CASES: dict[str, tuple[type[DQNPolicy], type[Exception], list[str]]] = {
    "act returns nothing": (
        changes("act", lambda _: None),
        PolicyOutputTypeError,
        ["'action'", "NoneType"],
    ),
    "act returns NaN": (action(lambda found: found * np.nan), NonFiniteError, ["'action'", "NaN"]),
    "action of another shape": (
        action(lambda found: found[:, None]),
        PolicyOutputError,
        ["int64[2, 1]", "int64[2]"],
    ),
    "action of another dtype": (
        action(lambda found: found.astype(np.float32)),
        PolicyOutputError,
        ["float32[2]", "int64[2]"],
    ),
    "action outside the space": (action(lambda found: found + 7), PolicyOutputError, ["Discrete"]),
    "samples returns nothing": (
        changes("samples", lambda _: None),
        PolicyOutputTypeError,
        ["SampleBatch", "NoneType"],
    ),
    "samples returns a dict": (
        changes("samples", lambda made: made.columns),
        PolicyOutputTypeError,
        ["SampleBatch", "dict"],
    ),
    "samples hold NaN": (
        column("reward", lambda rows: rows * np.nan),
        NonFiniteError,
        ["reward", "NaN"],
    ),
    "samples of another shape": (
        column("obs", lambda rows: rows[:, :2]),
        SchemaMismatchError,
        ["(8, 2)", "obs_shape=4"],
    ),
    "learn returns nothing": (
        changes("learn", lambda _: None),
        PolicyOutputTypeError,
        ["dict", "NoneType"],
    ),
    "learn returns NaN": (loss(float("nan")), NonFiniteError, ["total_loss", "nan"]),
    "learn returns an array": (loss(np.zeros(3)), PolicyOutputTypeError, ["ndarray"]),
}


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        *(("serial", name) for name in CASES),
        *(("parallel", "act returns NaN"), ("parallel", "learn returns NaN")),
        ("parallel", "samples returns nothing"),
    ],
)
def test_run_ends_with_an_error_that_says_what_is_wrong(
    mode: Any, name: str, tmp_path: Path
) -> None:
    policy, error, words = CASES[name]
    if mode == "parallel":
        error, words = TaskFailedError, (error.__name__, "failed on worker", *words)

    with use_manager(PluginManager()), pytest.raises(error) as caught:
        train("cartpole-dqn", mode, sets=SETS, policy=policy, output=tmp_path)

    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("widths", ["[10000000,10000000]", "[1000000000000000]"])
def test_network_too_large_for_memory_is_refused_with_both_sizes(
    widths: str, tmp_path: Path
) -> None:
    sets = (*SETS, f"policy.model.encoder_hidden_size_list={widths}")

    with use_manager(PluginManager()), pytest.raises(ConfigError, match="fit memory") as caught:
        train("cartpole-dqn", sets=sets, output=tmp_path)

    assert caught.value.path == "policy.model"
    assert "bytes of main memory are free" in str(caught.value)
    assert caught.value.facts["expected"] > 0
