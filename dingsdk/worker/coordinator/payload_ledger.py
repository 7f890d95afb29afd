"""Which payloads are needed: their rows in the buffer and the leases on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.errors import ConflictError, ProtocolError, SamplesLostError
from dingsdk.worker.sample_counts import SampleCounts

RETIRED_SAVED = 4096
"""Deleted payloads in a saved state: workers may announce the newest ones again at once."""
RETIRED_KEPT = 65_536
"""Payloads that are recognised after their deletion: hours of one collector or minutes of many,
which is longer than any message takes to arrive."""


@dataclass(slots=True)
class _Payload:
    """A payload: its announced data, its rows in the buffer and the leases on it.

    ``live`` is bool[rows], True for the rows in the buffer. ``left`` is their number. ``kept`` are
    the rows that learners are to hold, None for all.
    """

    data_id: str
    rows: int
    digest: str | None
    left: int
    live: NDArray[np.bool_]
    pins: int = 0
    kept: NDArray[np.int64] | None = None

    @property
    def freeable(self) -> int:
        """Number of rows that learners hold although nobody needs them."""
        return (self.rows if self.kept is None else len(self.kept)) - self.left

    @property
    def is_garbage(self) -> bool:
        return self.left == 0 and self.pins == 0


class PayloadLedger:
    """Counts, for each payload, its rows in the buffer and the leases on it.

    A payload is *live* while one of its rows is in the buffer, and *pinned* while a learner
    trains on one of its rows. A payload that is neither is garbage. The caller locks.

    A payload counts once, even if it is announced again after its deletion: the ledger
    remembers the last ``retired_kept`` deleted payloads.

    ``check`` verifies that every acknowledged row is in the buffer or was evicted for a counted
    reason.
    """

    def __init__(self, retired_kept: int = RETIRED_KEPT) -> None:
        self._retired_kept = retired_kept
        self._retired: dict[str, _Payload] = {}  # by data id, in the order of their deletion
        self._payloads: dict[int, _Payload] = {}
        self._numbers: dict[str, int] = {}
        self._next = 0
        self._garbage: set[int] = set()
        self._freeable_rows = 0  # of payloads with rows in the buffer
        self.acked_rows = 0
        self.evicted_rows: Counter[str] = Counter()

    def add(self, data_id: str, rows: int, digest: str | None = None) -> int | None:
        """Add a payload; return its number, or None if it was added before (a repeat).

        Raises:
            ProtocolError: it has no rows.
            ConflictError: it was added before with another number of rows or another digest; the
                first one stays.
        """
        if rows < 1:
            raise ProtocolError(f"payload {data_id!r} has {rows} rows", where="metadata")
        number = self._numbers.get(data_id)
        known = self._retired.get(data_id) if number is None else self._payloads[number]
        if known is not None:
            if rows != known.rows or not (None in (digest, known.digest) or digest == known.digest):
                raise ConflictError(
                    f"payload {data_id!r} has {known.rows} rows and digest {known.digest}, not "
                    f"{rows} and {digest}; ids are used once",
                    data_id=data_id,
                )
            return None
        number, self._next = self._next, self._next + 1
        self._numbers[data_id] = number
        live = filled(rows, True, np.bool_)
        self._payloads[number] = _Payload(data_id, rows, digest, rows, live)
        self.acked_rows += rows
        return number

    def withdraw(self, number: int) -> None:
        """Undo the last ``add``: the buffer did not take the rows."""
        payload = self._payloads.pop(number)
        del self._numbers[payload.data_id]
        self.acked_rows -= payload.rows
        self._next = number

    def knows(self, data_id: str) -> bool:
        """Return whether a payload was added before."""
        return data_id in self._numbers or data_id in self._retired

    @property
    def numbers(self) -> Mapping[str, int]:
        """Numbers of the payloads that may still be read, by data id."""
        return self._numbers

    def name(self, number: int) -> str:
        """Return the id of a payload by its number."""
        return self._payloads[number].data_id

    def digest(self, number: int) -> str | None:
        """Return the digest that readers can verify a payload with, if its collector sent one."""
        return self._payloads[number].digest

    def rows_left(self, number: int) -> int:
        """Return the number of a payload's rows in the buffer."""
        payload = self._payloads.get(number)
        return 0 if payload is None else payload.left

    def evict(self, numbers: NDArray[np.int64], rows: NDArray[np.int64], reason: str) -> None:
        """Record rows that left the buffer: int64[n], the payload number and the row of each."""
        if not len(numbers):
            return
        self.evicted_rows[reason] += len(numbers)
        # The usual case (one payload) is many times faster; for a few rows, comparing bytes takes
        # half the time.
        if numbers.tobytes() == numbers[:1].tobytes() * len(numbers):
            self._evict(int(numbers[0]), rows)
            return
        order = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[order], return_index=True)
        for number, gone in zip(found.tolist(), np.split(rows[order], starts[1:]), strict=True):
            self._evict(number, gone)

    def _evict(self, number: int, rows: NDArray[np.int64]) -> None:
        payload = self._payloads[number]
        payload.live[rows] = False
        payload.left -= len(rows)
        # A payload without rows in the buffer is freed as a whole.
        self._freeable_rows += len(rows) if payload.left else len(rows) - payload.freeable
        self._collect(number, payload)

    def free_rows(self) -> dict[int, NDArray[np.int64]]:
        """Return the rows that are still needed, of payloads with too many rows not needed.

        Empty while the rows that learners hold without need are at most a tenth of the rows in the
        buffer. Pinned payloads are skipped.
        """
        if not self._freeable_rows:
            return {}
        live_rows = self.acked_rows - self.evicted_rows.total()
        if 10 * self._freeable_rows <= live_rows:
            return {}
        kept: dict[int, NDArray[np.int64]] = {}
        for number, payload in self._payloads.items():
            if payload.left and not payload.pins and 10 * payload.freeable > payload.left:
                self._freeable_rows -= payload.freeable
                kept[number] = payload.kept = np.flatnonzero(payload.live)
        return kept

    def kept_rows(self, number: int) -> NDArray[np.int64] | None:
        """Return the rows of a payload that learners are to hold, None for all."""
        return self._payloads[number].kept

    def pin(self, numbers: Iterable[int]) -> None:
        """Mark payloads as leased for training, so that they are kept."""
        for number in numbers:
            self._payloads[number].pins += 1

    def unpin(self, numbers: Iterable[int]) -> None:
        """Release leased payloads; payloads without rows in the buffer become garbage."""
        for number in numbers:
            payload = self._payloads[number]
            payload.pins -= 1
            self._collect(number, payload)

    def take_garbage(self) -> dict[int, str]:
        """Return the payloads to delete, ``{number: data_id}``; they are retired."""
        if not self._garbage:
            return {}
        # A row that is removed because it was sampled often enough is leased right after that.
        garbage = {n: self.name(n) for n in sorted(self._garbage) if self._payloads[n].is_garbage}
        for number, name in garbage.items():
            del self._numbers[name]
            self._retired[name] = self._payloads.pop(number)
            if len(self._retired) > self._retired_kept:
                del self._retired[next(iter(self._retired))]
        self._garbage.clear()
        return garbage

    def state_dict(self) -> dict[str, Any]:
        """Return payloads and counts as plain data, without the leases."""
        found = self._payloads.values()
        live = [payload.live for payload in found]
        retired = list(self._retired.values())[-RETIRED_SAVED:]
        return {
            "next": self._next,
            "acked_rows": self.acked_rows,
            "evicted_rows": dict(self.evicted_rows),
            "numbers": np.fromiter(self._payloads, np.int64),
            "payloads": [(each.data_id, each.digest) for each in found],
            "rows": np.fromiter((each.rows for each in found), np.int64),
            "live": np.concatenate(live) if live else np.empty(0, np.bool_),
            "retired": [(each.data_id, each.rows, each.digest) for each in retired],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``state_dict``."""
        self._next, self.acked_rows = int(state["next"]), int(state["acked_rows"])
        self.evicted_rows = Counter(state["evicted_rows"])
        masks = np.split(np.array(state["live"], np.bool_), np.cumsum(state["rows"])[:-1])
        numbers = np.asarray(state["numbers"]).tolist()
        self._payloads = {
            number: _Payload(name, len(live), digest, int(live.sum()), live)
            for number, (name, digest), live in zip(
                numbers, state["payloads"], masks[: len(numbers)], strict=True
            )
        }
        self._numbers = {each.data_id: number for number, each in self._payloads.items()}
        nothing = np.zeros(0, np.bool_)
        self._retired = {
            name: _Payload(name, rows, digest, 0, nothing)
            for name, rows, digest in state["retired"]
        }
        self._garbage = {number for number, each in self._payloads.items() if each.is_garbage}
        self._freeable_rows = sum(each.freeable for each in self._payloads.values() if each.left)

    def check(self, rows_in_buffer: int, leased: Counter[int] | None = None) -> None:
        """Raise SamplesLostError unless acked == in buffer + evicted, also for each payload.

        Args:
            rows_in_buffer: Number of rows that the buffer reports.
            leased: Number of leases on each payload, by payload number; None: do not check leases.
        """
        acked, evicted = self.acked_rows, dict(self.evicted_rows)
        SampleCounts(acked, acked, 0, rows_in_buffer, evicted).check()
        live = 0
        for number, payload in self._payloads.items():
            live += payload.left
            is_pinned = leased is None or payload.pins == leased.get(number, 0)
            # For a few rows, counting bytes takes a third of the time of np.count_nonzero.
            if payload.left != payload.live.tobytes().count(1) or not is_pinned:
                raise SamplesLostError(
                    f"payload {payload.data_id!r} has {payload.left} live rows of {payload.live} "
                    f"and {payload.pins} leases",
                    payload=payload.data_id,
                )
        if live != rows_in_buffer:
            raise SamplesLostError(
                f"{live} rows of payloads are live, {rows_in_buffer} are in the buffer",
                live=live,
            )

    def _collect(self, number: int, payload: _Payload) -> None:
        if payload.is_garbage:
            self._garbage.add(number)


def filled(rows: int, value: int, dtype: type[np.generic] = np.int64) -> NDArray[Any]:
    """Return the same as ``np.full``; for a few rows this takes a third of the time."""
    column = np.empty(rows, dtype)
    column.fill(value)
    return column
