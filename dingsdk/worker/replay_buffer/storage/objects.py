"""Storage of rows that are any objects."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from dingsdk.config import PartSection
from dingsdk.data import SampleBatch
from dingsdk.data.columns import mismatch
from dingsdk.data.pytree import copy_containers, map_leaves
from dingsdk.worker.replay_buffer.storage import Storage, Where, one_by_one
from dingsdk.worker.replay_buffer.storage.compression import read_codec


class ObjectStorage(Storage):
    """A list of any objects (type ``object``).

    Dicts, lists and tuples are copied when they are stored and when they are read, so that
    changing one never changes a stored row; arrays, tensors and objects in them are shared unless
    ``deepcopy``.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``storage`` of type ``object``.

        Attributes:
            compress: Compress numeric arrays of 256 bytes and more, which also copies them.
                Requires ``pip install lz4 zstandard``.
        """

        type: str = "object"
        compress: Literal["none", "lz4", "zstd"] = "none"

    holds_objects: ClassVar[bool] = True

    def __init__(self, cfg: Mapping[str, Any], capacity: int, deepcopy: bool = False) -> None:
        super().__init__(cfg, capacity, deepcopy)
        self._items: list[Any] = []
        self._codec = read_codec(self.read(cfg, "storage").compress)

    def accept(self, rows: SampleBatch | Sequence[Any]) -> list[Any]:
        if isinstance(rows, SampleBatch):
            # Rows are views of their batch, so copy the batch.
            return [self._packed(copy.copy(row)) for row in rows.copy()]
        for index, row in enumerate(rows):
            if row is None or (isinstance(row, Mapping) and not row):
                expected = "an object or a dict with keys"
                raise mismatch(f"row {index}", "", expected, repr(row), row=index)
        return [self._packed(self._copy(row)) for row in rows]

    def put(self, where: Where, rows: list[Any]) -> None:
        if isinstance(where, slice) and where.start <= len(self._items):
            self._items[where] = rows
            return
        where = one_by_one(where)
        self._items += [None] * (int(where.max()) + 1 - len(self._items))
        for position, row in zip(where.tolist(), rows, strict=True):
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
