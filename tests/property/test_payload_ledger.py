"""The ledger against a plain model: nothing acknowledged is lost, nothing wanted is garbage."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from dingsdk.errors import ProtocolError
from dingsdk.worker.coordinator.payloads import PayloadLedger


class LedgerMachine(RuleBasedStateMachine):
    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = PayloadLedger()
        self.number_of: dict[str, int] = {}
        self.in_buffer: list[int] = []
        self.pinned: list[set[int]] = []
        self.deleted: set[int] = set()

    @rule(target=names, index=st.integers(0, 10_000), rows=st.integers(1, 5))
    def add(self, index: int, rows: int) -> str:
        name = f"p{index}"
        number = self.ledger.add(name, rows)
        live = self.number_of.get(name)
        if live is not None and live not in self.deleted:
            assert number is None
        else:
            assert number is not None
            self.number_of[name] = number
            self.in_buffer += [number] * rows
        return name

    @rule(name=names)
    def add_again(self, name: str) -> None:
        if self.number_of[name] not in self.deleted:
            assert self.ledger.add(name, 1) is None

    @rule(count=st.integers(1, 8))
    def evict_oldest(self, count: int) -> None:
        gone, self.in_buffer = self.in_buffer[:count], self.in_buffer[count:]
        if gone:
            self.ledger.evict(np.asarray(gone, dtype=np.int64), "overwritten")

    @rule(seed=st.integers(0, 1000))
    def pin_some(self, seed: int) -> None:
        if self.in_buffer:
            rng = np.random.default_rng(seed)
            chosen = {int(each) for each in rng.choice(self.in_buffer, 3)}
            self.ledger.pin(chosen)
            self.pinned.append(chosen)

    @rule()
    def unpin_oldest(self) -> None:
        if self.pinned:
            self.ledger.unpin(self.pinned.pop(0))

    @rule()
    def collect_garbage(self) -> None:
        wanted = set(self.in_buffer).union(*self.pinned)
        known = set(self.number_of.values()) - self.deleted
        garbage = self.ledger.take_garbage()
        assert set(garbage) == known - wanted
        self.deleted |= garbage.keys()

    @invariant()
    def every_acknowledged_row_is_accounted_for(self) -> None:
        self.ledger.check(len(self.in_buffer))
        rows = Counter(self.in_buffer)
        for number, count in rows.items():
            assert self.ledger.rows_left(number) == count


TestLedger = LedgerMachine.TestCase


def test_payload_without_rows_is_refused() -> None:
    with pytest.raises(ProtocolError):
        PayloadLedger().add("p", 0)


def test_check_notices_a_lost_row() -> None:
    ledger = PayloadLedger()
    ledger.add("p", 3)
    with pytest.raises(AssertionError):
        ledger.check(2)
