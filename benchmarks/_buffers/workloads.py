"""The rows that the buffers store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

CHUNK = 64
EPISODE = 200
"""Steps of an episode: as in CartPole, fewer than in most games. The last observations, which the
next row does not repeat, are therefore a larger share than in most games."""

Columns = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of transition, and the capacity of the buffers."""

    name: str
    capacity: int
    obs_shape: tuple[int, ...]
    obs_dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one transition as bare columns."""
        return sum(column[0].nbytes for column in self.empty(1).values())

    def empty(self, rows: int) -> Columns:
        """Return uninitialized columns of ``rows`` rows."""
        return {
            "obs": np.empty((rows, *self.obs_shape), self.obs_dtype),
            "next_obs": np.empty((rows, *self.obs_shape), self.obs_dtype),
            "action": np.empty(rows, np.int64),
            "reward": np.empty(rows, np.float32),
            "done": np.empty(rows, np.bool_),
        }

    def stream(self, chunk: int = CHUNK) -> Iterator[Columns]:
        """Yield chunks of one env: next_obs is the obs of the next row, except at episode ends."""
        rng = np.random.default_rng(0)
        last = self._observations(rng, 1)
        for number in itertools.count():
            # One observation more than rows: the last one is the first of the next chunk.
            seen = np.concatenate((last, self._observations(rng, chunk)))
            steps = np.arange(number * chunk, (number + 1) * chunk)
            columns = self.empty(chunk)
            columns["obs"][:], columns["next_obs"][:], last = seen[:-1], seen[1:], seen[-1:]
            columns["action"][:] = rng.integers(0, 2, chunk)
            columns["reward"][:] = rng.random(chunk)
            columns["done"][:] = steps % EPISODE == EPISODE - 1
            ends = np.flatnonzero(columns["done"])
            columns["next_obs"][ends] = self._observations(rng, len(ends))
            yield columns

    def chunks(self, count: int = 16) -> list[Columns]:
        """Return a few chunks to push repeatedly."""
        return list(itertools.islice(self.stream(), count))

    def rows(self) -> list[dict[str, Any]]:
        """Return single transitions as an env loop makes them: arrays and Python numbers."""
        columns = next(self.stream())
        numbers = {name: columns[name].tolist() for name in ("action", "reward", "done")}
        return [
            {"obs": obs, "next_obs": next_obs}
            | {name: column[row] for name, column in numbers.items()}
            for row, (obs, next_obs) in enumerate(
                zip(columns["obs"], columns["next_obs"], strict=True)
            )
        ]

    def _observations(self, rng: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
        return rng.integers(0, 255, (count, *self.obs_shape), np.uint8).astype(self.obs_dtype)


def small(capacity: int) -> Workload:
    """Return W1: transitions of CartPole, 45 bytes."""
    return Workload("W1", capacity, (4,), "float32")


def large(capacity: int) -> Workload:
    """Return W2: transitions of an Atari game, 56,461 bytes."""
    return Workload("W2", capacity, (4, 84, 84), "uint8")
