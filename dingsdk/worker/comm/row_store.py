"""The learner's store of live step data: rows of many payloads, gathered in one call."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    ConfigError,
    DataCorruptError,
    DataMissingError,
    PayloadsLostError,
    ProtocolError,
)
from dingsdk.plugins import default_manager


class RowStore:
    """Holds payloads as contiguous extents of one array storage.

    Uniform replay touches most payloads in every batch; one storage with an offset per
    payload turns that into a single gather. Extents are given out round a ring, which for
    payloads that leave in the order they came never has to search.

    Args:
        capacity: Rows that fit; a buffer's size plus what is on its way.
        storage_cfg: Config of the storage, as a replay buffer has it.
        load: (data id, its digest where one was announced) -> payload, on the first touch.
    """

    def __init__(
        self,
        capacity: int,
        storage_cfg: Mapping[str, Any],
        load: Callable[[str, str | None], SampleBatch],
    ) -> None:
        self._capacity = capacity
        cfg = dict(storage_cfg)
        if cfg.get("type") in (None, "auto"):
            cfg["type"] = "array"
        self._storage = default_manager().create("storages", cfg, capacity)
        self._load = load
        self._names: dict[int, tuple[str, str | None]] = {}
        self._lost: dict[int, str] = {}
        """Why payloads could not be read: to look for them again would cost every batch a wait."""
        self._offsets = np.full(1024, -1, dtype=np.int64)
        self._extents: list[tuple[int, int, int]] = []  # (start, end, number), by start
        self._head = 0

    def __len__(self) -> int:
        """Number of payloads held."""
        return len(self._extents)

    def announce(
        self, payloads: Mapping[str, int], digests: Mapping[str, str] | None = None
    ) -> None:
        """Learn the numbers of payloads to come by data id, and the digests that some have."""
        for name, number in payloads.items():
            self._names[number] = (name, (digests or {}).get(name))

    def drop(self, numbers: NDArray[np.int64]) -> None:
        """Free payloads; unknown numbers are ignored."""
        gone = {int(number) for number in numbers}
        self._extents = [extent for extent in self._extents if extent[2] not in gone]
        for number in gone:
            self._names.pop(number, None)
            self._lost.pop(number, None)
            if number < len(self._offsets):
                self._offsets[number] = -1

    def gather(self, payloads: NDArray[np.int64], rows: NDArray[np.int64]) -> SampleBatch:
        """Return the rows as one owned batch, loading payloads on first touch.

        Args:
            payloads: int64[n], payload numbers.
            rows: int64[n], row within the payload.

        Raises:
            PayloadsLostError: payloads of the batch are missing or damaged; the others are held.
                A lost one stays lost, for its first reason, until it is dropped.
        """
        number = int(payloads.max())
        if number >= len(self._offsets):
            room = np.full(2 * (number + 1) - len(self._offsets), -1, dtype=np.int64)
            self._offsets = np.concatenate([self._offsets, room])
        offsets = self._offsets[payloads]
        if offsets.min() < 0:
            self._load_all(np.unique(payloads[offsets < 0]).tolist())
            offsets = self._offsets[payloads]
        return self._storage.take(offsets + rows)  # type: ignore[no-any-return]

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
                self._put(self._allocate(len(batch)), batch, number)
        reasons = {number: self._lost[number] for number in numbers if number in self._lost}
        if reasons:
            raise PayloadsLostError(
                f"payloads cannot be read: {reasons}", data_id=None, reasons=reasons
            )

    def _allocate(self, size: int) -> int:
        """Return the start of a free extent, looking from the ring's head on."""
        start = self._free_extent(size)
        if start is None:
            # Payloads that left out of order have torn holes; closing them costs one copy.
            self._compact()
            start = self._free_extent(size)
        if start is None:
            raise ConfigError(
                f"the learner holds {self._capacity} rows of step data and all are live; raise "
                "policy.other.replay_buffer.replay_buffer_size or lower policy.collect.n_sample",
                path="policy.other.replay_buffer.replay_buffer_size",
            )
        return start

    def _free_extent(self, size: int) -> int | None:
        if size > self._capacity:
            return None
        start = self._head if self._head + size <= self._capacity else 0
        for _ in range(len(self._extents) + 2):
            index = bisect.bisect_left(self._extents, (start + size, 0, 0)) - 1
            if index < 0 or self._extents[index][1] <= start:
                return start
            start = self._extents[index][1]
            if start + size > self._capacity:
                start = 0
        return None

    def _compact(self) -> None:
        if not self._extents:
            return
        rows = self._storage.take(
            np.concatenate([np.arange(start, end) for start, end, _ in self._extents])
        )
        extents, self._extents, self._head = self._extents, [], 0
        for start, end, number in extents:
            self._put(self._head, rows[self._head : self._head + end - start], number)

    def _put(self, start: int, rows: SampleBatch, number: int) -> None:
        self._storage.put(slice(start, start + len(rows)), self._storage.accept(rows))
        # Payloads leave in any order, so none may rely on what another holds.
        self._storage.seal()
        self._head = start + len(rows)
        bisect.insort(self._extents, (start, self._head, number))
        self._offsets[number] = start
