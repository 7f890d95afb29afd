"""Action masks: observations that contain which actions are legal."""

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


def nearest_legal(actions: Any, obs: Any) -> Any:
    """Return the actions, with each illegal action replaced by the next legal one.

    Args:
        actions: An action, counted from 0, or an array of actions.
        obs: The observations. Their ``action_mask`` has the shape of ``actions`` and one more
            dimension, for the actions. Without a mask, all actions are legal.
    """
    if not isinstance(obs, Mapping) or ACTION_MASK not in obs:
        return actions
    legal = np.asarray(obs[ACTION_MASK]).astype(np.bool_)
    count = legal.shape[-1]
    tried = (np.asarray(actions)[..., None] + np.arange(count)) % count
    first = np.take_along_axis(legal, tried, -1).argmax(-1)
    return np.take_along_axis(tried, first[..., None], -1)[..., 0]
