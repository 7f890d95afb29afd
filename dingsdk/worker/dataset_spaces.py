"""Compares a data set with the spaces of an env, or derives spaces from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dingsdk.data import Dataset
from dingsdk.data.columns import leaves
from dingsdk.errors import DatasetError

_TOLERANCE = 1e-4
"""Part of the width of a Box by which recorded actions may exceed its bounds, as rounded."""


def check_dataset(dataset: Dataset, observation_space: Any, action_space: Any, name: str) -> None:
    """Check that a data set could have been recorded in an env.

    Shapes and kinds of numbers of observations and actions have to be those of the spaces, actions
    and the numbers of a Discrete in their range. Bounds of observations are not checked.

    Args:
        dataset: The data set.
        observation_space, action_space: Spaces of gymnasium.
        name: What has these spaces, for messages.

    Raises:
        DatasetError: a column does not fit.
    """
    for column, space in (
        ("obs", observation_space),
        ("next_obs", observation_space),
        ("action", action_space),
    ):
        found = dict(leaves({column: dataset.columns[column]}))
        wanted = dict(_parts(column, space))
        for part in sorted(found.keys() ^ wanted.keys()):
            there = f"and {name} has" if part in wanted else f"and is not one of {name}:"
            what = "is missing" if part in wanted else "is there"
            raise _misfit(dataset, part, f"{what}, {there} {space}")
        for part, leaf in found.items():
            _check_part(dataset, part, leaf, wanted[part], name)


def spaces_of(dataset: Dataset) -> tuple[Any, Any]:
    """Return an observation space and an action space that contain all rows of a data set.

    Integers of an action are a Discrete from 0, or from the least one if that is negative, to the
    greatest one. Other actions are a Box with the bounds of the recorded ones.
    """
    columns = dataset.columns
    return _observations(columns["obs"], columns["next_obs"]), _actions(columns["action"])


def _parts(column: str, space: Any) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the space of each part of a nested Dict."""
    if not isinstance(space, spaces.Dict):
        yield column, space
        return
    for key, part in space.spaces.items():
        yield from _parts(f"{column}.{key}", part)


def _check_part(dataset: Dataset, part: str, leaf: NDArray[Any], space: Any, name: str) -> None:
    shape, dtype = leaf.shape[1:], np.dtype(space.dtype)
    is_of_kind = (leaf.dtype.kind == "f") == (dtype.kind == "f")
    if isinstance(space, spaces.Box) and not part.startswith("action"):
        # Networks scale images of bytes, and take all other numbers as they are.
        is_of_kind &= (leaf.dtype == np.uint8) == (dtype == np.uint8)
    if shape != (space.shape or ()) or not is_of_kind:
        raise _misfit(
            dataset, part, f"is {leaf.dtype}{list(shape)} for each row, and {name} has {space}"
        )
    is_discrete = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    if is_discrete:
        low = np.asarray(space.start)
        count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        high, margin = low + count - 1, np.asarray(0)
    elif isinstance(space, spaces.Box) and part.startswith("action"):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        margin = (high - low) * _TOLERANCE if space.dtype.kind == "f" else np.asarray(0)
    else:
        return
    is_outside = (leaf < low - margin) | (leaf > high + margin)
    if is_outside.any():
        row = int(np.argwhere(is_outside)[0][0])
        raise _misfit(dataset, part, f"is {leaf[row]} in row {row}, and {name} has {space}")


def _observations(obs: Any, after: Any) -> Any:
    if isinstance(obs, Mapping):
        return spaces.Dict({key: _observations(part, after[key]) for key, part in obs.items()})
    if obs.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, obs.shape[1:], obs.dtype.type)
    if obs.dtype.kind == "b":
        return spaces.MultiBinary(obs.shape[1:])
    if obs.ndim == 1:
        return _discrete(np.concatenate((obs, after)))
    info = np.iinfo(obs.dtype)
    return spaces.Box(info.min, info.max, obs.shape[1:], obs.dtype.type)


def _actions(action: NDArray[Any]) -> Any:
    low, high = action.min(axis=0), action.max(axis=0)
    if action.dtype.kind != "f":
        return _discrete(action) if action.ndim == 1 else spaces.MultiDiscrete(high + 1)
    # A Box has a width in each dimension.
    is_constant = low == high
    low, high = np.where(is_constant, low - 1, low), np.where(is_constant, high + 1, high)
    return spaces.Box(low, high, dtype=action.dtype.type)


def _discrete(numbers: NDArray[Any]) -> Any:
    start = min(0, int(numbers.min()))
    return spaces.Discrete(int(numbers.max()) - start + 1, start=start)


def _misfit(dataset: Dataset, column: str, what: str) -> DatasetError:
    return DatasetError(
        f"{dataset.source}: column {column!r} {what}", source=dataset.source, column=column
    )
