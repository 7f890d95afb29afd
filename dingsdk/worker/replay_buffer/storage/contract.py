"""What a storage is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Configurable
from dingsdk.data import SampleBatch
from dingsdk.data.columns import NUMERIC_KINDS, torch_to_numpy
from dingsdk.worker.replay_buffer.remover import Where

Rows = SampleBatch | list[Any]


class Storage(Configurable, ABC):
    """Holds rows at positions ``0..capacity-1``; called under the buffer's lock.

    Args:
        cfg: The ``storage`` section of the buffer's config.
        capacity: Number of positions, >= 1.
        deepcopy: Whether rows are copied through and through, going in and coming out.
    """

    config: ClassVar[dict[str, Any]] = {"type": ""}

    takes_grids: ClassVar[bool] = False
    """Whether :meth:`take` serves positions of several dimensions."""

    def __init__(self, cfg: Mapping[str, Any], capacity: int, deepcopy: bool = False) -> None:
        self.capacity = capacity
        self.deepcopy = deepcopy

    @abstractmethod
    def accept(self, rows: SampleBatch | Sequence[Any]) -> Rows:
        """Return the rows in the form that :meth:`put` takes, and make room for the first.

        Everything that can go wrong goes wrong here, and leaves the storage as it was.

        Raises:
            SchemaMismatchError: a row cannot be stored beside those that are; facts ``key``,
                ``expected``, ``found``.
            ConfigError: the capacity is more than the memory holds.
        """

    @abstractmethod
    def put(self, where: Where, rows: Rows) -> None:
        """Write accepted rows to positions, one each; what was there is gone.

        Rows come oldest first, and fill positions from 0 on: one is first used when all below
        it have been, or are in the same call, unless :meth:`expect` said something else.
        """

    def expect(self, rows: int) -> None:
        """Hear, while empty, that the next calls of ``put`` fill positions ``0..rows-1``.

        They may begin anywhere: a ring whose oldest row is not the first comes piece by piece.
        """

    def accept_one(self, row: Any) -> Any:
        """Return one row, not in a list, in the form that :meth:`put_one` takes; as ``accept``."""
        return self.accept([row])

    def put_one(self, position: int, row: Any) -> None:
        """Write one accepted row to a position; as ``put``."""
        self.put(slice(position, position + 1), row)

    @abstractmethod
    def take(self, where: Where) -> Rows:
        """Return what lies at positions that were written to, as the caller's own copy.

        With ``takes_grids``, int64 positions ``[B, T]`` give a SampleBatch of ``B`` rows whose
        columns are ``[B, T, ...]``.
        """

    @abstractmethod
    def clear(self) -> None:
        """Drop all rows, and the schema that the first of them set."""

    def seal(self) -> None:
        """Hear that no row to come follows one that is here.

        For owners that do not let the oldest rows go first, where content is shared by rows.
        """

    def commit(self, state: Mapping[str, int]) -> None:
        """Hear that a push is complete; a storage on disk keeps the state beside the rows.

        Args:
            state: ``tail`` and ``valid_count`` of the remover, and what else the buffer wants
                to get back from :meth:`recovered`.
        """

    def keep_marks(self) -> None:
        """Hear, before anything else, that the owner marks rows (see :meth:`mark`)."""

    def mark(self, where: Where, marks: NDArray[np.int64] | int) -> None:
        """Hear of whole numbers for rows, which have 0 at first.

        Of equal positions the last counts. A storage on disk keeps them beside the rows, at
        once, so that :meth:`recovered_marks` gives them back; others have no use for them.
        """

    def recovered_marks(self, where: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the marks of recovered rows, None where none were kept."""
        return None

    def recovered(self) -> dict[str, int] | None:
        """Return the state of the rows that the storage holds from an earlier process, if any.

        Called once, before anything is pushed; ``tail`` and ``valid_count`` say where rows are.

        Raises:
            CheckpointCorruptError, CheckpointVersionError: they cannot be used; nothing changed.
            RunFolderError: another buffer uses them.
        """
        return None

    def close(self) -> None:
        """Give back files and locks; the rows of a storage on disk stay. Idempotent."""


def suits_arrays(rows: SampleBatch | Sequence[Any]) -> bool:
    """Whether the first of the rows is a dict of numbers and arrays: what ``auto`` asks."""
    return isinstance(rows, SampleBatch) or _is_numeric_dict(rows[0])


def _is_numeric_dict(row: Any) -> bool:
    if not isinstance(row, Mapping) or not row:
        return False
    return all(isinstance(key, str) and _is_numeric(value) for key, value in row.items())


def _is_numeric(value: Any) -> bool:
    if isinstance(value, Mapping):
        return _is_numeric_dict(value)
    if isinstance(value, (bool, int, float)):
        return True
    dtype = getattr(torch_to_numpy(value), "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in NUMERIC_KINDS


class AutoStorage(Configurable):
    """Stands for the storage that the first push chooses: arrays for columns, else objects."""

    config: ClassVar[dict[str, Any]] = {"type": "auto"}
