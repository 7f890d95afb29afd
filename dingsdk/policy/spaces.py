"""Convert the spaces of an env to the shapes in ``policy.model``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.action_mask import ACTION_MASK
from dingsdk.errors import ConfigError

DISCRETE = re.compile(r"Discrete\(([1-9][0-9]*)(?:, start=(-?[0-9]+))?\)")
"""An observation that is one of n numbers."""
_LONGEST_SHAPE = 4
"""Largest number of dimensions of a Box that a network takes."""
_OBSERVATIONS = "a Box of one to four dimensions, a Discrete, a MultiBinary, or a Dict of these"


def discrete_model(policy: str, observation_space: Any, action_space: Any) -> dict[str, Any]:
    """Return ``obs_shape`` and the actions of an env with discrete ones, for ``ModelSection``.

    Args:
        policy: Type key of the policy, for messages.
        observation_space: See ``obs_shape``.
        action_space: A Discrete.

    Raises:
        ConfigError: the policy cannot use these spaces.
    """
    found = actions_of(action_space)
    if found.pop("action_space", None) != "discrete":
        raise unsupported_space(policy, "action", action_space, "a Discrete")
    check_mask(policy, observation_space, action_space)
    return {"obs_shape": obs_shape(policy, observation_space), **found}


def actions_of(space: Any) -> dict[str, Any]:
    """Return ``action_space``, ``action_shape`` and the bounds of a Box; empty for other spaces.

    ``action_start`` is included if it is not 0.

    Args:
        space: A Discrete, a MultiDiscrete of one dimension, or a Box of floats.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        start = {"action_start": int(space.start)} if space.start else {}
        return {"action_space": "discrete", "action_shape": int(space.n), **start}
    if isinstance(space, spaces.MultiDiscrete):
        if len(space.shape) != 1:
            return {}
        start = {"action_start": space.start.tolist()} if space.start.any() else {}
        return {"action_space": "multi_discrete", "action_shape": space.nvec.tolist(), **start}
    is_box = isinstance(space, spaces.Box) and space.dtype.kind == "f" and bool(space.shape)
    # In float32, as actions are computed: bounds such as 1e9 and 1e9 + 1 are equal there.
    if not is_box or not (_float32(space.low) < _float32(space.high)).all():
        return {}
    return {
        "action_space": "continuous",
        "action_shape": int(space.shape[0]) if len(space.shape) == 1 else list(space.shape),
        "action_low": space.low.reshape(-1).astype(float).tolist(),
        "action_high": space.high.reshape(-1).astype(float).tolist(),
    }


def _float32(bounds: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return bounds.astype(np.float32)


def obs_shape(policy: str, space: Any) -> Any:
    """Return ``policy.model.obs_shape`` for an observation space.

    Args:
        policy: Type key of the policy, for messages.
        space: A Box of at most four dimensions, a Discrete, a MultiBinary, or a Dict of these. The
            entry ``action_mask`` of a Dict marks the legal actions.

    Raises:
        ConfigError: the policy cannot use this space.
    """
    found = _shape(space)
    if found is None:
        raise unsupported_space(policy, "observation", space, _OBSERVATIONS)
    return found


def check_mask(policy: str, observation_space: Any, action_space: Any) -> None:
    """Check that an ``action_mask`` in observations has one number per action.

    Raises:
        ConfigError: it does not, or actions are not discrete.
    """
    from gymnasium import spaces

    parts = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
    if (found := parts.get(ACTION_MASK)) is None:
        return
    if isinstance(action_space, spaces.Discrete):
        supported = f"an action_mask of shape ({action_space.n},) with the actions {action_space}"
    else:
        supported = f"an action_mask only with discrete actions, and they are {action_space}"
    if not isinstance(action_space, spaces.Discrete) or found.shape != (action_space.n,):
        raise unsupported_space(policy, "observation", f"action_mask {found}", supported)


def unsupported_space(policy: str, which: str, space: Any, supported: str) -> ConfigError:
    """Return the error for a space that a policy cannot use.

    Args:
        policy: Type key of the policy.
        which: ``observation`` or ``action``.
        space: The env's space.
        supported: Description of the spaces that the policy can use.
    """
    return ConfigError(
        f"policy type {policy} cannot use the {which} space {space}: it supports {supported}; "
        "change it with a wrapper (env.wrappers), or choose another policy",
        path="env.env_id",
        expected=supported,
        found=str(space),
    )


@dataclass(frozen=True, slots=True)
class Normalized:
    """The shape of observations whose vectors the network normalises.

    Attributes:
        obs_shape: As in ``policy.model.obs_shape``.
        clip: Largest magnitude of a normalised number.
    """

    obs_shape: Any
    clip: float = 10.0


def check_shape(shape: Any, path: str = "obs_shape") -> None:
    """Check the parts of a shape.

    Raises:
        ValueError: a part is no valid shape; the message begins with the path of that part.
    """
    if isinstance(shape, Mapping):
        if not shape.keys() - {ACTION_MASK}:
            raise ValueError(f"{path} is {dict(shape)}; name at least one part that is no mask")
        for name, part in shape.items():
            check_shape(part, f"{path}.{name}")
        return
    if isinstance(shape, str):
        is_valid = DISCRETE.fullmatch(shape) is not None
    else:
        sides = [shape] if isinstance(shape, int) else shape
        is_valid = isinstance(sides, list | tuple) and 1 <= len(sides) <= _LONGEST_SHAPE
        is_valid = is_valid and all(type(side) is int and side >= 1 for side in sides)
    if not is_valid:
        raise ValueError(
            f"{path} is {shape!r}; expected a number, a list of one to four numbers, Discrete(n), "
            "or a dict of these"
        )


def _shape(space: Any) -> Any:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = {str(name): _shape(part) for name, part in space.spaces.items()}
        return None if None in parts.values() or not parts else parts
    if isinstance(space, spaces.Discrete):
        start = f", start={int(space.start)}" if space.start else ""
        return f"Discrete({int(space.n)}{start})"
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        sides = [int(side) for side in space.shape]
        if 1 <= len(sides) <= _LONGEST_SHAPE and min(sides) > 0:
            return sides[0] if len(sides) == 1 else sides
    return None
