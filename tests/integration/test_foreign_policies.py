"""Third-party policies whose modes have only the documented fields train serially and parallel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dingsdk.errors import DingError
from dingsdk.pipeline.context import RunResult
from dingsdk.pipeline.train import train
from tests.own_plugins import using

from ..foreign_policy import ForeignPolicy
from . import short_runs


class ListPolicy(ForeignPolicy):
    """Its train samples are lists of three transitions."""

    def _samples(self, piece: list[Any]) -> list[Any]:
        return [piece[start : start + 3] for start in range(len(piece) - 2)]

    def _rows(self, sample: Any) -> list[Any]:
        assert type(sample) is list
        first, second, third = sample
        assert torch.equal(first["next_obs"], second["obs"])
        assert torch.equal(second["next_obs"], third["obs"])
        assert not first["done"]
        return sample


class DictOfListsPolicy(ForeignPolicy):
    """Its train samples are dicts of lists of three values."""

    def _samples(self, piece: list[Any]) -> list[Any]:
        cut = [piece[start : start + 3] for start in range(len(piece) - 2)]
        return [{key: [row[key] for row in rows] for key in rows[0]} for rows in cut]

    def _rows(self, sample: Any) -> list[Any]:
        assert type(sample["obs"]) is list
        assert torch.equal(sample["next_obs"][0], sample["obs"][1])
        assert len(sample["collect_iter"]) == 3
        return [
            {key: sample[key][step] for key in ("obs", "action", "reward")} for step in range(3)
        ]


POLICIES = {"foreign": ForeignPolicy, "lists": ListPolicy, "dict_of_lists": DictOfListsPolicy}


def run(output: Path, transport: str | None, *sets: str, **policies: Any) -> RunResult:
    mode: Any = "serial" if transport is None else "parallel"
    config = {"env": {"env_id": "CartPole-v1"}, "policy": {"type": "foreign"}}
    sets = (*short_runs.QUICK, "policy.learn.learner.train_iterations=20", *sets)
    if transport == "in_memory":
        sets = (*sets, "system.transport.check_wire=true")
    with using(policies={**POLICIES, **policies}):
        return train(config, mode, transport, sets, 3, output)


@pytest.fixture(autouse=True)
def trained() -> list[Any]:
    ForeignPolicy.trained.clear()
    return ForeignPolicy.trained


@pytest.mark.parametrize(
    "transport",
    [None, "in_memory", pytest.param("flask_fs", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_policy_with_the_documented_fields_trains(
    tmp_path: Path, policy: str, transport: str | None
) -> None:
    result = run(tmp_path, transport, f"policy.type={policy}")
    assert (result.reason, result.train_iter) == ("limit", 20)
    assert result.evaluations


@pytest.mark.parametrize(
    "sets",
    [
        pytest.param(("policy.on_policy=true", "policy.unroll_len=3"), id="on_policy"),
        pytest.param(("policy.collect.parallel_collector.type=serial",), id="serial_collector"),
    ],
)
@pytest.mark.parametrize("policy", ["foreign", "lists"])
def test_learner_receives_samples_of_the_type_that_the_policy_made(
    tmp_path: Path, policy: str, sets: tuple[str, ...], trained: list[Any]
) -> None:
    result = run(tmp_path, "in_memory", f"policy.type={policy}", *sets)
    assert (result.reason, result.train_iter) == ("limit", 20)
    assert {kind is list for kind in trained} == {policy == "lists"}


@pytest.mark.parametrize("transport", [None, "in_memory"])
def test_dicts_of_lists_work_with_priorities(tmp_path: Path, transport: str | None) -> None:
    class Weighted(DictOfListsPolicy):
        def _rows(self, sample: Any) -> list[Any]:
            assert 0 < sample["IS"] <= 1
            return super()._rows(sample)

    buffer = "policy.other.replay_buffer.type=advanced"
    result = run(tmp_path, transport, "policy.type=weighted", buffer, weighted=Weighted)
    assert (result.reason, result.train_iter) == ("limit", 20)


@pytest.mark.parametrize("transport", [None, "in_memory"])
def test_buffer_that_cannot_store_lists_is_refused(tmp_path: Path, transport: str | None) -> None:
    buffer = "policy.other.replay_buffer"
    sets = ("policy.type=lists", f"{buffer}.type=advanced", f"{buffer}.replay_buffer_size=512")
    with pytest.raises(DingError, match="keeps only dicts"):
        run(tmp_path, transport, *sets)
