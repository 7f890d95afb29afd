"""The bench of the rules of a buffer's parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.testing.runner import Contract, RuleBench

CAPACITY = 8
MakePart = Callable[[int, int, Path], Any]
"""``make(capacity, seed, folder)`` returns a new part."""


class PartBench(RuleBench[MakePart]):
    """The bench of a part: makes parts, and closes them at the end."""

    _numbers = 0

    def build(self) -> Any:
        return self.part()

    def part(self, capacity: int = CAPACITY, seed: int = 0, folder: str = "") -> Any:
        """Return a new part; without ``folder`` it gets a new folder."""
        self._numbers += 1
        own = self.folder / (folder or f"part{self._numbers}")
        return self.keep(self._make(capacity, seed, own))


def positions(start: int, n: int, capacity: int = CAPACITY) -> slice | NDArray[np.int64]:
    """Return ``n`` positions of a ring from ``start``, in the form that a buffer uses."""
    stop = start + n
    return slice(start, stop) if stop <= capacity else np.arange(start, stop) % capacity


def as_list(where: slice | NDArray[np.int64]) -> list[int]:
    """Return positions as a list of ints."""
    found = np.arange(where.start, where.stop) if isinstance(where, slice) else np.asarray(where)
    return [int(position) for position in found]


class PartContract(Contract):
    """Base class of the contract tests of the parts of a buffer."""

    maker = "make_part"

    def make_part(self, capacity: int, seed: int, folder: Path) -> Any:
        """Return a fresh part. Rules may call it more than once.

        Args:
            capacity: Maximum number of rows of the buffer.
            seed: Seed of its random numbers.
            folder: Folder for its files; a durable storage opens the rows that are in it.
        """
        raise self._missing("make_part(...)")
