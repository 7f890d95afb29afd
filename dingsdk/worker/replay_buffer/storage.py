"""What a storage is; and the one that keeps any objects."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dingsdk.config import Configurable
from dingsdk.data import SampleBatch
from dingsdk.data.columns import NUMERIC_KINDS, torch_to_numpy
from dingsdk.data.pytree import copy_containers, map_leaves
from dingsdk.errors import SchemaMismatchError
from dingsdk.worker.replay_buffer.compression import read_codec
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

        A position is first used when all below it have been (rows fill from 0 on).
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

        Storages of columns also take int64 positions of several dimensions: ``[B, T]`` gives a
        SampleBatch of ``B`` rows whose columns are ``[B, T, ...]``.
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


class ObjectStorage(Storage):
    """A list of any objects (type ``object``).

    Dicts, lists and tuples are copied on the way in and out, so that changing one never
    changes a stored row; what they hold (arrays, tensors, objects) is shared unless ``deepcopy``.

    Config:
        compress: ``none``, ``lz4`` or ``zstd``: keep numeric arrays of 256 bytes and more
            compressed, so that they are copies too. ``pip install 'dingsdk[compress]'``.
    """

    config: ClassVar[dict[str, Any]] = {"type": "object", "compress": "none"}

    def __init__(self, cfg: Mapping[str, Any], capacity: int, deepcopy: bool = False) -> None:
        super().__init__(cfg, capacity, deepcopy)
        self._items: list[Any] = []
        self._codec = read_codec(cfg)

    def accept(self, rows: SampleBatch | Sequence[Any]) -> list[Any]:
        if isinstance(rows, SampleBatch):
            # Rows are views of the batch, so they need one of their own to be views of.
            return [self._packed(copy.copy(row)) for row in rows.copy()]
        for index, row in enumerate(rows):
            if row is None or (isinstance(row, Mapping) and not row):
                raise SchemaMismatchError(
                    f"row {index} is {row!r}, which holds nothing to train on",
                    key="",
                    row=index,
                    expected="an object or a dict with keys",
                    found=repr(row),
                )
        return [self._packed(self._copy(row)) for row in rows]

    def put(self, where: Where, rows: Rows) -> None:
        if isinstance(where, slice):
            self._items[where] = rows
            return
        for position, row in zip(where.tolist(), rows, strict=True):
            if position == len(self._items):
                self._items.append(row)
            else:
                self._items[position] = row

    def take(self, where: Where) -> list[Any]:
        if isinstance(where, slice):
            return [self._unpacked(item) for item in self._items[where]]
        items = self._items
        return [self._unpacked(items[position]) for position in where.tolist()]

    def clear(self) -> None:
        self._items = []

    def _packed(self, row: Any) -> Any:
        return row if self._codec is None else map_leaves(self._codec.pack_array, row)

    def _unpacked(self, item: Any) -> Any:
        row = self._copy(item)
        return row if self._codec is None else map_leaves(self._codec.unpack_array, row)

    def _copy(self, item: Any) -> Any:
        return copy.deepcopy(item) if self.deepcopy else copy_containers(item)


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
