"""A storage that keeps rows as bytes.

Everything that can fail must fail in `accept`, before anything is changed: a push is stored completely or
not at all. `accept` returns rows in the form that `put` takes. `take` returns a copy for the caller. The
buffer holds its lock when it calls a storage, so a storage needs no lock, and must not wait.

    policy:
      other:
        replay_buffer:
          storage:
            type: plugin_name
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dingsdk.config import PartSection
from dingsdk.data import SampleBatch, decode_message, encode_message
from dingsdk.errors import ProtocolError, SchemaMismatchError
from dingsdk.worker.replay_buffer import Storage, Where


class PluginNameStorage(Storage):
    """Stores rows as encoded messages: dicts, lists, numbers, text and arrays."""

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``storage``."""

        type: str = "plugin_name"

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"any_order"})

    def __init__(self, cfg: Mapping[str, Any], capacity: int, deepcopy: bool = False) -> None:
        super().__init__(cfg, capacity, deepcopy)
        self._rows: dict[int, bytes] = {}

    def accept(self, rows: SampleBatch | Sequence[Any]) -> list[bytes]:
        return [_encoded(index, row) for index, row in enumerate(rows)]

    def put(self, where: Where, rows: list[bytes]) -> None:
        self._rows.update(zip(_positions(where), rows, strict=True))

    def take(self, where: Where) -> list[Any]:
        found = [self._rows[position] for position in _positions(where)]
        return [decode_message(row, len(row)) for row in found]

    def clear(self) -> None:
        self._rows.clear()


def _encoded(index: int, row: Any) -> bytes:
    try:
        if row is None or row == {}:
            raise ProtocolError("it holds nothing", where="$")
        return encode_message(row)
    except ProtocolError as error:
        raise SchemaMismatchError(f"row {index} cannot be stored: {error}", key="", row=index) from error


def _positions(where: Where) -> Sequence[int]:
    if isinstance(where, slice):
        return range(where.start, where.stop)
    positions: list[int] = where.tolist()
    return positions
