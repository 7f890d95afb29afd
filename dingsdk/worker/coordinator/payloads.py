"""The ledger of payloads: which rows are still wanted, and what may be deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dingsdk.errors import ConflictError, ProtocolError

RETIRED_KEPT = 65_536
"""Payloads that are recognised after their deletion: hours of one collector, minutes of many,
which is longer than any message is on its way."""


class _Content(NamedTuple):
    """What was announced of a payload."""

    rows: int
    digest: str | None

    def __str__(self) -> str:
        return f"{self.rows} rows" + (f" with digest {self.digest}" if self.digest else "")

    def agrees_with(self, other: _Content) -> bool:
        return self.rows == other.rows and (
            None in (self.digest, other.digest) or self.digest == other.digest
        )


class PayloadLedger:
    """Counts, for each payload, its rows in the buffer and the leases on it.

    A payload is *live* while a row of it is in the buffer, and *pinned* while a learner
    trains on one. One that is neither is garbage. The caller locks.

    A payload counts once, however often it is announced, also after it was deleted: the ledger
    remembers the last ``retired_kept`` of those.

    The oracle (``check``): every acknowledged row is in the buffer or was evicted for a
    counted reason.
    """

    def __init__(self, retired_kept: int = RETIRED_KEPT) -> None:
        self._retired_kept = retired_kept
        self._retired: dict[str, _Content] = {}  # by data id, in the order of their deletion
        self._contents: dict[int, _Content] = {}
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._rows: dict[int, int] = {}
        self._pins: Counter[int] = Counter()
        self._next = 0
        self._garbage: list[int] = []
        self.acked_rows = 0
        self.evicted_rows: Counter[str] = Counter()

    def add(self, data_id: str, rows: int, digest: str | None = None) -> int | None:
        """Enter a payload; return its number, or None when it was entered before (a repeat).

        Args:
            data_id: Of the payload.
            rows: How many it has.
            digest: Of its content, where the store tells one.

        Raises:
            ProtocolError: it has no rows.
            ConflictError: it was entered with another number of rows or another digest, which
                stays.
        """
        if rows < 1:
            raise ProtocolError(f"payload {data_id!r} has {rows} rows", where="metadata")
        content = _Content(rows, digest)
        known = self._content_of(data_id)
        if known is not None:
            if not known.agrees_with(content):
                raise ConflictError(
                    f"payload {data_id!r} has {known}, not {content}; ids are used once",
                    data_id=data_id,
                )
            return None
        number, self._next = self._next, self._next + 1
        self._numbers[data_id] = number
        self._names[number] = data_id
        self._rows[number], self._contents[number] = rows, content
        self.acked_rows += rows
        return number

    @property
    def names(self) -> Collection[str]:
        """Data ids of the payloads that somebody may still read."""
        return self._numbers.keys()

    @property
    def numbers(self) -> Mapping[str, int]:
        """Their numbers, ``{data_id: number}``."""
        return self._numbers

    def name(self, number: int) -> str:
        return self._names[number]

    def digest(self, number: int) -> str | None:
        """What a payload's readers can hold it to, if its collector told."""
        return self._contents[number].digest

    def rows_left(self, number: int) -> int:
        """Rows of a payload that are in the buffer."""
        return self._rows.get(number, 0)

    def evict(self, numbers: NDArray[np.int64], reason: str) -> None:
        """Note rows that left the buffer: int64[n], the payload number of each."""
        if not len(numbers):
            return
        self.evicted_rows[reason] += len(numbers)
        found, counts = np.unique(numbers, return_counts=True)
        for number, count in zip(found.tolist(), counts.tolist(), strict=True):
            self._rows[number] -= count
            self._collect(number)

    def pin(self, numbers: Iterable[int]) -> None:
        self._pins.update(numbers)

    def unpin(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._pins[number] -= 1
            if self._pins[number] <= 0:
                del self._pins[number]
            self._collect(number)

    def take_garbage(self) -> dict[int, str]:
        """Return the payloads to delete, ``{number: data_id}``; they are retired."""
        garbage = {number: self._names.pop(number) for number in self._garbage}
        for number, name in garbage.items():
            del self._rows[number], self._numbers[name]
            self._retired[name] = self._contents.pop(number)
            if len(self._retired) > self._retired_kept:
                del self._retired[next(iter(self._retired))]
        self._garbage.clear()
        return garbage

    def check(self, rows_in_buffer: int) -> None:
        """Raise AssertionError unless acked == in buffer + evicted, payload by payload too."""
        evicted = self.evicted_rows.total()
        assert self.acked_rows == rows_in_buffer + evicted, (
            f"{self.acked_rows} rows acknowledged, {rows_in_buffer} in the buffer, "
            f"{evicted} evicted"
        )
        live = sum(self._rows.values())
        assert live == rows_in_buffer, f"{live} live rows, {rows_in_buffer} in the buffer"

    def _content_of(self, data_id: str) -> _Content | None:
        number = self._numbers.get(data_id)
        return self._retired.get(data_id) if number is None else self._contents[number]

    def _collect(self, number: int) -> None:
        if self._rows.get(number) == 0 and number not in self._pins:
            self._garbage.append(number)
