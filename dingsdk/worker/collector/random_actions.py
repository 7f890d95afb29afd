"""Uniformly random actions for a first fill of the buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class RandomActions:
    """Draws batches of actions from a gymnasium space.

    Args:
        space: The space of one env's action.
        seed: Seed of the stream; None for fresh entropy.
    """

    def __init__(self, space: Any, seed: int | None) -> None:
        self._space = space
        self._rng = np.random.default_rng(seed)
        if not isinstance(space, (spaces.Discrete, spaces.Box)) and seed is not None:
            space.seed(seed)

    def draw(self, count: int) -> NDArray[Any]:
        """Return ``count`` actions: ``[count, ...]`` with the dtype of the space."""
        space = self._space
        if isinstance(space, spaces.Discrete):
            low = int(space.start)
            return self._rng.integers(low, low + int(space.n), count).astype(space.dtype)
        if isinstance(space, spaces.Box) and space.is_bounded("both"):
            drawn: NDArray[Any]
            if space.dtype.kind == "f":
                drawn = self._rng.uniform(space.low, space.high, (count, *space.shape))
            else:
                drawn = self._rng.integers(
                    space.low, space.high, (count, *space.shape), endpoint=True
                )
            return drawn.astype(space.dtype)
        return np.stack([np.asarray(space.sample()) for _ in range(count)])
