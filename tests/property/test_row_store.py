"""The learner's row store returns exactly the stored rows, whatever is evicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dingsdk import SampleBatch
from dingsdk.errors import (
    DataCorruptError,
    DataMissingError,
    PayloadsLostError,
    ProtocolError,
)
from dingsdk.worker.comm.row_store import RowStore

LEAST = 16
"""The smallest ring, in rows: so small that a few payloads make holes and growth."""


class RowStoreMachine(RuleBasedStateMachine):
    """Payloads of up to five rows, freed in any order, as a whole or row by row.

    Each payload continues the one before, like pieces of one trajectory.
    """

    storage: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.payloads: dict[int, SampleBatch] = {}
        self.kept: dict[int, list[int]] = {}
        self.loads = 0
        self.count = 0
        self.store = RowStore(8, self.storage, self._load, LEAST)

    def _load(self, name: str, digest: str | None) -> SampleBatch:
        self.loads += 1
        return self.payloads[int(name[1:])]

    @rule(rows=st.integers(1, 5), touch=st.booleans())
    def announce(self, rows: int, touch: bool) -> None:
        number, self.count = self.count, self.count + 1
        values = number * 100 + np.arange(rows)
        obs = np.arange(self.steps, self.steps + rows + 1, dtype=np.float32)[:, None]
        self.steps += rows
        columns = {"value": values, "pair": np.stack([values, -values], 1)}
        self.payloads[number] = SampleBatch({**columns, "obs": obs[:-1], "next_obs": obs[1:]})
        self.kept[number] = list(range(rows))
        self.store.announce({f"p{number}": number})
        if touch:
            self._gather([(number, 0)])

    @rule(seed=st.integers(0, 1000), count=st.integers(1, 12))
    def gather(self, seed: int, count: int) -> None:
        if self.payloads:
            rng = np.random.default_rng(seed)
            numbers = rng.choice(list(self.payloads), count).tolist()
            self._gather([(n, int(rng.choice(self.kept[n]))) for n in numbers])

    @rule(seed=st.integers(0, 1000), count=st.integers(1, 4))
    def drop(self, seed: int, count: int) -> None:
        if self.payloads:
            rng = np.random.default_rng(seed)
            gone = np.unique(rng.choice(list(self.payloads), count))
            for number in gone.tolist():
                del self.payloads[number]
            self.store.drop(np.concatenate([gone, [self.count + 7]]))

    @rule(seed=st.integers(0, 1000), count=st.integers(1, 4))
    def keep(self, seed: int, count: int) -> None:
        if self.payloads:
            rng = np.random.default_rng(seed)
            kept = {}
            for number in np.unique(rng.choice(list(self.payloads), count)).tolist():
                rows = self.kept[number]
                chosen = np.sort(rng.choice(rows, rng.integers(1, len(rows) + 1), replace=False))
                self.kept[number] = chosen.tolist()
                kept[number] = chosen
            self.store.keep(kept)

    @invariant()
    def has_little_room_to_spare(self) -> None:
        held = sum(len(self.kept[number]) for number in self.payloads)
        assert self.store.rows <= held
        assert self.store.ring_rows <= max(LEAST, 1.3 * self.store.rows)

    def _gather(self, wanted: list[tuple[int, int]]) -> None:
        batch = self.store.gather(
            np.asarray([number for number, _ in wanted]), np.asarray([row for _, row in wanted])
        )
        expected = [number * 100 + row for number, row in wanted]
        assert batch.columns["value"].tolist() == expected
        assert batch.columns["pair"].tolist() == [[value, -value] for value in expected]
        steps = [self.payloads[number].columns["obs"][row, 0] for number, row in wanted]
        assert batch.columns["obs"][:, 0].tolist() == steps
        assert batch.columns["next_obs"][:, 0].tolist() == [step + 1 for step in steps]


class NextOfMachine(RowStoreMachine):
    storage: ClassVar[dict[str, Any]] = {"type": "array", "next_of": "obs"}


TestRowStore = RowStoreMachine.TestCase
TestNextOf = NextOfMachine.TestCase


def test_payload_is_loaded_once() -> None:
    loads: list[tuple[str, str | None]] = []

    def load(*name_and_digest: Any) -> SampleBatch:
        loads.append(name_and_digest)
        return SampleBatch({"value": np.arange(4)})

    store = RowStore(10, {}, load)
    store.announce({"p": 0, "q": 1}, {"p": "its digest"})
    for _ in range(3):
        store.gather(np.asarray([0, 1]), np.asarray([3, 1]))
    assert loads == [("p", "its digest"), ("q", None)]


def test_lost_payload_is_loaded_once_and_keeps_its_first_reason() -> None:
    loads: list[str] = []

    def load(name: str, digest: str | None) -> SampleBatch:
        loads.append(name)
        if loads.count(name) == 1 and name == "damaged":
            raise DataCorruptError("damaged", where=name, data_id=name)
        raise DataMissingError("gone", data_id=name)

    store = RowStore(10, {}, load)
    store.announce({"damaged": 0, "gone": 1})
    for _ in range(3):
        with pytest.raises(PayloadsLostError) as caught:
            store.gather(np.asarray([0, 1]), np.asarray([0, 0]))
        assert caught.value.facts["reasons"] == {0: "corrupt", 1: "missing"}
    assert loads == ["damaged", "gone"]

    store.drop(np.asarray([0]))
    store.announce({"damaged": 0})
    with pytest.raises(PayloadsLostError):
        store.gather(np.asarray([0]), np.asarray([0]))
    assert loads == ["damaged", "gone", "damaged"]


def test_dropped_payload_is_forgotten() -> None:
    store = RowStore(8, {}, lambda *name: SampleBatch({"value": np.arange(4)}), LEAST)
    store.announce({"p": 0, "q": 1, "r": 2})
    store.gather(np.asarray([0, 1]), np.asarray([0, 0]))
    store.keep({0: np.asarray([1, 2])})
    store.drop(np.asarray([0, 2, 3]))  # 3 is the first unknown number
    assert store.known().tolist() == [1]
    with pytest.raises(ProtocolError):
        store.gather(np.asarray([1, 0]), np.asarray([3, 1]))

    store.announce({"p": 0})  # again, with all of its rows
    batch = store.gather(np.asarray([0, 0, 1]), np.asarray([3, 0, 3]))
    assert batch.columns["value"].tolist() == [3, 0, 3]


def test_gathered_batch_is_a_copy() -> None:
    store = RowStore(10, {}, lambda *name: SampleBatch({"value": np.arange(4)}))
    store.announce({"p": 0})
    batch = store.gather(np.zeros(2, np.int64), np.asarray([0, 1]))
    batch.columns["value"][:] = -1
    again = store.gather(np.zeros(2, np.int64), np.asarray([0, 1]))
    assert again.columns["value"].tolist() == [0, 1]


def hundreds(name: str, digest: str | None) -> SampleBatch:
    return SampleBatch({"value": [int(name)] * 600})


@pytest.mark.parametrize("kind", ["array", "memmap"])
def test_store_grows_beyond_the_reserved_rows(kind: str, tmp_path: Path) -> None:
    storage = {"type": kind, **({"path": str(tmp_path / "rows")} if kind == "memmap" else {})}
    store = RowStore(
        8, storage, lambda name, digest: SampleBatch({"value": [int(name)] * 600}), LEAST
    )
    store.announce({str(number): number for number in range(10)})
    for number in range(10):
        store.gather(np.asarray([number]), np.asarray([599]))
    assert (len(store), store.rows) == (10, 6000)
    batch = store.gather(np.arange(10), np.arange(10))
    assert batch.columns["value"].tolist() == list(range(10))


@pytest.mark.parametrize("kind", ["array", "memmap", "object"])
def test_grid_of_rows_comes_back_as_a_grid(kind: str, tmp_path: Path) -> None:
    loaded = SampleBatch({"value": np.arange(6), "pair": np.arange(12).reshape(6, 2)})
    path = {"path": str(tmp_path / "rows")} if kind == "memmap" else {}
    store = RowStore(8, {"type": kind, **path}, lambda *name: loaded, LEAST)
    store.announce({"p": 0})
    rows = np.array([[0, 1, 2], [3, 4, 5]])
    batch = store.gather(np.zeros((2, 3), np.int64), rows)
    assert len(batch) == 2
    assert batch.columns["value"].tolist() == rows.tolist()
    assert batch.columns["pair"].tolist() == np.arange(12).reshape(2, 3, 2).tolist()


def test_storage_that_returns_rows_as_dicts_gives_columns() -> None:
    pairs = np.arange(12, dtype=np.float32).reshape(6, 2)
    loaded = SampleBatch({"value": np.arange(6), "pair": pairs})
    store = RowStore(8, {"type": "object"}, lambda *name: loaded, LEAST)
    store.announce({"p": 0, "q": 1})
    store.gather(np.array([0, 1]), np.array([0, 0]))
    store.keep({1: np.array([1, 4])})
    store.drop(np.array([0]))

    batch = store.gather(np.array([1, 1, 1]), np.array([4, 1, 4]))

    assert batch == SampleBatch({"value": np.array([4, 1, 4]), "pair": pairs[[4, 1, 4]]})


def test_files_of_an_earlier_store_are_overwritten(tmp_path: Path) -> None:
    storage = {"type": "memmap", "path": str(tmp_path / "rows"), "reopen": False}
    for value, capacity in ((1.5, 8), (2, 4000)):
        batch = SampleBatch({"value": np.full(6, value)})
        store = RowStore(capacity, storage, lambda *name, batch=batch: batch, LEAST)
        store.announce({"p": 0})
        assert set(store.gather(np.zeros(6, np.int64), np.arange(6)).columns["value"]) == {value}
        store.close()


def test_reserved_rows_are_filled_before_the_ring_grows() -> None:
    store = RowStore(LEAST, {}, lambda *name: SampleBatch({"value": np.arange(LEAST)}), LEAST)
    store.announce({"p": 0})
    store.gather(np.asarray([0]), np.asarray([0]))
    assert (store.rows, store.ring_rows) == (LEAST, LEAST)


@pytest.mark.parametrize("gone", [[0], [1], [3], [0, 1], [1, 2]], ids=str)
def test_payload_is_stored_in_the_space_of_dropped_ones(gone: list[int]) -> None:
    def load(name: str, digest: str | None) -> SampleBatch:
        return SampleBatch({"value": [int(name)] * (4 * len(gone) if name == "4" else 4)})

    store = RowStore(LEAST, {}, load, LEAST)
    store.announce({str(number): number for number in range(5)})
    store.gather(np.arange(4), np.zeros(4, np.int64))  # these fill the ring
    store.drop(np.asarray(gone))
    held = [number for number in range(5) if number not in gone]
    batch = store.gather(np.asarray(held), np.full(len(held), 3))
    assert batch.columns["value"].tolist() == held
    assert (store.rows, store.ring_rows) == (LEAST, LEAST)


def test_free_space_is_searched_after_the_newest_payload_and_then_from_the_start() -> None:
    store = RowStore(LEAST, {}, lambda name, _: SampleBatch({"value": [int(name)] * 4}), LEAST)
    store.announce({str(number): number for number in range(6)})
    store.gather(np.arange(4), np.zeros(4, np.int64))
    for gone, number in ((1, 4), (0, 5)):
        store.drop(np.asarray([gone]))
        store.gather(np.asarray([number]), np.asarray([0]))
    batch = store.gather(np.asarray([5, 4, 2, 3]), np.full(4, 3))
    assert batch.columns["value"].tolist() == [5, 4, 2, 3]
    assert store.ring_rows == LEAST


def test_holes_are_closed_before_the_ring_grows() -> None:
    sizes = [2] * 8 + [6]

    def load(name: str, digest: str | None) -> SampleBatch:
        return SampleBatch({"value": int(name) * 10 + np.arange(sizes[int(name)])})

    store = RowStore(LEAST, {}, load, LEAST)
    store.announce({str(number): number for number in range(9)})
    store.gather(np.arange(8), np.zeros(8, np.int64))  # these fill the ring
    store.drop(np.asarray([0, 2, 4, 6]))
    payloads = np.repeat([1, 3, 5, 7, 8], [2, 2, 2, 2, 6])
    rows = np.concatenate([np.arange(sizes[number]) for number in (1, 3, 5, 7, 8)])
    # 8 rows are stored and 6 arrive: the ring may have 1.3 times as many rows, or LEAST.
    assert store.gather(payloads, rows).columns["value"].tolist() == (payloads * 10 + rows).tolist()
    assert (store.rows, store.ring_rows) == (14, LEAST)


def test_memory_is_freed_when_payloads_leave() -> None:
    store = RowStore(8, {}, hundreds, LEAST)
    store.announce({str(number): number for number in range(100)})
    store.gather(np.arange(100), np.arange(100))
    assert 60_000 <= store.ring_rows <= 1.3 * 60_000
    store.drop(np.asarray([number for number in range(100) if number % 10]))
    assert (store.rows, store.ring_rows) == (6000, int(1.15 * 6000))
    left = np.arange(0, 100, 10)
    assert store.gather(left, left).columns["value"].tolist() == left.tolist()


def test_rows_are_not_moved_to_free_little_memory() -> None:
    store = RowStore(8, {}, hundreds, LEAST)
    store.announce({str(number): number for number in range(100)})
    store.gather(np.arange(100), np.arange(100))
    before = store.ring_rows
    store.drop(np.asarray([0]))
    assert (store.rows, store.ring_rows) == (59_400, before)


def test_rows_are_not_moved_when_the_ring_has_its_smallest_size() -> None:
    store = RowStore(8, {}, lambda *name: SampleBatch({"value": np.arange(4)}), LEAST)
    store.announce({"p": 0, "q": 1})
    store.gather(np.asarray([0, 1]), np.asarray([3, 3]))
    storage = store._storage
    store.drop(np.asarray([0]))
    assert store._storage is storage
    assert (store.rows, store.ring_rows) == (4, LEAST)


def test_replaced_storage_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    store, closed = RowStore(8, {}, hundreds, LEAST), list[Any]()
    store.announce({str(number): number for number in range(10)})
    first = store._storage
    monkeypatch.setattr(type(first), "close", lambda storage: closed.append(storage))
    store.gather(np.arange(10), np.arange(10))  # more rows than were reserved
    second = store._storage
    store.drop(np.arange(9))
    store.close()
    assert [id(each) for each in closed] == [id(each) for each in (first, second, store._storage)]
    assert len(set(map(id, closed))) == 3


@pytest.mark.parametrize("number", [1023, 1024, 5000])
def test_payload_can_have_a_large_number(number: int) -> None:
    store = RowStore(8, {}, lambda *name: SampleBatch({"value": np.arange(4)}), LEAST)
    store.announce({"p": number})
    batch = store.gather(np.asarray([number]), np.asarray([3]))
    assert batch.columns["value"].tolist() == [3]


def test_freed_rows_of_a_payload_free_memory() -> None:
    loaded = SampleBatch({"value": np.arange(5000)})
    store = RowStore(8, {}, lambda *name: loaded, LEAST)
    store.announce({"p": 0, "q": 1})
    store.gather(np.asarray([0]), np.asarray([4999]))
    kept = np.arange(0, 5000, 10)
    store.keep({0: kept, 1: kept})
    store.keep({0: kept[:3]})
    assert (store.rows, store.ring_rows) == (3, LEAST)
    wanted = np.asarray([0, 0, 1]), np.asarray([20, 0, 4990])
    assert store.gather(*wanted).columns["value"].tolist() == [20, 0, 4990]
    assert store.rows == 3 + 500


def test_unannounced_payload_is_a_protocol_error() -> None:
    store = RowStore(10, {}, lambda *name: SampleBatch({"value": np.arange(4)}))
    with pytest.raises(ProtocolError):
        store.gather(np.asarray([5]), np.asarray([0]))


def test_rows_of_one_payload_do_not_depend_on_another() -> None:
    def load(name: str, digest: str | None) -> SampleBatch:
        obs = np.arange(4, dtype=np.float32)[:, None] + {"a": 0, "b": 3, "c": 50}[name]
        return SampleBatch({"obs": obs[:-1], "next_obs": obs[1:]})

    store = RowStore(6, {"type": "array", "next_of": "obs"}, load, 6)  # room for two
    store.announce({"a": 0, "b": 1, "c": 2})
    store.gather(np.asarray([0]), np.asarray([2]))
    store.gather(np.asarray([1]), np.asarray([0]))  # its first obs is the next one of a's last row
    store.drop(np.asarray([1]))
    store.gather(np.asarray([2]), np.asarray([0]))  # c is stored in the space of b
    batch = store.gather(np.asarray([0]), np.asarray([2]))
    assert batch.columns["next_obs"].tolist() == [[3.0]]
    assert store.ring_rows == 6
