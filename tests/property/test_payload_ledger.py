"""Random calls to the ledger, compared with a simple model: no payload in use is deleted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from dingsdk.errors import ConflictError, ProtocolError
from dingsdk.worker.coordinator.payload_ledger import PayloadLedger

RETIRED_KEPT = 6


class LedgerMachine(RuleBasedStateMachine):
    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = PayloadLedger(RETIRED_KEPT)
        self.number_of: dict[str, int] = {}
        self.rows_of: dict[str, int] = {}
        self.digest_of: dict[str, str | None] = {}
        self.retired: list[str] = []
        self.in_buffer: list[tuple[int, int]] = []  # (payload, row)
        self.kept: dict[int, list[int]] = {}
        self.pinned: list[set[int]] = []
        self.deleted: set[int] = set()

    @rule(target=names, index=st.integers(0, 10_000), rows=st.integers(1, 5))
    def add(self, index: int, rows: int) -> str:
        self.announce(name := f"p{index}", rows)
        return name

    @rule(name=names, rows=st.integers(1, 5), times=st.integers(1, 5))
    def add_again(self, name: str, rows: int, times: int) -> None:
        """Announce a payload again, at once or later, also after it was deleted."""
        for _ in range(times):
            self.announce(name, self.rows_of[name])
        self.announce(name, rows)

    @rule(name=names, is_told=st.booleans())
    def add_another_under_its_name(self, name: str, is_told: bool) -> None:
        """Announce as many rows under a used name; the digest, if it is known, differs."""
        self.announce(name, self.rows_of[name], "another" if is_told else None)

    def announce(self, name: str, rows: int, digest: str | None = "its digest") -> None:
        is_live = name in self.number_of and self.number_of[name] not in self.deleted
        if not (is_live or name in self.retired[-RETIRED_KEPT:]):
            number = self.ledger.add(name, rows, digest)
            assert number is not None
            assert number not in self.deleted
            self.number_of[name], self.rows_of[name] = number, rows
            self.digest_of[name] = digest
            assert self.ledger.digest(number) == digest
            self.in_buffer += [(number, row) for row in range(rows)]
            self.kept[number] = list(range(rows))
        elif rows == self.rows_of[name] and (
            None in (digest, self.digest_of[name]) or digest == self.digest_of[name]
        ):
            assert self.ledger.add(name, rows, digest) is None
        else:
            with pytest.raises(ConflictError) as caught:
                self.ledger.add(name, rows, digest)
            assert caught.value.data_id == name

    @rule(count=st.integers(1, 8))
    def evict_oldest(self, count: int) -> None:
        self.evict(self.in_buffer[:count])

    @rule(seed=st.integers(0, 1000), count=st.integers(1, 8))
    def evict_any(self, seed: int, count: int) -> None:
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(len(self.in_buffer))[:count]
        self.evict([self.in_buffer[index] for index in chosen.tolist()])

    def evict(self, gone: list[tuple[int, int]]) -> None:
        self.in_buffer = [each for each in self.in_buffer if each not in set(gone)]
        numbers, rows = np.array(gone, np.int64).reshape(-1, 2).T
        self.ledger.evict(numbers, rows, "overwritten")

    @rule()
    def free_rows(self) -> None:
        pinned = set[int]().union(*self.pinned)
        for number, rows in self.ledger.free_rows().items():
            assert number not in pinned
            assert set(rows.tolist()) < set(self.kept[number])
            self.kept[number] = rows.tolist()
        live = dict.fromkeys(self.number_of.values(), 0) | Counter(n for n, _ in self.in_buffer)
        spare = sum(
            len(self.kept[number]) - rows
            for number, rows in live.items()
            if rows and number not in pinned
        )
        # At most a tenth of all rows, and at most a tenth of each payload.
        assert 10 * spare <= 2 * len(self.in_buffer)

    @rule(seed=st.integers(0, 1000))
    def pin_some(self, seed: int) -> None:
        if self.in_buffer:
            rng = np.random.default_rng(seed)
            chosen = {self.in_buffer[each][0] for each in rng.integers(len(self.in_buffer), size=3)}
            self.ledger.pin(chosen)
            self.pinned.append(chosen)

    @rule()
    def lease_last_use(self) -> None:
        """The oldest row is sampled and leaves the buffer before its payload is pinned."""
        if self.in_buffer:
            number, _ = self.in_buffer[0]
            self.evict(self.in_buffer[:1])
            self.ledger.pin({number})
            self.pinned.append({number})

    @rule()
    def unpin_oldest(self) -> None:
        if self.pinned:
            self.ledger.unpin(self.pinned.pop(0))

    @rule()
    def collect_garbage(self) -> None:
        wanted = {number for number, _ in self.in_buffer}.union(*self.pinned)
        known = set(self.number_of.values()) - self.deleted
        garbage = self.ledger.take_garbage()
        assert set(garbage) == known - wanted
        self.deleted |= garbage.keys()
        self.retired += garbage.values()

    @invariant()
    def every_acknowledged_row_is_accounted_for(self) -> None:
        self.ledger.check(len(self.in_buffer))
        rows = Counter(number for number, _ in self.in_buffer)
        for number, count in rows.items():
            assert self.ledger.rows_left(number) == count
            left = {row for each, row in self.in_buffer if each == number}
            assert left <= set(self.kept[number])


TestLedger = LedgerMachine.TestCase


def test_payload_without_rows_is_refused() -> None:
    with pytest.raises(ProtocolError):
        PayloadLedger().add("p", 0)


def test_check_notices_a_lost_row() -> None:
    ledger = PayloadLedger()
    ledger.add("p", 3)
    with pytest.raises(AssertionError):
        ledger.check(2)


def test_rows_of_payloads_that_will_be_deleted_are_not_counted_as_spare() -> None:
    ledger = PayloadLedger()
    leased, torn, _ = (ledger.add(name, rows) for name, rows in (("a", 10), ("b", 20), ("c", 10)))
    assert leased is not None
    assert torn is not None

    def evict(number: int, rows: list[int]) -> None:
        ledger.evict(np.full(len(rows), number), np.array(rows), "overwritten")

    ledger.pin([leased])
    evict(leased, [0, 1, 2, 3, 4])
    evict(leased, [5, 6, 7, 8, 9])  # kept until the lease ends, then deleted as a whole
    evict(torn, [0, 1])
    assert ledger.free_rows() == {}  # 2 rows to free, 28 in the buffer
    evict(torn, [2])
    assert {number: rows.tolist() for number, rows in ledger.free_rows().items()} == {
        torn: list(range(3, 20))
    }
    ledger.unpin([leased])
    assert list(ledger.take_garbage().values()) == ["a"]
    evict(torn, [3])
    assert ledger.free_rows() == {}


def test_only_the_last_deleted_payloads_are_remembered() -> None:
    ledger = PayloadLedger(2)
    for name in ("a", "b", "c"):
        number = ledger.add(name, 1)
        assert number is not None
        ledger.evict(np.array([number]), np.array([0]), "cleared")
        assert ledger.take_garbage() == {number: name}
    assert [ledger.knows(name) for name in ("a", "b", "c")] == [False, True, True]
