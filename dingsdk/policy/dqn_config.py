"""The values that DQN reads from its config, checked once."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dingsdk.errors import ConfigError, ConfigTypeError
from dingsdk.policy.config_values import flag, integer, number, section

LOSSES = ("huber", "mse")


@dataclass(frozen=True, slots=True)
class DQNModel:
    """Shape of the Q network."""

    obs_size: int
    action_count: int
    hidden_sizes: tuple[int, ...]
    dueling: bool

    @classmethod
    def from_cfg(cls, cfg: Mapping[str, Any], path: str = "policy") -> DQNModel:
        """Read ``policy.model``; raises ConfigError naming the dotted path."""
        model = section(cfg, "model", path)
        path = f"{path}.model"
        sizes = model.get("encoder_hidden_size_list")
        if not isinstance(sizes, list | tuple):
            raise ConfigTypeError(
                f"{path}.encoder_hidden_size_list must be a list of layer widths, found {sizes!r}",
                path=f"{path}.encoder_hidden_size_list",
                expected="list",
                found=sizes,
            )
        widths = {str(i): size for i, size in enumerate(sizes)}
        return cls(
            obs_size=_size(model, "obs_shape", path),
            action_count=_size(model, "action_shape", path),
            hidden_sizes=tuple(
                integer(widths, key, f"{path}.encoder_hidden_size_list") for key in widths
            ),
            dueling=flag(model, "dueling", path),
        )


@dataclass(frozen=True, slots=True)
class DQNLearning:
    """How the Q network is trained."""

    batch_size: int
    learning_rate: float
    loss: str
    huber_delta: float
    double: bool
    grad_clip_norm: float | None
    target_update_freq: int
    target_theta: float | None
    returns_priority: bool

    @classmethod
    def from_cfg(cls, cfg: Mapping[str, Any], path: str = "policy") -> DQNLearning:
        """Read ``policy.learn``; raises ConfigError naming the dotted path."""
        learn = section(cfg, "learn", path)
        priority = flag(cfg, "priority", path)
        path = f"{path}.learn"
        if learn.get("loss") not in LOSSES:
            raise ConfigError(
                f"{path}.loss is {learn.get('loss')!r}; losses are {', '.join(LOSSES)}",
                path=f"{path}.loss",
                found=learn.get("loss"),
                known=list(LOSSES),
            )
        clips = learn.get("grad_clip_norm") is not None
        soft = learn.get("target_theta") is not None
        return cls(
            batch_size=integer(learn, "batch_size", path),
            learning_rate=number(learn, "learning_rate", path, above=0),
            loss=learn["loss"],
            huber_delta=number(learn, "huber_delta", path, above=0),
            double=flag(learn, "double", path),
            grad_clip_norm=number(learn, "grad_clip_norm", path, above=0) if clips else None,
            target_update_freq=integer(learn, "target_update_freq", path),
            target_theta=number(learn, "target_theta", path, above=0, high=1) if soft else None,
            returns_priority=priority,
        )


def model_from_spaces(observation_space: Any, action_space: Any) -> dict[str, int]:
    """Return ``{obs_shape, action_shape}`` of an env, as ``policy.model`` wants them.

    Raises:
        ConfigError: DQN here takes a Box of one dimension and a Discrete that starts at 0.
    """
    from gymnasium import spaces

    if not (isinstance(observation_space, spaces.Box) and len(observation_space.shape) == 1):
        raise _unsupported("observation", observation_space, "a Box of one dimension")
    if not (isinstance(action_space, spaces.Discrete) and action_space.start == 0):
        raise _unsupported("action", action_space, "a Discrete that starts at 0")
    return {"obs_shape": int(observation_space.shape[0]), "action_shape": int(action_space.n)}


def _unsupported(which: str, space: Any, supported: str) -> ConfigError:
    return ConfigError(
        f"policy type dqn cannot use the {which} space {space}: it supports {supported}; "
        "flatten or discretize it with a wrapper (env.wrappers), or choose another policy",
        path="env.env_id",
        expected=supported,
        found=str(space),
    )


def _size(model: Mapping[str, Any], key: str, path: str) -> int:
    """An int, or a shape of one dimension."""
    value = model.get(key)
    if value is None:
        raise ConfigError(
            f"{path}.{key} is not set; give it, or fill the section from the env's spaces with "
            "DQNPolicy.model_from_spaces",
            path=f"{path}.{key}",
        )
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, numbers.Integral | float | str | bool):
        return integer({key: value}, key, path)
    raise ConfigError(
        f"{path}.{key} is {value!r}; dqn supports a single size: a flat observation and one "
        "discrete action",
        path=f"{path}.{key}",
        expected="int",
        found=value,
    )
