"""A policy without the base class, whose modes have only the fields of the contract."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.errors import ConfigError, NonFiniteError, SchemaMismatchError

SHARED = "forward reset get_attribute set_attribute state_dict load_state_dict"
LearnFunction = namedtuple("LearnFunction", f"{SHARED} info monitor_vars")
CollectFunction = namedtuple("CollectFunction", f"{SHARED} process_transition get_train_sample")
EvalFunction = namedtuple("EvalFunction", SHARED)
CommandFunction = namedtuple(
    "CommandFunction", "get_setting_learn get_setting_collect get_setting_eval"
)


class ForeignPolicy:
    """A linear policy of 4 numbers and 2 actions; its config and samples are plain dicts."""

    config: ClassVar[dict[str, Any]] = {"type": "foreign"}
    trained: ClassVar[list[Any]] = []
    """The types of the samples that were trained on."""

    def __init__(
        self, cfg: Any, enable_field: Sequence[str] | None = None, seed: int | None = None
    ) -> None:
        self.cfg, self.rng = cfg, np.random.default_rng(seed)
        self.fields = set(enable_field or ("learn", "collect", "eval", "command"))
        if unknown := self.fields - {"learn", "collect", "eval", "command"}:
            raise ConfigError(f"unknown modes {unknown}", path="policy")
        self.weights = self.rng.normal(size=(4, 2)).astype(np.float32)

    def __getattr__(self, name: str) -> Any:
        field, _, kind = name.partition("_")
        if kind != "mode":
            raise AttributeError(name)
        if field not in self.fields:
            raise ConfigError(f"no {field} mode", path="policy")
        return getattr(self, f"_{field}")()

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
                answer["action"] = self.rng.integers(2)
        return answers

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

    def _rows(self, sample: Any) -> list[Any]:
        """Return the transitions in a sample."""
        return [sample]

    def _learn_forward(self, data: Any, **_: Any) -> dict[str, Any]:
        rows = [row for sample in data for row in self._rows(sample)]
        self.trained.append(type(data[0]))
        if not all("reward" in row for row in rows):
            raise SchemaMismatchError("no reward", key="reward", expected="reward", found=None)
        for row in rows:
            step = 0.01 * float(row["reward"]) * np.asarray(row["obs"], np.float32)
            self.weights[:, int(row["action"])] += step
        return {"loss": float(np.abs(self.weights).sum()), "priority": [1.0] * len(data)}

    def _load(self, state: Mapping[str, Any]) -> None:
        found = np.asarray(state.get("model", {}).get("weights", ()))
        if found.shape != self.weights.shape:
            raise SchemaMismatchError("no weights that fit", key="model", expected=0, found=0)
        self.weights = np.array(found, np.float32)

    def _attribute(self, key: str) -> Any:
        known = {"cfg": {}, "n_sample": 8, "n_episode": None, "unroll_len": 1, "on_policy": False}
        known |= {"batch_size": 4, "device": "cpu"}
        if self.cfg is not None:
            collect, learn = self.cfg.collect, self.cfg.learn
            known |= {"cfg": self.cfg, "on_policy": self.cfg.on_policy}
            known |= {key: collect[key] for key in ("n_sample", "n_episode", "unroll_len")}
            known |= {"batch_size": learn.batch_size}
        if key not in known:
            raise NotImplementedError(key)
        return known[key]

    def _shared(self, forward: Any) -> dict[str, Any]:
        return {
            "forward": forward,
            "reset": lambda ids=None: None,
            "get_attribute": self._attribute,
            "set_attribute": lambda key, value: None,
            "state_dict": lambda: {"model": {"weights": self.weights.copy()}},
            "load_state_dict": self._load,
        }

    def _learn(self) -> LearnFunction:
        shared = self._shared(self._learn_forward)
        return LearnFunction(**shared, info=lambda: "foreign", monitor_vars=lambda: ["loss"])

    def _collect(self) -> CollectFunction:
        shared = self._shared(self._collect_forward)
        return CollectFunction(
            **shared, process_transition=self._transition, get_train_sample=self._samples
        )

    def _eval(self) -> EvalFunction:
        return EvalFunction(**self._shared(self._eval_forward))

    def _command(self) -> CommandFunction:
        return CommandFunction(lambda info: {}, lambda info: {"eps": 0.5}, lambda info: {})
