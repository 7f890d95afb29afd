"""Every policy passes the contract, also with a network of its own or without the base class."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from dingsdk.errors import ConfigError, NonFiniteError, SchemaMismatchError
from dingsdk.policy import (
    MLP,
    BasePolicy,
    CollectMode,
    CommandMode,
    DQNPolicy,
    EvalMode,
    LearnMode,
    PPOPolicy,
    R2D2Policy,
    RecurrentQNetwork,
    SACPolicy,
)
from dingsdk.testing import PolicyContract, Rule

from .cases import Case, each_rule

VECTOR, THREE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
BATCHED = frozenset({"seeded", "batched", "per_step"})
MODEL = {"obs_shape": 4, "action_shape": 3, "encoder_hidden_size_list": [16]}


class Foreign:
    """A policy in the style of DI-engine: its modes have only the fields of the contract."""

    def __init__(self, enable_field: Sequence[str] | None, seed: int) -> None:
        self.fields = set(enable_field or ("learn", "collect", "eval", "command"))
        if unknown := self.fields - {"learn", "collect", "eval", "command"}:
            raise ConfigError(f"unknown modes {unknown}", path="policy")
        self.rng = np.random.default_rng(seed)
        self.weights = self.rng.normal(size=(4, 3)).astype(np.float32)

    def __getattr__(self, name: str) -> Any:
        field, _, kind = name.partition("_")
        if kind != "mode":
            raise AttributeError(name)
        if field not in self.fields:
            raise ConfigError(f"no {field} mode", path="policy")
        return getattr(self, f"_{field}")

    def _values(self, obs: Any) -> NDArray[np.float32]:
        values = np.stack([np.asarray(each) for each in obs.values()]) @ self.weights
        if not np.isfinite(values).all():
            raise NonFiniteError("an observation is not finite", key="action")
        return values

    def _eval_forward(self, obs: Any) -> dict[int, Any]:
        if not obs:
            return {}
        actions = self._values(obs).argmax(1)
        return {env: {"action": action} for env, action in zip(obs, actions, strict=True)}

    def _collect_forward(self, obs: Any, eps: float = 0.5) -> dict[int, Any]:
        answers = self._eval_forward(obs)
        for answer in answers.values():
            if self.rng.random() < eps:
                answer["action"] = self.rng.integers(3)
        return answers

    def _learn_forward(self, data: Any, **_: Any) -> dict[str, Any]:
        rows = list(data)
        if not all("reward" in row for row in rows):
            raise SchemaMismatchError("no reward", key="reward", expected="reward", found=None)
        for row in rows:
            step = 0.01 * float(row["reward"]) * np.asarray(row["obs"], np.float32)
            self.weights[:, int(row["action"])] += step
        return {"total_loss": float(np.abs(self.weights).sum())}

    def _load(self, state: Mapping[str, Any]) -> None:
        found = np.asarray(state.get("model", {}).get("weights", ()))
        if found.shape != self.weights.shape:
            raise SchemaMismatchError("no weights that fit", key="model", expected=0, found=0)
        self.weights = np.array(found, np.float32)

    def _attribute(self, name: str) -> Any:
        known = {"cfg": {}, "n_sample": 8, "n_episode": None, "unroll_len": 1, "on_policy": False}
        known |= {"batch_size": 4, "device": "cpu"}
        if name not in known:
            raise NotImplementedError(name)
        return known[name]

    @property
    def _shared(self) -> dict[str, Any]:
        return {
            "reset": lambda ids=None: None,
            "get_attribute": self._attribute,
            "set_attribute": lambda name, value: None,
            "state_dict": lambda: {"model": {"weights": self.weights.copy()}},
            "load_state_dict": self._load,
        }

    @property
    def _learn(self) -> LearnMode:
        return LearnMode(
            forward=self._learn_forward,
            info=lambda: "foreign",
            monitor_vars=lambda: ["total_loss"],
            **self._shared,
        )

    @property
    def _collect(self) -> CollectMode:
        return CollectMode(
            forward=self._collect_forward,
            process_transition=lambda obs, output, timestep: {
                "obs": obs,
                "action": output["action"],
                "reward": timestep.reward,
                "done": timestep.done,
            },
            get_train_sample=lambda transitions: list(transitions),
            **self._shared,
        )

    @property
    def _eval(self) -> EvalMode:
        return EvalMode(forward=self._eval_forward, **self._shared)

    @property
    def _command(self) -> CommandMode:
        return CommandMode(
            get_setting_learn=lambda info: {},
            get_setting_collect=lambda info: {"eps": 0.5},
            get_setting_eval=lambda info: {},
        )


class NormDQN(DQNPolicy):
    def make_network(self) -> nn.Module:
        count = self.section.model.action_count
        return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, count))


class WidePPO(PPOPolicy):
    def make_network(self) -> Any:
        network = super().make_network()
        network.critic = MLP([network.encoder.width, 96, 1], is_tanh=True)
        return network


class SmallR2D2(R2D2Policy):
    def make_network(self) -> RecurrentQNetwork:
        return RecurrentQNetwork(4, self.section.model.action_count, [8], 6)


def policy(
    cls: Any,
    capabilities: Collection[str] = BATCHED,
    *,
    observation: spaces.Space[Any] = VECTOR,
    action: spaces.Space[Any] = THREE,
    slow: bool = False,
    **cfg: Any,
) -> Case:
    def make(enable_field: Sequence[str] | None, seed: int) -> Any:
        model = {**cls.model_from_spaces(observation, action), "encoder_hidden_size_list": [16]}
        own = {"model": {**model, **cfg.get("model", {})}}
        return cls({**cfg, **own}, enable_field=enable_field, seed=seed)

    return of_spaces(make, capabilities, observation, action, slow)


def of_spaces(
    make: Any, capabilities: Collection[str], observation: Any, action: Any, slow: bool = False
) -> Case:
    also = {"observation_space": observation, "action_space": action}
    return Case(PolicyContract, lambda _: make, capabilities, slow, also=also)


IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)
PLACES = spaces.Dict(
    {
        "place": spaces.Discrete(5),
        "inner": spaces.Dict({"speed": spaces.Box(-1, 1, (2,)), "on": spaces.MultiBinary(3)}),
    }
)
NESTED = {"speed": spaces.Box(-1, 1, (2,)), "gear": spaces.Discrete(5)}
VIEW = spaces.Dict({"image": IMAGE, "nested": spaces.Dict(NESTED)})
HALF_BOUNDED = spaces.Box(np.float32([-0.1, -np.inf]), np.float32([0.1, np.inf]))
UNEVEN = spaces.Box(np.array([-2, 0.5], np.float32), np.array([2, 0.6], np.float32))
SEEDED = frozenset({"seeded", "batched"})
CASES: Mapping[str, Case] = {
    "dqn": policy(DQNPolicy),
    "dqn_prioritized": policy(DQNPolicy, priority=True, nstep=3, model={"dueling": True}),
    "dqn_images": policy(DQNPolicy, observation=IMAGE, nstep=2),
    "dqn_dicts": policy(DQNPolicy, observation=PLACES),
    "dqn_own_network": policy(NormDQN, SEEDED),
    "r2d2": policy(
        R2D2Policy,
        SEEDED,
        priority=True,
        nstep=2,
        learn={"sequence_length": 4, "burn_in": 2},
        other={"replay_buffer": {"type": "advanced"}},
    ),
    "r2d2_own_network": policy(SmallR2D2, SEEDED, **R2D2Policy.contract_config),
    "ppo": policy(PPOPolicy),
    "ppo_multi_discrete": policy(
        PPOPolicy,
        action=spaces.MultiDiscrete([3, 2, 4]),
        learn={"value_clip": True, "target_kl": 0.01},
    ),
    "ppo_continuous": policy(PPOPolicy, observation=VIEW, action=HALF_BOUNDED),
    "ppo_own_network": policy(WidePPO, SEEDED),
    "ppo_recurrent": policy(
        PPOPolicy,
        model={"recurrent": "lstm", "recurrent_size": 8},
        learn={"sequence_len": 4, "batch_size": 8},
    ),
    "ppo_recurrent_continuous": policy(
        PPOPolicy,
        observation=VIEW,
        action=HALF_BOUNDED,
        slow=True,
        model={"recurrent": "gru", "recurrent_size": 8},
    ),
    "sac": policy(SACPolicy, action=UNEVEN, random_collect_size=50),
    "sac_prioritized": policy(
        SACPolicy,
        action=UNEVEN,
        priority=True,
        nstep=3,
        learn={"auto_alpha": False, "alpha": 0.2},
    ),
    "policy_without_the_base_class": of_spaces(Foreign, {"seeded", "per_step"}, VECTOR, THREE),
}


@each_rule(CASES)
def test_policy_follows_the_rule(case: Case, rule: Rule, tmp_path: Path) -> None:
    case.check(rule, tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("policy_class", "part", "shape"),
    [(NormDQN, "1.weight", [8]), (WidePPO, "critic.0.weight", [96, 4])],
)
def test_policy_trains_the_network_of_its_subclass(
    policy_class: type[BasePolicy], part: str, shape: list[int]
) -> None:
    policy = policy_class({"model": MODEL})
    assert list(policy.learn_mode.state_dict()["model"][part].shape) == shape


def test_recurrent_state_has_the_size_of_the_own_network() -> None:
    policy = SmallR2D2({"model": MODEL})
    assert policy.state_size == 12
