"""Runs, evaluations, predictions and exports under unusual settings of torch in the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk import evaluate, load_policy, train

from . import short_runs

SETS = (*short_runs.QUICK, "policy.learn.learner.train_iterations=20")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "float64": lambda: default_dtype(torch.float64),
    "float16": lambda: default_dtype(torch.float16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "device": default_device,
}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train("cartpole-dqn", sets=SETS, seed=3, output=tmp_path_factory.mktemp("run")).run_dir


@pytest.mark.parametrize(
    "name",
    [
        *("float64", "inference_mode"),
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in sorted(SETTINGS.keys() - {"float64", "inference_mode"})
        ),
    ],
)
def test_settings_of_the_caller_change_nothing_and_are_restored(
    usual: Path, tmp_path: Path, name: str
) -> None:
    obs = np.zeros(4, np.float32)
    policy = load_policy(usual, "latest")
    expected = evaluate(usual, "latest").returns
    with SETTINGS[name]():
        before = torch.zeros(1), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        result = train("cartpole-dqn", sets=SETS, seed=3, output=tmp_path)
        parallel = train("cartpole-dqn", "parallel", "in_memory", sets=SETS, output=tmp_path)
        assert parallel.train_iter == 20
        assert evaluate(result.run_dir, "latest").returns == expected
        own = load_policy(result.run_dir, "latest")
        assert own.predict(obs) == policy.predict(obs)
        program = own.export(tmp_path / "policy.pt2")
        after = torch.zeros(1), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        assert (after[0].dtype, after[0].device) == (before[0].dtype, before[0].device)
        assert after[1:] == before[1:]
        assert torch.is_autocast_enabled("cpu") == (name == "autocast")
    weights, trained = (
        each._policy.eval_mode.state_dict()["model"]
        for each in (policy, load_policy(result.run_dir, "latest"))
    )
    for key, value in weights.items():
        assert torch.equal(value, trained[key])
    assert torch.export.load(program).module()(torch.from_numpy(obs[None])) is not None
