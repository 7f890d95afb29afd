"""Every policy passes the contract, also one that does not use the base class."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from dingsdk.errors import ConfigError, NonFiniteError, SchemaMismatchError
from dingsdk.policy import (
    BasePolicy,
    CollectMode,
    CommandMode,
    DQNPolicy,
    EvalMode,
    LearnMode,
    Policy,
    PolicySection,
    PPOPolicy,
    R2D2Policy,
    SACPolicy,
    Stateful,
)
from dingsdk.testing import PolicyContract

MODEL = {"obs_shape": 4, "action_shape": 3, "encoder_hidden_size_list": [16]}
BATCHED = frozenset({"seeded", "batched", "per_step"})


class Discrete(PolicyContract):
    observation_space: ClassVar = spaces.Box(-1, 1, (4,), np.float32)
    action_space: ClassVar = spaces.Discrete(3)
    capabilities: ClassVar[Collection[str]] = BATCHED
    cfg: ClassVar[Mapping[str, Any]] = {}


class TestDQN(Discrete):
    def make_policy(self, enable_field: Sequence[str] | None, seed: int) -> Policy:
        return DQNPolicy({"model": MODEL, **self.cfg}, enable_field=enable_field, seed=seed)


class TestPrioritizedDuelingDQN(TestDQN):
    cfg: ClassVar = {"priority": True, "nstep": 3, "model": {**MODEL, "dueling": True}}


class TestDQNOnImages(TestDQN):
    observation_space: ClassVar = spaces.Box(0, 255, (8, 8, 2), np.uint8)
    cfg: ClassVar = {"nstep": 2, "model": {**MODEL, "obs_shape": [8, 8, 2]}}


class TestDQNOnDicts(TestDQN):
    observation_space: ClassVar = spaces.Dict(
        {
            "place": spaces.Discrete(5),
            "inner": spaces.Dict({"speed": spaces.Box(-1, 1, (2,)), "on": spaces.MultiBinary(3)}),
        }
    )
    cfg: ClassVar = {
        "model": {**MODEL, "obs_shape": {"place": "Discrete(5)", "inner": {"speed": 2, "on": 3}}}
    }


class TestR2D2(Discrete):
    capabilities: ClassVar[Collection[str]] = frozenset({"seeded", "batched"})

    def make_policy(self, enable_field: Sequence[str] | None, seed: int) -> Policy:
        section = {
            "model": MODEL,
            "priority": True,
            "nstep": 2,
            "learn": {"sequence_length": 4, "burn_in": 2},
            "other": {"replay_buffer": {"type": "advanced"}},
        }
        return R2D2Policy(section, enable_field=enable_field, seed=seed)


class TestPPO(PolicyContract):
    observation_space: ClassVar[spaces.Space[Any]] = Discrete.observation_space
    action_space: ClassVar[spaces.Space[Any]] = spaces.Discrete(3)
    capabilities: ClassVar[Collection[str]] = BATCHED
    model: ClassVar[Mapping[str, Any]] = {}
    learn: ClassVar[Mapping[str, Any]] = {}

    def make_policy(self, enable_field: Sequence[str] | None, seed: int) -> Policy:
        found = PPOPolicy.model_from_spaces(self.observation_space, self.action_space)
        model = {**found, "encoder_hidden_size_list": [16], **self.model}
        cfg = {"model": model, "learn": self.learn}
        return PPOPolicy(cfg, enable_field=enable_field, seed=seed)


class TestMultiDiscretePPO(TestPPO):
    action_space: ClassVar = spaces.MultiDiscrete([3, 2, 4])
    learn: ClassVar = {"value_clip": True, "target_kl": 0.01}


class TestContinuousPPO(TestPPO):
    observation_space: ClassVar = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
            "nested": spaces.Dict({"speed": spaces.Box(-1, 1, (2,)), "gear": spaces.Discrete(5)}),
        }
    )
    action_space: ClassVar = spaces.Box(
        np.array([-0.1, -np.inf], np.float32), np.array([0.1, np.inf], np.float32)
    )


class TestRecurrentPPO(TestPPO):
    model: ClassVar = {"recurrent": "lstm", "recurrent_size": 8}
    learn: ClassVar = {"sequence_len": 4, "batch_size": 8}


@pytest.mark.slow
class TestRecurrentContinuousPPO(TestContinuousPPO):
    model: ClassVar = {"recurrent": "gru", "recurrent_size": 8}


class TestSAC(PolicyContract):
    observation_space: ClassVar = spaces.Box(-1, 1, (4,), np.float32)
    action_space: ClassVar = spaces.Box(
        np.array([-2, 0.5], np.float32), np.array([2, 0.6], np.float32)
    )
    capabilities: ClassVar[Collection[str]] = BATCHED
    cfg: ClassVar[Mapping[str, Any]] = {"random_collect_size": 50}

    def make_policy(self, enable_field: Sequence[str] | None, seed: int) -> Policy:
        model = SACPolicy.model_from_spaces(self.observation_space, self.action_space)
        cfg = {"model": {**model, "encoder_hidden_size_list": [16]}, **self.cfg}
        return SACPolicy(cfg, enable_field=enable_field, seed=seed)


class TestPrioritizedSAC(TestSAC):
    cfg: ClassVar = {"priority": True, "nstep": 3, "learn": {"auto_alpha": False, "alpha": 0.2}}


class Regression(BasePolicy):
    """A minimal policy on the base class, with dict observations and a continuous action."""

    class Config(PolicySection, frozen=True, kw_only=True):
        type: str = "regression"

    def build(self) -> None:
        self.net = nn.Linear(3, 1)

    def act(
        self,
        obs: Any,
        env_ids: Sequence[int] | None = None,
        *,
        explore: bool,
        **setting: Any,
    ) -> dict[str, NDArray[Any]]:
        inputs = torch.cat([self.tensor(obs["pos"]), self.tensor(obs["speed"])], 1)
        with torch.no_grad():
            action = self.net(inputs).numpy()
        self.check_finite(action, obs, env_ids)
        if explore:
            action = action + self.rng.normal(size=action.shape).astype(np.float32)
        return {"action": action.clip(-1, 1)}

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        inputs = torch.cat([batch["obs"]["pos"], batch["obs"]["speed"]], 1)
        loss = (self.net(inputs) - batch["reward"].float().unsqueeze(1)).square().mean()
        for weight, gradient in zip(
            self.net.parameters(),
            torch.autograd.grad(loss, list(self.net.parameters())),
            strict=True,
        ):
            weight.data -= 0.01 * gradient
        return {"total_loss": float(loss.detach())}

    def state(self) -> Mapping[str, Stateful]:
        return {"model": self.net}


class TestOwnPolicyOnTheBaseClass(PolicyContract):
    observation_space: ClassVar = spaces.Dict(
        {
            "pos": spaces.Box(-1, 1, (2,), np.float32),
            "speed": spaces.Box(-1, 1, (1,), np.float32),
        }
    )
    action_space: ClassVar = spaces.Box(-1, 1, (1,), np.float32)
    capabilities: ClassVar[Collection[str]] = BATCHED

    def make_policy(self, enable_field: Sequence[str] | None, seed: int) -> Policy:
        return Regression({}, enable_field=enable_field, seed=seed)


class DelayedRegression(Regression):
    """Trains a critic with noisy targets in each update, and the model in every second one."""

    def build(self) -> None:
        super().build()
        self.critic, self.counts = nn.Linear(3, 1), nn.Linear(1, 1)
        self.counts.weight.data.zero_()

    def state(self) -> Mapping[str, Stateful]:
        return {**super().state(), "critic": self.critic, "counts": self.counts}

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        noise = self.rng.standard_normal((1, 3), np.float32)
        self.critic.weight.data.lerp_(torch.from_numpy(noise) + batch["reward"].mean(), 0.1)
        self.counts.weight.data += 1
        if self.counts.weight.item() % 2:
            return {"total_loss": 0.0}
        self.net.weight.data += 0.01 * self.critic.weight
        return super().learn(batch)


class TestOwnPolicyThatTrainsItsActorLater(TestOwnPolicyOnTheBaseClass):
    def make_policy(self, enable_field: Sequence[str] | None, seed: int) -> Policy:
        return DelayedRegression({}, enable_field=enable_field, seed=seed)


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


class TestPolicyWrittenByHand(Discrete):
    capabilities: ClassVar[Collection[str]] = frozenset({"seeded", "per_step"})

    def make_policy(self, enable_field: Sequence[str] | None, seed: int) -> Policy:
        return Foreign(enable_field, seed)  # type: ignore[return-value]
