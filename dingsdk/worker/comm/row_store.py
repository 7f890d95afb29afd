"""The learner's store of live step data: rows of many payloads, gathered in one call."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.errors import DataCorruptError, DataMissingError, PayloadsLostError, ProtocolError
from dingsdk.plugins import default_manager
from dingsdk.worker.factory import reopening_storage
from dingsdk.worker.replay_buffer import Storage
from dingsdk.worker.replay_buffer.storage import in_grid

MOST_SHARE, GROWN_SHARE = 1.3, 1.15
"""Positions of the ring for each row held: the maximum, and the number after the ring has grown."""

_ABSENT = -1
"""Offset of a payload that is not held."""


class RowStore:
    """Holds payloads as contiguous extents of one array storage.

    Uniform replay reads rows of most payloads in every batch; one storage with an offset per
    payload turns that into a single gather. Extents are allocated around a ring, so that no search
    is needed if payloads are dropped in the order in which they were loaded.

    Payloads are held from their first use until they are dropped. The ring has up to 1.3
    positions for each row held: if holes between extents waste more, they are closed, and if many
    rows have been dropped, a smaller storage is created.

    Args:
        capacity: Rows to reserve addresses for; for more, the storage grows.
        storage_cfg: Config of the storage, as in a replay buffer.
        load: Called with (data id, its announced digest or None) at the first use of a payload;
            returns the payload.
        least_rows: The ring may always have this many positions, even if few rows are held.

    Attributes:
        ring_rows: Positions of the ring; no other part of the storage was ever written to.
    """

    def __init__(
        self,
        capacity: int,
        storage_cfg: Mapping[str, Any],
        load: Callable[[str, str | None], SampleBatch],
        least_rows: int = 1024,
    ) -> None:
        self._least_rows = least_rows
        self._capacity = max(capacity, least_rows)
        kind = storage_cfg.get("type") or "auto"
        kind = "array" if kind == "auto" else kind
        self._storage_cfg = reopening_storage({**storage_cfg, "type": kind})
        self._storage = self._new_storage()
        self._storage.clear()  # rows in the files of an earlier learner are loaded again
        self._load = load
        self._names: dict[int, tuple[str, str | None]] = {}
        self._lost: dict[int, str] = {}
        """Payloads that cannot be read, with the reason; looking again would delay each batch."""
        self._offsets = np.zeros(0, np.int64)
        """Position of a payload's first row, by payload number."""
        self._kept: dict[int, NDArray[np.int64]] = {}
        """The held rows of payloads of which some rows were freed, ascending."""
        self._extents: list[tuple[int, int, int]] = []  # (start, end, number), by start
        self._head = 0
        self.rows = 0
        self.ring_rows = least_rows

    def __len__(self) -> int:
        """Number of payloads held."""
        return len(self._extents)

    def close(self) -> None:
        """Close the storage: another store may have its files."""
        self._storage.close()

    def announce(
        self, payloads: Mapping[str, int], digests: Mapping[str, str] | None = None
    ) -> None:
        """Store the numbers of new payloads by data id, and the digests of some of them."""
        for name, number in payloads.items():
            self._names[number] = (name, (digests or {}).get(name))

    def known(self) -> NDArray[np.int64]:
        """Return the numbers of payloads that were announced and not dropped."""
        return np.fromiter(self._names, np.int64)

    def drop(self, numbers: NDArray[np.int64]) -> None:
        """Free payloads; unknown numbers are ignored."""
        gone = {int(number) for number in numbers}
        self._extents = [extent for extent in self._extents if extent[2] not in gone]
        for number in gone:
            self._names.pop(number, None)
            self._lost.pop(number, None)
            self._kept.pop(number, None)
            if number < len(self._offsets):
                self._offsets[number] = _ABSENT
        self._shrink()

    def keep(self, kept: Mapping[int, NDArray[np.int64]]) -> None:
        """Free all rows of payloads except those in ``kept``.

        Args:
            kept: int64[n] rows by payload number, ascending and not empty; if some rows were freed
                before, a subset of the rows kept since then.
        """
        starts = {number: index for index, (_, _, number) in enumerate(self._extents)}
        for number, rows in kept.items():
            if number in starts:
                start, _, _ = self._extents[starts[number]]
                batch = self._take(self._positions(np.full(len(rows), number), rows))
                self._extents[starts[number]] = (start, start + len(rows), number)
                self._write(start, batch)
            self._kept[number] = np.asarray(rows, np.int64)
        self._shrink()

    def gather(self, payloads: NDArray[np.int64], rows: NDArray[np.int64]) -> SampleBatch:
        """Return the rows as one new batch; load payloads on their first use.

        Args:
            payloads: int64[n] or int64[n, time], payload numbers.
            rows: Rows within the payloads, of the same shape.

        Raises:
            PayloadsLostError: payloads of the batch are missing or damaged; the others are held.
                A lost payload stays lost, with its first reason, until it is dropped.
        """
        number = int(payloads.max())
        if number >= len(self._offsets):
            room = np.full(number + 1, _ABSENT)
            self._offsets = np.concatenate([self._offsets, room])
        offsets = self._offsets[payloads]
        if offsets.min() == _ABSENT:
            self._load_all(sorted(set(payloads[offsets == _ABSENT].tolist())))
        where = self._positions(payloads, rows)
        return self._take(where)

    def _take(self, where: NDArray[np.int64]) -> SampleBatch:
        rows = self._storage.take(where.reshape(-1))
        batch = rows if isinstance(rows, SampleBatch) else SampleBatch.from_rows(rows)
        return batch if where.ndim == 1 else in_grid(batch, *where.shape)

    def _positions(self, payloads: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        where: NDArray[np.int64] = self._offsets[payloads] + rows
        if self._kept:
            for number in self._kept.keys() & set(payloads.reshape(-1).tolist()):
                mine = payloads == number
                found = np.searchsorted(self._kept[number], rows[mine])
                where[mine] = self._offsets[number] + found
        return where

    def _load_all(self, numbers: list[int]) -> None:
        for number in numbers:
            if number in self._lost:
                continue
            if number not in self._names:
                raise ProtocolError(f"payload {number} was never announced", where="learn task")
            try:
                batch = self._load(*self._names[number])
            except DataMissingError:
                self._lost[number] = "missing"
            except DataCorruptError:
                self._lost[number] = "corrupt"
            else:
                if number in self._kept:
                    batch = batch.take(self._kept[number])
                size = len(batch)
                start = self._allocate(size)
                self._write(start, batch)
                self._head = start + size
                bisect.insort(self._extents, (start, self._head, number))
                self._offsets[number] = start
                self.rows += size
        reasons = {number: self._lost[number] for number in numbers if number in self._lost}
        if reasons:
            raise PayloadsLostError(
                f"payloads cannot be read: {reasons}", data_id=None, reasons=reasons
            )

    def _allocate(self, size: int) -> int:
        """Return the start of a free extent, searching from the ring's head."""
        start = self._free_extent(size)
        if start is None:
            rows = self.rows + size
            start = self._extents[-1][1] if self._extents else 0
            if start + size > self._most_rows(rows):
                # Payloads dropped out of order leave holes; closing them costs one copy.
                self._compact()
                start = self.rows
            self.ring_rows = max(self.ring_rows, start + size, int(GROWN_SHARE * rows))
            if self.ring_rows > self._capacity:
                self._grow(max(2 * self._capacity, self.ring_rows))
        return start

    def _free_extent(self, size: int) -> int | None:
        if size > self.ring_rows:
            return None
        start = self._head if self._head + size <= self.ring_rows else 0
        for _ in range(len(self._extents) + 2):
            index = bisect.bisect_left(self._extents, (start + size,)) - 1
            if index < 0 or self._extents[index][1] <= start:
                return start
            start = self._extents[index][1]
            if start + size > self.ring_rows:
                start = 0
        return None

    def _grow(self, capacity: int) -> None:
        """Make the storage larger; raises ConfigError or StorageFullError."""
        grow = getattr(self._storage, "grow", None)
        self._capacity = capacity
        if grow is None or self.rows == 0:
            self._rebuild()
        else:
            grow(capacity)

    def _shrink(self) -> None:
        """Release memory after rows were freed; files keep their length."""
        self.rows = sum(end - start for start, end, _ in self._extents)
        if self.ring_rows > self._most_rows(self.rows) and not self._storage.is_durable:
            self._rebuild()
            self.ring_rows = max(self._least_rows, int(GROWN_SHARE * self.rows))

    def _rebuild(self) -> None:
        """Move all rows to a new storage, without holes."""
        old, self._storage = self._storage, self._new_storage()
        self._compact(old)
        old.close()

    def _compact(self, source: Storage | None = None) -> None:
        """Move all rows to the start of the storage, from another one or its own later part."""
        source = source or self._storage
        extents, self._extents, self._head = self._extents, [], 0
        for start, end, number in extents:
            self._write(self._head, source.take(slice(start, end)))
            self._offsets[number] = self._head
            self._extents.append((self._head, self._head + end - start, number))
            self._head += end - start

    def _write(self, start: int, rows: Any) -> None:
        self._storage.put(slice(start, start + len(rows)), self._storage.accept(rows))
        # Payloads are dropped in any order, so none may depend on another one's rows.
        self._storage.seal()

    def _new_storage(self) -> Storage:
        made = default_manager().create("storages", self._storage_cfg, self._capacity)
        return cast(Storage, made)

    def _most_rows(self, held: int) -> int:
        return max(self._least_rows, int(MOST_SHARE * held))
