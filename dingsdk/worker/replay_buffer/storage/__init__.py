"""Storages hold a buffer's rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Configurable, PartSection, Section
from dingsdk.data import SampleBatch
from dingsdk.data.columns import NUMERIC_KINDS, torch_to_numpy

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.storage.arrays import Layout

__all__ = ["AutoStorage", "Rows", "Storage", "Where", "suits_arrays"]

Rows = SampleBatch | list[Any]
"""Rows as columns, or as a list of any objects."""

Where = slice | NDArray[np.int64]
"""Ordered positions in a storage: a contiguous range, or an array of single positions."""


def one_by_one(where: Where) -> NDArray[np.int64]:
    """Return positions as an array."""
    if isinstance(where, slice):
        return np.arange(where.start, where.stop, dtype=np.int64)
    return where


class Storage(Configurable, ABC):
    """Holds rows at positions ``0..capacity-1``; called under the buffer's lock.

    Args:
        cfg: The ``storage`` section of the buffer's config.
        capacity: Number of positions, >= 1.
        deepcopy: Whether rows are deep-copied when they are stored and when they are read.
    """

    Config: ClassVar[type[Section]] = PartSection

    holds_objects: ClassVar[bool] = False
    """Whether rows are a list of any objects, and not columns."""

    needs_fifo = False
    """Whether rows must leave in the order in which they came."""

    layout: Layout | None = None
    """The columns, if rows that fit may be written to them without ``accept`` and ``put``.

    Only :meth:`accept`, :meth:`put` and :meth:`clear` may change it: the buffer reads it after a
    :meth:`put`.
    """

    def __init__(self, cfg: Mapping[str, Any], capacity: int, deepcopy: bool = False) -> None:
        self.capacity = capacity
        self.deepcopy = deepcopy

    @abstractmethod
    def accept(self, rows: SampleBatch | Sequence[Any]) -> Any:
        """Check rows and return them in the form that :meth:`put` takes.

        All errors are raised here, not in :meth:`put`, and leave the storage unchanged.

        Raises:
            SchemaMismatchError: a row does not fit the stored rows; facts ``key``, ``expected``,
                ``found``.
            ConfigError: the memory is too small for the capacity.
        """

    @abstractmethod
    def put(self, where: Where, rows: Any) -> None:
        """Write accepted rows to positions, one row each, replacing the rows there.

        Rows are oldest first. They fill positions from 0 on: a position is first used when all
        lower ones have been used, or are in the same call. The rows of a state that is loaded begin
        at any position.
        """

    @abstractmethod
    def take(self, where: Where) -> Rows:
        """Return the rows at positions, all of which hold rows, as the caller's own copy."""

    @abstractmethod
    def clear(self) -> None:
        """Drop all rows, and the schema that the first rows set."""

    def close(self) -> None:
        """Release files; idempotent."""


def suits_arrays(rows: Any) -> bool:
    """Whether the first row is a dict of numbers and arrays; decides what ``auto`` chooses."""
    return isinstance(rows, SampleBatch) or (isinstance(rows[0], Mapping) and _is_numeric(rows[0]))


def _is_numeric(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(k, str) and _is_numeric(v) for k, v in value.items())
    if isinstance(value, (bool, int, float)):
        return True
    dtype = getattr(torch_to_numpy(value), "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in NUMERIC_KINDS


class AutoStorage(Configurable):
    """The type ``auto``: the first push chooses ``array`` for columns, else ``object``."""

    config: ClassVar[dict[str, Any]] = {"type": "auto"}
