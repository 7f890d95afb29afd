"""The ledger of payloads: repeats, freed rows, saved states."""

from __future__ import annotations

import numpy as np
import pytest

from dingsdk.errors import ConflictError, ProtocolError
from dingsdk.worker.coordinator import payload_ledger
from dingsdk.worker.coordinator.payload_ledger import PayloadLedger


def test_rows_of_deleted_payloads_do_not_cause_others_to_be_freed() -> None:
    ledger = PayloadLedger()
    for name, rows in (("gone", 10), ("large", 80), ("small", 20)):
        ledger.add(name, rows)
    ledger.evict(np.zeros(10, np.int64), np.arange(10), "overwritten")
    assert ledger.take_garbage() == {0: "gone"}
    ledger.evict(np.full(5, 2), np.arange(5), "overwritten")
    assert ledger.free_rows() == {}, "only 5 freeable rows beside 95 live ones"
    ledger.evict(np.full(5, 2), np.arange(5, 10), "overwritten")
    assert {number: rows.tolist() for number, rows in ledger.free_rows().items()} == {
        2: list(range(10, 20))
    }


def evict(ledger: PayloadLedger, number: int, *rows: int) -> None:
    ledger.evict(np.full(len(rows), number), np.array(rows), "overwritten")


def test_rows_are_freed_if_they_are_over_a_tenth_of_all_rows_and_of_their_payload() -> None:
    ledger = PayloadLedger()
    for name, rows in (("large", 110), ("small", 110)):
        ledger.add(name, rows)
    evict(ledger, 0, *range(10))
    evict(ledger, 1, *range(10))
    assert ledger.free_rows() == {}, "only 20 freeable rows beside 200 live ones"
    evict(ledger, 1, 10)
    assert {number: len(rows) for number, rows in ledger.free_rows().items()} == {1: 99}
    kept = ledger.kept_rows(1)
    assert kept is not None
    assert (ledger.kept_rows(0), kept.tolist()) == (None, list(range(11, 110)))


def test_freed_rows_are_not_counted_again() -> None:
    ledger = PayloadLedger()
    for name, rows in (("large", 300), ("small", 40)):
        ledger.add(name, rows)
    evict(ledger, 1, *range(31))
    assert [rows.tolist() for rows in ledger.free_rows().values()] == [list(range(31, 40))]
    evict(ledger, 1, 31)
    assert ledger.free_rows() == {}, "only 1 freeable row beside 308 live ones"
    ledger.check(308)


def test_ledger_continues_from_its_saved_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_ledger, "RETIRED_SAVED", 2)
    ledger = PayloadLedger()
    for number, name in enumerate(("a", "b", "c")):
        ledger.add(name, 1, f"digest of {name}")
        evict(ledger, number, 0)
    ledger.take_garbage()
    for name, rows in (("garbage", 2), ("part", 60), ("whole", 40)):
        ledger.add(name, rows)
    evict(ledger, 3, 0, 1)
    evict(ledger, 4, *range(10))
    other = PayloadLedger()

    other.load_state_dict(ledger.state_dict())

    assert [other.knows(name) for name in ("a", "b", "c", "part")] == [False, True, True, True]
    with pytest.raises(ConflictError):
        other.add("b", 1, "another digest")
    other.check(90)
    assert (other.acked_rows, other.evicted_rows) == (105, {"overwritten": 15})
    assert other.take_garbage() == {3: "garbage"}
    assert list(other.free_rows()) == [4], "10 freeable rows beside 90 live ones"
    assert other.add("new", 1) == 6


def test_payload_is_added_once_and_other_content_with_its_id_is_refused() -> None:
    ledger = PayloadLedger()
    assert ledger.add("a", 1, "first") == 0
    for is_deleted in (False, True):
        assert ledger.add("a", 1, "first") is None
        assert ledger.add("a", 1) is None
        for rows, digest in ((2, "first"), (1, "other")):
            with pytest.raises(ConflictError, match="ids are used once") as caught:
                ledger.add("a", rows, digest)
            assert caught.value.data_id == "a"
        if not is_deleted:
            ledger.evict(np.zeros(1, np.int64), np.zeros(1, np.int64), "overwritten")
            assert ledger.take_garbage() == {0: "a"}
    with pytest.raises(ProtocolError, match="has 0 rows"):
        ledger.add("b", 0)
    assert ledger.acked_rows == 1
