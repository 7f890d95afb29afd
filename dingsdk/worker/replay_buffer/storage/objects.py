"""Any objects."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dingsdk.data import SampleBatch
from dingsdk.data.pytree import copy_containers, map_leaves
from dingsdk.errors import SchemaMismatchError
from dingsdk.worker.replay_buffer.remover import Where
from dingsdk.worker.replay_buffer.storage.compression import read_codec
from dingsdk.worker.replay_buffer.storage.contract import Rows, Storage


class ObjectStorage(Storage):
    """A list of any objects (type ``object``).

    Dicts, lists and tuples are copied on the way in and out, so that changing one never
    changes a stored row; what they hold (arrays, tensors, objects) is shared unless ``deepcopy``.

    Config:
        compress: ``none``, ``lz4`` or ``zstd``: keep numeric arrays of 256 bytes and more
            compressed, so that they are copies too. ``pip install lz4 zstandard``.
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
