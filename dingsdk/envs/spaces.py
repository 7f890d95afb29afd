"""Checks of observations and actions against gymnasium spaces, single or in columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from dingsdk.data.pytree import map_leaves
from dingsdk.errors import ConfigError, NonFiniteError, PolicyOutputError, SchemaMismatchError

Obs = Any
"""An observation column: an array ``[n, ...]``, or a (nested) dict of them."""

_log = logging.getLogger(__name__)

_ARRAY_SPACES = (
    gym.spaces.Box,
    gym.spaces.Discrete,
    gym.spaces.MultiBinary,
    gym.spaces.MultiDiscrete,
)

_MOST_VALUES = 4096
"""Discrete spaces with more actions are checked by comparison instead of with a set."""

_LOOKS, _LOOK_EVERY = 256, 17
"""Steps in which values beyond bounds are looked for; after that, only in each 17th.

A prime number, so that no group of envs that take turns is left out.
"""


class ObservationSchema:
    """Checks, copies and stacks observations of one space.

    Array spaces and (nested) Dict spaces of them can be put into columns. Other spaces (Tuple,
    Text, Graph, ...) pass through single steps unchecked and have no columns.

    A float that the space's dtype rounds is accepted; a value that a cast would change in another
    way is refused. Values beyond the bounds of a Box are accepted (see ``beyond``), values outside
    of a discrete space are refused.

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
        is_box = isinstance(space, gym.spaces.Box)
        self._is_bounded = False  # whether the dtype holds values beyond the bounds of a Box
        if is_box:
            limits: Any = (np.finfo if self._is_float else np.iinfo)(self.dtype)
            self._is_bounded = bool(
                (space.low > limits.min).any() or (space.high < limits.max).any()
            )
        # The lowest and the highest value that a discrete space allows.
        self._limits = _low_and_high(space) if self._is_array and not is_box else None
        # Python's integers are compared faster than arrays.
        self._indices = (
            range(int(space.start), int(space.start + space.n))
            if isinstance(space, gym.spaces.Discrete)
            else range(0)
        )

    def conform(self, obs: Any) -> Any:
        """Return a copy of one observation in the space's dtype, checked.

        Raises:
            SchemaMismatchError: the wrong shape, a value of the wrong kind, NaN, a value that the
                dtype cannot hold, or one outside of a discrete space.
        """
        if self._children is not None:
            self._check_keys(obs)
            return {name: child.conform(obs[name]) for name, child in self._children.items()}
        if not self._is_array:
            return obs
        if self._indices and isinstance(obs, int | np.integer) and int(obs) in self._indices:
            return self.dtype.type(obs)
        array = self._cast(obs, self._shape)
        return array if self._shape else array[()]

    def conform_columns(self, columns: Any, count: int) -> Obs:
        """Return a copy of ``count`` observations in columns, checked; as ``conform``."""
        if self._children is not None:
            self._check_keys(columns)
            parts = self._children.items()
            return {name: child.conform_columns(columns[name], count) for name, child in parts}
        return self._cast(columns, (count, *self._shape))

    def stack(self, rows: Sequence[Any]) -> Obs:
        """Return the column ``[len(rows), ...]`` of observations that ``conform`` returned.

        Raises:
            ConfigError: the space has no columns.
        """
        if self._children is not None:
            parts = self._children.items()
            return {name: child.stack([row[name] for row in rows]) for name, child in parts}
        column = self.allocate(len(rows), np.empty)
        for index, row in enumerate(rows):
            column[index] = row
        return column

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
        replaced = map_leaves(np.array, columns)
        for row, value in zip(rows, values, strict=True):
            self.put(replaced, row, value)
        return replaced

    def beyond(self, obs: Obs) -> str | None:
        """Return in words which part leaves the bounds of its Box; None if there is none.

        Args:
            obs: One observation that ``conform`` returned, or columns.
        """
        if self._children is not None:
            parts = (child.beyond(obs[name]) for name, child in self._children.items())
            return next(filter(None, parts), None)
        if not self._is_bounded or not ((obs < self.space.low) | (obs > self.space.high)).any():
            return None
        return f"{self.key} holds {obs.min()} to {obs.max()}, and its space is {self.space}"

    def _cast(self, found: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a copy in the space's dtype, checked."""
        if type(found) is np.ndarray and found.dtype is self.dtype:
            array = found.copy("K")
            # As in `_check`, which nearly every observation of an env would pass.
            is_fine = self._is_float and array.shape == shape
            if not (is_fine and 0 not in np.isfinite(array).tobytes("A")):
                self._check(array, shape, array)
            return array
        try:
            source = np.asarray(found)
            if source.dtype.kind == "O":
                source = np.asarray(source.tolist())
        except (TypeError, ValueError, RuntimeError) as error:
            raise self._mismatch(f"{type(found).__name__} ({error})") from error
        kind = source.dtype.kind
        if kind not in "biuf":
            raise self._mismatch(_type_of(source))
        if kind == "f" or self.dtype == np.float16:
            array = _cast_quietly(source, self.dtype)
        else:
            array = source.astype(self.dtype)
        self._check(array, shape, source)
        return array

    def _check(self, array: NDArray[Any], shape: tuple[int, ...], source: NDArray[Any]) -> None:
        """Check the shape and the values of an array that was cast from ``source``."""
        if array.shape != shape:
            raise self._mismatch(_type_of(source), f"{self.dtype}{list(shape)}")
        if self._is_float:
            # Looking for a byte costs a fraction of all() on small arrays. "A": columns of a native
            # vector env are often in Fortran order, which "C" would convert first.
            if 0 not in np.isfinite(array).tobytes("A"):
                return
            bad = np.isnan(array) | (np.isinf(array) & np.isfinite(source))
        elif self._limits is not None:
            bad = (array < self._limits[0]) | (array > self._limits[1]) | (array != source)
        elif array is not source:
            bad = array != source
        else:
            return
        if 1 in bad.tobytes():
            value, rows = source[bad][0], ""
            if bad.ndim > len(self._shape):
                rows = f" in rows {np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1)).tolist()}"
            found = f"{_type_of(source)} with {'NaN' if value != value else value}{rows}"
            raise self._mismatch(found, str(self.space))

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
            raise self._mismatch(
                f"a dict with {sorted(map(str, obs))}", f"a dict with {sorted(expected)}"
            )

    def _mismatch(self, found: str, expected: str | None = None) -> SchemaMismatchError:
        expected = expected or f"{self.dtype}{list(self._shape)}"
        return SchemaMismatchError(
            f"the env returned {self.key}: {found}, its observation space says {expected}; "
            "correct the env or its observation_space",
            key=self.key,
            expected=expected,
            found=found,
        )


class BoundsWatch:
    """Warns of a value beyond the bounds of its Box; once for each env manager.

    Attributes:
        is_on: Whether ``look`` has found none yet; otherwise it need not be called.
    """

    def __init__(self) -> None:
        self.is_on = True
        self._looks = 0

    def look(self, schema: ObservationSchema, obs: Sequence[Obs]) -> None:
        """Look at a step, if its turn has come.

        Args:
            schema: Of the observations.
            obs: Observations or columns of one step.
        """
        self._looks += 1
        if self._looks > _LOOKS and self._looks % _LOOK_EVERY:
            return
        if (text := next(filter(None, map(schema.beyond, obs)), None)) is not None:
            self.is_on = False
            _log.warning(
                "the env returned an observation outside of its space, and it is used as it "
                "is: %s; correct the observation_space if its bounds matter (reported once)",
                text,
            )


class ActionChecker:
    """Refuses actions outside the space, single ones or a batch at once.

    Args:
        space: The action space of one env. Actions of array spaces (Discrete, Box,
            MultiDiscrete, MultiBinary) are cast to its dtype; others are only checked.
    """

    def __init__(self, space: Any) -> None:
        self.space = space
        self._is_array = isinstance(space, _ARRAY_SPACES)
        if self._is_array:
            self._low, self._high = _low_and_high(space)
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
            kind = "NaN" if np.isnan(array).any() else "infinity"
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


def _type_of(array: NDArray[Any]) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _low_and_high(space: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the lowest and the highest values of an array space."""
    if isinstance(space, gym.spaces.Box):
        return space.low, space.high
    if isinstance(space, gym.spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype)
    count = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
    return np.asarray(space.start), np.asarray(space.start + count - 1)


@np.errstate(over="ignore", invalid="ignore")
def _cast_quietly(source: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    return source.astype(dtype)
