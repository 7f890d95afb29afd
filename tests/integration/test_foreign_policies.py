"""Third-party policies whose modes have only the documented fields train serially and parallel."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from dingsdk.errors import DingError
from dingsdk.pipeline.context import RunResult
from dingsdk.pipeline.train import train
from dingsdk.plugins import PluginManager, use_manager

from . import short_runs

SHARED = "forward reset get_attribute set_attribute state_dict load_state_dict"
LearnFunction = namedtuple("LearnFunction", f"{SHARED} info monitor_vars")
CollectFunction = namedtuple("CollectFunction", f"{SHARED} process_transition get_train_sample")
EvalFunction = namedtuple("EvalFunction", SHARED)
CommandFunction = namedtuple(
    "CommandFunction", "get_setting_learn get_setting_collect get_setting_eval"
)


class ForeignPolicy:
    """A small learner that predicts rewards; its config and samples are plain dicts."""

    config: ClassVar[dict[str, Any]] = {"type": "foreign", "learning_rate": 0.001}
    trained: ClassVar[list[Any]] = []

    def __init__(self, cfg: Any, enable_field: Any = None, seed: int | None = None) -> None:
        self._cfg = cfg
        self._model = nn.Linear(4, 2)
        self._optimizer = torch.optim.Adam(self._model.parameters(), cfg.learning_rate)

    def _attribute(self, key: str) -> Any:
        collect, learn = self._cfg.collect, self._cfg.learn
        return {
            "cfg": self._cfg,
            "n_sample": collect.n_sample,
            "n_episode": collect.n_episode,
            "unroll_len": collect.unroll_len,
            "on_policy": self._cfg.on_policy,
            "batch_size": learn.batch_size,
            "device": "cpu",
        }[key]

    def _shared(self, forward: Any) -> dict[str, Any]:
        return {
            "forward": forward,
            "reset": lambda ids=None: None,
            "get_attribute": self._attribute,
            "set_attribute": lambda key, value: None,
            "state_dict": lambda: {"model": self._model.state_dict()},
            "load_state_dict": lambda state: self._model.load_state_dict(state["model"]),
        }

    @property
    def learn_mode(self) -> Any:
        return LearnFunction(
            **self._shared(self._learn), info=lambda: "foreign", monitor_vars=lambda: ["loss"]
        )

    @property
    def collect_mode(self) -> Any:
        return CollectFunction(
            **self._shared(self._act),
            process_transition=self._transition,
            get_train_sample=self._samples,
        )

    @property
    def eval_mode(self) -> Any:
        return EvalFunction(**self._shared(self._act))

    @property
    def command_mode(self) -> Any:
        return CommandFunction(lambda info: {}, lambda info: {"eps": 0.5}, lambda info: {})

    def _act(self, obs: dict[int, Any], eps: float = 0.0) -> dict[int, Any]:
        return {
            i: {"action": self._model(torch.as_tensor(each)).argmax()} for i, each in obs.items()
        }

    def _transition(self, obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        return {
            "obs": obs,
            "next_obs": timestep.obs,
            "action": output["action"],
            "reward": timestep.reward,
            "done": timestep.done,
        }

    def _samples(self, piece: list[Any]) -> list[Any]:
        return piece

    def _learn(self, data: Any) -> dict[str, Any]:
        rows = [row for sample in data for row in self._rows(sample)]
        self.trained.append(type(data[0]))
        obs = torch.stack([torch.as_tensor(row["obs"]) for row in rows])
        action = torch.stack([torch.as_tensor(row["action"]) for row in rows])
        reward = torch.stack([torch.as_tensor(row["reward"]) for row in rows]).float().view(-1)
        loss = (self._model(obs).gather(1, action[:, None])[:, 0] - reward).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return {"loss": loss.item(), "priority": [1.0] * len(data)}

    def _rows(self, sample: Any) -> list[Any]:
        return [sample]


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
    manager = PluginManager()
    for name, kind in {**POLICIES, **policies}.items():
        manager.registry("policies").register(name, kind)
    mode: Any = "serial" if transport is None else "parallel"
    config = {"env": {"env_id": "CartPole-v1"}, "policy": {"type": "foreign"}}
    sets = (*short_runs.QUICK, "policy.learn.learner.train_iterations=20", *sets)
    if transport == "in_memory":
        sets = (*sets, "system.transport.check_wire=true")
    with use_manager(manager):
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
