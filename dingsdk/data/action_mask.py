"""Action masks: observations that contain which actions are legal; and examples of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.errors import SchemaMismatchError

ACTION_MASK = "action_mask"
"""Key in a dict observation: an array with one number per action, 0 if it is not legal now."""


def legal_actions(
    obs: Any, env_ids: Sequence[int] | NDArray[np.int64] | None = None
) -> NDArray[np.bool_] | None:
    """Return which actions are legal in each row, as bool[n, actions]; None without a mask.

    Args:
        obs: Observations as columns ``[n, ...]``.
        env_ids: The env of each row, for the error message.

    Raises:
        SchemaMismatchError: a row has no legal action.
    """
    # type() first: isinstance with an ABC takes a microsecond, at each step of the envs.
    if type(obs) is np.ndarray or not isinstance(obs, Mapping) or ACTION_MASK not in obs:
        return None
    legal = np.asarray(obs[ACTION_MASK]).astype(np.bool_)
    if not (usable := legal.any(1)).all():
        rows = np.flatnonzero(~usable)
        envs = ", ".join(str(row if env_ids is None else env_ids[row]) for row in rows.tolist())
        raise SchemaMismatchError(
            f"obs.{ACTION_MASK} of env {envs} allows none of the {legal.shape[1]} actions; an env "
            "that waits for an action needs a legal one",
            key=f"obs.{ACTION_MASK}",
            expected="a legal action",
            found=[0] * legal.shape[1],
        )
    return legal


def open_masks(obs: Any, idle: Any = True) -> Any:
    """Return observations in which a mask of an env that takes no action allows all actions.

    Such an env's mask may allow none, and a policy that computes a whole batch would refuse it.

    Args:
        obs: Observations as columns ``[n, ...]``, or one observation.
        idle: bool[n], True for envs whose next action is not used; or one bool.
    """
    if type(obs) is np.ndarray or not isinstance(obs, Mapping) or ACTION_MASK not in obs:
        return obs
    mask = np.array(obs[ACTION_MASK])
    without = ~mask.astype(np.bool_).any(-1)
    mask[without & np.reshape(idle, np.shape(idle) + (1,) * (without.ndim - np.ndim(idle)))] = 1
    return {**obs, ACTION_MASK: mask}


def draw_legal(legal: NDArray[np.bool_], draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return one legal action per row; all legal actions are equally probable.

    Args:
        legal: bool[n, actions], with at least one True in each row.
        draws: float64[n], uniform in [0, 1).
    """
    counts = legal.sum(1)
    place = np.minimum((draws * counts).astype(np.int64), counts - 1)
    found: NDArray[np.int64] = (legal.cumsum(1) > place[:, None]).argmax(1)
    return found


def legal_action(space: Any, action: Any, obs: Any) -> Any:
    """Return an action or a batch of them, with illegal ones replaced by the next legal ones.

    Args:
        space: The action space of one env.
        action: An action of the space, or an array of actions ``[n, ...]``.
        obs: The observation, or columns of ``n`` observations. Only an ``action_mask`` that has one
            number for each action of the space counts; without one, all actions are legal.
    """
    if not isinstance(obs, Mapping) or ACTION_MASK not in obs:
        return action
    legal = np.asarray(obs[ACTION_MASK]).astype(np.bool_)
    if legal.shape[:-1] != np.shape(action) or not np.all(_action_counts(space) == legal.shape[-1]):
        return action
    count = legal.shape[-1]
    tried = ((np.asarray(action) - space.start)[..., None] + np.arange(count)) % count
    first = np.take_along_axis(legal, tried, -1).argmax(-1)
    found = np.take_along_axis(tried, first[..., None], -1)[..., 0] + space.start
    # A batch stays an array, and an action without an axis becomes a scalar.
    return found.astype(space.dtype)[()]


def sample_action(space: Any, obs: Any) -> Any:
    """Return a random action of a space that is legal in one observation."""
    return legal_action(space, space.sample(), obs)


def sample_obs(space: Any) -> Any:
    """Return a random observation of a space; if it has masks, they allow an action."""
    return open_masks(space.sample())


def _action_counts(space: Any) -> Any:
    """Return the number of actions of a Discrete, or those of a MultiDiscrete; 0 for others."""
    return getattr(space, "n", getattr(space, "nvec", 0)) if hasattr(space, "start") else 0
