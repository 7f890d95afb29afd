"""DQN policies with one defect each, for the policy rules."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dingsdk.config import Scheduled, Share
from dingsdk.data import SampleBatch
from dingsdk.policy import (
    BasePolicy,
    CollectMode,
    DQNLearnSection,
    DQNPolicy,
    DQNSection,
    EvalMode,
    LearnMode,
)

from .mutant_list import MutantList

CFG = {"model": {"obs_shape": 4, "action_shape": 3, "encoder_hidden_size_list": [8]}}


class Mutant(DQNPolicy):
    """The unchanged policy; mutants override one of its methods."""

    def __init__(self, enable_field: Sequence[str] | None, seed: int | None) -> None:
        super().__init__(CFG, enable_field=enable_field, seed=seed)


MUTANTS = MutantList()
mutant = MUTANTS.mutant


def _halving_observations(mode: Any) -> Any:
    def forward(obs: Any, **setting: Any) -> Any:
        for each in obs.values():
            each *= np.float32(0.5)
        return mode.forward(obs, **setting)

    return mode._replace(forward=forward)


@mutant(2)
class ServesEveryMode(Mutant):
    def __init__(self, enable_field: Sequence[str] | None, seed: int | None) -> None:
        super().__init__(None, seed)


@mutant(3)
class ActsOutsideTheSpace(Mutant):
    def act(self, obs: Any, env_ids: Any = None, *, explore: bool, **setting: Any) -> Any:
        found = super().act(obs, env_ids, explore=explore, **setting)
        return found if explore else {"action": found["action"] + 3}


@mutant(5, 6, 19, 20, 24)
class ScalesObservationsInPlace(Mutant):
    @property
    def collect_mode(self) -> CollectMode:
        return _halving_observations(super().collect_mode)

    @property
    def eval_mode(self) -> EvalMode:
        return _halving_observations(super().eval_mode)


@mutant(6, 8, 11, 19, 20, 24)
class ExploresInEvaluations(Mutant):
    def act(self, obs: Any, env_ids: Any = None, *, explore: bool, **setting: Any) -> Any:
        return super().act(obs, env_ids, explore=True, **{"eps": 0.9, **setting})


@mutant(8)
class IgnoresItsSeed(Mutant):
    def __init__(self, enable_field: Sequence[str] | None, seed: int | None) -> None:
        super().__init__(enable_field, None)


@mutant(8)
class DrawsFromTheProcess(Mutant):
    def build(self) -> None:
        random.random()
        super().build()


@mutant(10)
class TakesNaNForLow(Mutant):
    def check_finite(self, values: Any, obs: Any, env_ids: Any = None) -> None:
        return


@mutant(11)
class ResetsKnownEnvsOnly(Mutant):
    def reset(self, env_ids: Sequence[int] | None = None) -> None:
        if env_ids is not None and 99 in env_ids:
            raise KeyError(99)


@mutant(13)
class NamesTheEndInItsOwnWay(Mutant):
    @property
    def collect_mode(self) -> CollectMode:
        mode = super().collect_mode

        def process(obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
            found = mode.process_transition(obs, output, timestep)
            return {"is_last" if key == "done" else key: value for key, value in found.items()}

        def samples(piece: Any) -> list[Any]:
            rows = [{"done" if key == "is_last" else key: row[key] for key in row} for row in piece]
            return mode.get_train_sample(rows)

        return mode._replace(process_transition=process, get_train_sample=samples)

    def samples(self, columns: dict[str, Any], ends: Any) -> SampleBatch:
        columns = {"done" if key == "is_last" else key: columns[key] for key in columns}
        return super().samples(columns, ends)


@mutant(13, 25)
class DropsTheLastTransition(Mutant):
    @property
    def collect_mode(self) -> CollectMode:
        mode = super().collect_mode
        return mode._replace(
            get_train_sample=lambda piece: mode.get_train_sample(piece)[: max(1, len(piece) - 1)]
        )


@mutant(15)
class LogsNaN(Mutant):
    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**super().learn(batch), "entropy": float("nan")}


@mutant(17)
class TrainsOnWhateverComes(Mutant):
    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        return super().learn(batch) if "reward" in batch else dict.fromkeys(self.monitored, 0.0)


@mutant(18)
class SavesObjects(Mutant):
    @property
    def learn_mode(self) -> LearnMode:
        mode = super().learn_mode
        return mode._replace(
            state_dict=lambda: {**mode.state_dict(), "sizes": {8}},
            load_state_dict=lambda state: mode.load_state_dict(
                {key: state[key] for key in state if key != "sizes"}
            ),
        )


@mutant(19)
class ForgetsItsTarget(Mutant):
    @property
    def learn_mode(self) -> LearnMode:
        mode = super().learn_mode
        return mode._replace(
            load_state_dict=lambda state: mode.load_state_dict(
                {key: value for key, value in state.items() if key != "target_model"}
            )
        )


@mutant(20)
class LoadsCollectedWeightsAlone(Mutant):
    @property
    def eval_mode(self) -> EvalMode:
        return super().eval_mode._replace(load_state_dict=lambda state: None)


@mutant(21)
class LoadsHalfOfAState(Mutant):
    @property
    def learn_mode(self) -> LearnMode:
        mode = super().learn_mode

        def load(state: Mapping[str, Any]) -> None:
            with torch.no_grad():
                for name, value in state.get("model", {}).items():
                    own = self._network.state_dict()[name]
                    if tuple(own.shape) == tuple(value.shape):
                        own.copy_(torch.as_tensor(value))
            mode.load_state_dict(state)

        return mode._replace(load_state_dict=load)


@mutant(22)
class HidesItsBatchSize(Mutant):
    @property
    def learn_mode(self) -> LearnMode:
        mode = super().learn_mode

        def get(key: str) -> Any:
            if key == "batch_size":
                raise NotImplementedError(key)
            return mode.get_attribute(key)

        return mode._replace(get_attribute=get)


@mutant(24)
class BatchesInReverse(Mutant):
    @property
    def eval_mode(self) -> EvalMode:
        mode = super().eval_mode
        forward = mode.forward_batch
        assert forward is not None
        return mode._replace(
            forward_batch=lambda obs, env_ids: {"action": 2 - forward(obs, env_ids)["action"]}
        )


@mutant(25)
class RewardsLeakAcrossPieces(Mutant):
    def samples(self, columns: dict[str, Any], ends: Any) -> SampleBatch:
        made = super().samples(columns, ends)
        if len(ends) > 1:
            made.columns["reward"] = np.asarray(made.columns["reward"]) + np.float32(1)
        return made


@mutant(26)
class ForgetsTruncation(Mutant):
    @property
    def collect_mode(self) -> CollectMode:
        def make(obs: Any, output: Any, step: Any) -> dict[str, Any]:
            return {**BasePolicy.transitions(self, obs, output, step), "done": step.terminated}

        return super().collect_mode._replace(make_transitions=make)


class _LearnOnce(DQNLearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` with a number that is read only once."""

    smoothing: Scheduled[Share] = 0.25


class _SectionOnce(DQNSection, frozen=True, kw_only=True):
    learn: _LearnOnce = _LearnOnce()


@mutant(27)
class ReadsAScheduledNumberOnce(Mutant):
    Config = _SectionOnce

    def build(self) -> None:
        super().build()
        self.smoothing = self.section.learn.smoothing
