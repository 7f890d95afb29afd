"""Checks of actions before any env sees them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from dingsdk.envs.observation import has_nan
from dingsdk.errors import ConfigError, NonFiniteError, PolicyOutputError

_MOST_VALUES = 4096
"""Discrete spaces of more actions are checked by comparison, not from a set."""


class ActionChecker:
    """Refuses actions that are not in the space, for one env or for a batch at once.

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
            ConfigError: the space is none of arrays, so it has no batched form.
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
        if not self._is_array:
            raise ConfigError(
                f"actions of {self.space} have no columns; use the dict form, or add a wrapper "
                "that turns the action space into one of arrays",
                path="env.wrappers",
            )
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
        if not self._is_array:
            return self.batch(None, count)
        action = np.clip(np.zeros(self._shape), self._low, self._high).astype(self._dtype)
        return np.broadcast_to(action, (count, *self._shape)).copy()

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
