"""Checks of observations and actions against gymnasium spaces, single or in columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from sys import getrefcount
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from dingsdk.errors import ConfigError, NonFiniteError, PolicyOutputError, SchemaMismatchError

Obs = Any
"""An observation column: an array ``[n, ...]``, or a (nested) dict of them."""

_ARRAY_SPACES = (
    gym.spaces.Box,
    gym.spaces.Discrete,
    gym.spaces.MultiBinary,
    gym.spaces.MultiDiscrete,
)

_FLOAT32, _BOOL = np.dtype(np.float32), np.dtype(np.bool_)

_MOST_VALUES = 4096
"""Discrete spaces with more actions are checked by comparison instead of with a set."""


class ObservationSchema:
    """Checks, copies and stacks observations of one space.

    Array spaces and (nested) Dict spaces of them can be put into columns. Other spaces (Tuple,
    Text, Graph, ...) pass through single steps unchecked and have no columns.

    Args:
        space: The space of one env's observation.
        key: Dotted name of this part of the observation, for errors.

    Attributes:
        dtype: Dtype of an array space; object for others.
    """

    def __init__(self, space: Any, key: str = "obs") -> None:
        self.space = space
        self.key = key
        self._children: dict[str, ObservationSchema] | None = None
        self._is_array = isinstance(space, _ARRAY_SPACES)
        self._shape: tuple[int, ...] = ()
        self.dtype = np.dtype(object)
        if isinstance(space, gym.spaces.Dict):
            self._children = {
                str(name): ObservationSchema(child, f"{key}.{name}")
                for name, child in space.spaces.items()
            }
        elif self._is_array:
            self._shape = tuple(space.shape)
            self.dtype = np.dtype(space.dtype)
        self._is_float = self.dtype.kind == "f"

    def conform(self, obs: Any) -> Any:
        """Return a copy of one observation in the space's dtype, checked.

        Raises:
            SchemaMismatchError: the wrong shape, a value of the wrong kind, or NaN.
        """
        if self._children is not None:
            self._check_keys(obs)
            return {name: child.conform(obs[name]) for name, child in self._children.items()}
        if not self._is_array:
            return obs
        try:
            array = np.array(obs, dtype=self.dtype)
        except (TypeError, ValueError) as error:
            raise self._mismatch(f"{type(obs).__name__} ({error})") from error
        if array.shape != self._shape:
            raise self._mismatch(f"{array.dtype}{list(array.shape)}")
        if self._is_float and has_nan(array):
            raise self._mismatch(f"{array.dtype}{list(array.shape)} with NaN")
        return array if self._shape else array[()]

    def stack(self, rows: Sequence[Any]) -> Obs:
        """Return the column ``[len(rows), ...]`` of observations that ``conform`` returned.

        Raises:
            ConfigError: the space has no columns.
        """
        columns = self.allocate(len(rows), np.empty)
        for index, row in enumerate(rows):
            self.put(columns, index, row)
        return columns

    def allocate(
        self, count: int, new: Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]
    ) -> Obs:
        """Return columns ``[count, ...]`` of arrays that ``new(shape, dtype)`` makes.

        Raises:
            ConfigError: the space has no columns.
        """
        if self._children is not None:
            return {name: child.allocate(count, new) for name, child in self._children.items()}
        self.require_columns()
        return new((count, *self._shape), self.dtype)

    def put(self, columns: Obs, index: int, row: Any) -> None:
        """Write an observation that ``conform`` returned into a row of columns."""
        if self._children is None:
            columns[index] = row
        else:
            for name, child in self._children.items():
                child.put(columns[name], index, row[name])

    def replace(self, columns: Obs, rows: Sequence[int], values: Sequence[Any]) -> Obs:
        """Return a copy of ``columns`` whose ``rows`` hold ``values``."""
        replaced = self.own(columns)
        for row, value in zip(rows, values, strict=True):
            self.put(replaced, row, value)
        return replaced

    def check_columns(self, columns: Obs, count: int) -> None:
        """Check shape and NaN of ``count`` observations, given in the space's dtype.

        Raises:
            SchemaMismatchError: as ``conform``.
        """
        if self._children is not None:
            self._check_keys(columns)
            for name, child in self._children.items():
                child.check_columns(columns[name], count)
            return
        if columns.shape != (count, *self._shape):
            expected = f"{self.dtype}{[count, *self._shape]}"
            raise self._mismatch(f"{columns.dtype}{list(columns.shape)}", expected)
        if self._is_float and has_nan(columns):
            bad = np.flatnonzero(np.isnan(columns.reshape(count, -1)).any(axis=1))
            raise self._mismatch(
                f"{columns.dtype}{list(columns.shape)} with NaN in rows {bad.tolist()}"
            )

    def own(self, columns: Obs) -> Obs:
        """Return an independent copy of ``columns``."""
        if self._children is not None:
            return {name: child.own(columns[name]) for name, child in self._children.items()}
        return np.array(columns, dtype=self.dtype)

    def require_columns(self) -> None:
        """Raise ConfigError if the space cannot be put into columns."""
        if self._children is not None:
            for child in self._children.values():
                child.require_columns()
        elif not self._is_array:
            raise ConfigError(
                f"the observation space {self.space} at {self.key} has no columns; add a wrapper "
                "that turns it into a Box or Dict, or use the dict form",
                path="env.wrappers",
                key=self.key,
            )

    def _check_keys(self, obs: Any) -> None:
        expected = self._children or {}
        if not isinstance(obs, Mapping):
            raise self._mismatch(type(obs).__name__, f"a dict with {sorted(expected)}")
        if obs.keys() != expected.keys():
            raise self._mismatch(f"a dict with {sorted(obs)}", f"a dict with {sorted(expected)}")

    def _mismatch(self, found: str, expected: str | None = None) -> SchemaMismatchError:
        expected = expected or f"{self.dtype}{list(self._shape)}"
        return SchemaMismatchError(
            f"the env returned {self.key}: {found}, its observation space says {expected}; "
            "correct the env or its observation_space",
            key=self.key,
            expected=expected,
            found=found,
        )


class ActionChecker:
    """Refuses actions outside the space, single ones or a batch at once.

    Args:
        space: The action space of one env. Actions of array spaces (Discrete, Box,
            MultiDiscrete, MultiBinary) are cast to its dtype; others are only checked.
    """

    def __init__(self, space: Any) -> None:
        self.space = space
        self._is_array = True
        if isinstance(space, gym.spaces.Discrete):
            self._low, self._high = np.asarray(space.start), np.asarray(space.start + space.n - 1)
        elif isinstance(space, gym.spaces.Box):
            self._low, self._high = space.low, space.high
        elif isinstance(space, gym.spaces.MultiDiscrete):
            self._low, self._high = space.start, space.start + space.nvec - 1
        elif isinstance(space, gym.spaces.MultiBinary):
            self._low, self._high = np.zeros(space.shape), np.ones(space.shape)
        else:
            self._is_array = False
        if self._is_array:
            self._shape = tuple(space.shape)
            self._dtype = np.dtype(space.dtype)
            self._kinds = "iu" if self._dtype.kind in "iub" else "iuf"
        self._valid = (
            frozenset(range(int(space.start), int(space.start + space.n)))
            if isinstance(space, gym.spaces.Discrete) and space.n <= _MOST_VALUES
            else None
        )

    def batch(self, actions: Any, count: int) -> NDArray[Any]:
        """Return ``count`` actions ``[count, ...]`` in the space's dtype.

        Raises:
            PolicyOutputError: the wrong shape or kind, or outside the space.
            NonFiniteError: NaN or infinity.
            ConfigError: the space is not an array space, so it has no batched form.
        """
        if (
            self._valid is not None
            and type(actions) is np.ndarray
            and actions.dtype == self._dtype
            and actions.shape == (count,)
            # Half the time of a numpy reduction at 8 actions, the same at 64.
            and self._valid.issuperset(actions.tolist())
        ):
            return actions
        self._check_columns()
        return self._check(actions, (count, *self._shape))

    def single(self, action: Any) -> Any:
        """Return one action, checked as ``batch`` does; a 0-d one as a numpy scalar."""
        if self._is_array:
            return self._check(action, self._shape)[()]
        if not self.space.contains(action):
            raise self._refusal(PolicyOutputError, f"an action of {self.space}", repr(action))
        return action

    def filler(self, count: int) -> NDArray[Any]:
        """Return ``count`` valid actions for envs whose action has no effect."""
        self._check_columns()
        action = np.clip(np.zeros(self._shape), self._low, self._high).astype(self._dtype)
        return np.broadcast_to(action, (count, *self._shape)).copy()

    def _check_columns(self) -> None:
        if not self._is_array:
            raise ConfigError(
                f"actions of {self.space} have no columns; use the dict form, or add a wrapper "
                "that turns the action space into one of arrays",
                path="env.wrappers",
            )

    def _check(self, action: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        expected = f"{self._dtype}{list(shape)} in {self.space}"
        try:
            array = np.asarray(action)
        except (TypeError, ValueError, RuntimeError) as error:
            raise self._refusal(
                PolicyOutputError, expected, f"{type(action).__name__} ({error})"
            ) from error
        found = f"{array.dtype}{list(array.shape)}"
        if array.dtype.kind == "f" and array.size and not np.isfinite(array).all():
            kind = "NaN" if has_nan(array) else "infinity"
            raise self._refusal(NonFiniteError, expected, f"{found} with {kind}")
        if array.shape != shape or array.dtype.kind not in self._kinds:
            raise self._refusal(PolicyOutputError, expected, found)
        outside = (array < self._low) | (array > self._high)
        if self._dtype.kind == "f" and outside.any():
            # A bound may round to another float in the policy's dtype.
            cast = array.astype(self._dtype)
            outside = (cast < self._low) | (cast > self._high)
        if outside.any():
            values = np.unique(array[outside])[:3].tolist()
            raise self._refusal(PolicyOutputError, expected, f"{found} with {values}")
        return array.astype(self._dtype, copy=False)

    @staticmethod
    def _refusal(error: type[PolicyOutputError], expected: str, found: str) -> PolicyOutputError:
        return error(
            f"the policy's action is {found}, the env needs {expected}; check the policy's "
            "model.action_shape and its output",
            key="action",
            expected=expected,
            found=found,
        )


def has_nan(array: NDArray[Any]) -> bool:
    """Whether a float array holds NaN; infinities do not count."""
    # Looking for a byte costs a fraction of any() on small arrays. "A": columns of a native vector
    # env are often in Fortran order, which "C" would convert first.
    return 1 in np.isnan(array).tobytes("A")


def are_fresh(obs: Any, reward: Any, terminated: Any, truncated: Any, dtype: np.dtype[Any]) -> bool:
    """Whether the caller's variables are the only references to the four arrays of a step.

    A native vector env may hand out new arrays at each step or the same buffers again; the
    reference counts tell which, exactly, and cost less than the copies that they may save.

    Args:
        obs: Any value; only an array of ``dtype`` can be fresh.
        reward: Only float32 can be fresh.
        terminated: Only bool can be fresh.
        truncated: Only bool can be fresh.
        dtype: Dtype of the observation space.
    """
    most = _REFERENCES_OF_A_FRESH_ARRAY
    return (
        type(obs) is type(reward) is type(terminated) is type(truncated) is np.ndarray
        and obs.dtype is dtype
        and reward.dtype is _FLOAT32
        and terminated.dtype is truncated.dtype is _BOOL
        and obs.base is reward.base is terminated.base is truncated.base is None
        and getrefcount(obs) <= most
        and getrefcount(reward) <= most
        and getrefcount(terminated) <= most
        and getrefcount(truncated) <= most
    )


def _count_references(array: Any) -> int:
    return getrefcount(array)


def _references_of_a_fresh_array() -> int:
    # 3 up to CPython 3.13 (the caller's variable, the parameter, the argument of
    # getrefcount); measured, because later versions borrow some of them.
    array = np.empty(1)
    return _count_references(array)


_REFERENCES_OF_A_FRESH_ARRAY = _references_of_a_fresh_array()
