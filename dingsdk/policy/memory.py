"""The states that a recurrent policy stores for each env between two steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.capture import Savable


class Memory(Savable):
    """Recurrent states by env id; an env without one has a state of zeros.

    Not safe for concurrent callers.

    Args:
        size: Length of a state, >= 1.
    """

    saved = ("_rows", "_states")

    def __init__(self, size: int) -> None:
        self.size = size
        self._rows: dict[int, int] = {}
        self._states = np.zeros((8, size), np.float32)

    def read(self, env_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the states of these envs as a new array ``float32[n, size]``."""
        rows = self._rows_of(env_ids)  # may replace the array
        return self._states[rows]

    def write(self, env_ids: Sequence[int], states: NDArray[np.float32]) -> None:
        """Set the states of these envs to ``float32[n, size]``."""
        rows = self._rows_of(env_ids)
        self._states[rows] = states

    def reset(self, env_ids: Sequence[int] | None = None) -> None:
        """Set the states of these envs, or of all (None), to zeros; unknown ids have no effect."""
        rows = self._rows.values() if env_ids is None else map(self._rows.get, env_ids)
        self._states[[row for row in rows if row is not None]] = 0

    def _rows_of(self, env_ids: Sequence[int]) -> list[int]:
        rows = self._rows
        try:
            return [rows[env_id] for env_id in env_ids]
        except KeyError:
            for env_id in env_ids:
                rows.setdefault(int(env_id), len(rows))
            if len(rows) > len(self._states):
                larger = np.zeros((2 * len(rows), self.size), np.float32)
                larger[: len(self._states)] = self._states
                self._states = larger
            return [rows[env_id] for env_id in env_ids]
