"""The rules of storages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.errors import SchemaMismatchError
from dingsdk.testing.buffer_rules.bench import WIDTH, make_row, numbers_of, spoil
from dingsdk.testing.expect import expect, expect_equal, raises
from dingsdk.testing.part_rules.bench import CAPACITY, PartBench, PartContract, as_list, positions
from dingsdk.testing.runner import RuleBook, collect, needs


class _Ring:
    """Fills a storage as a buffer does, and keeps which row must be at which position."""

    def __init__(self, storage: Any, *numbers: int) -> None:
        self.storage = storage
        self.tail = 0
        self.there: dict[int, int] = {}
        self.push(*numbers)

    def push(self, *numbers: int) -> None:
        if numbers:
            rows = [make_row(number) for number in numbers]
            self.put(positions(self.tail, len(rows)), rows, numbers)
            self.tail = (self.tail + len(rows)) % CAPACITY
            self.storage.commit({"tail": self.tail, "valid_count": len(self.there)})

    def put(self, where: Any, rows: Any, numbers: Sequence[int]) -> None:
        self.storage.put(where, self.storage.accept(rows))
        self.there.update(zip(as_list(where), numbers, strict=True))

    def expect(self, what: str) -> None:
        where = sorted(self.there)
        expected = [self.there[position] for position in where]
        found = self.storage.take(np.array(where, np.int64))
        expect_equal(numbers_of(found), expected, f"rows by position {what}")


def rule_01_rows_come_back_from_their_positions(bench: PartBench) -> None:
    """``take`` returns the rows at positions, a slice or an array, in the given order."""
    storage = _Ring(bench.part(), *range(5)).storage
    for where in (slice(0, 5), slice(1, 3), np.array([4]), np.array([3, 0, 3, 2, 2, 1])):
        expect_equal(numbers_of(storage.take(where)), as_list(where), f"rows of take({where})")


def rule_02_put_replaces_what_was_there(bench: PartBench) -> None:
    """``put`` replaces the rows at its positions and no others, also after many wrap-arounds."""
    for size in (1, 2, 3, 5, CAPACITY):
        ring = _Ring(bench.part())
        for first in range(0, 4 * CAPACITY, size):
            ring.push(*range(first, first + size))
            ring.expect(f"after {first + size} rows in pushes of {size}")


def rule_03_refused_rows_change_nothing(bench: PartBench) -> None:
    """``accept`` of None or ``{}`` raises SchemaMismatchError, and no row is stored.

    In a storage of columns, a row with other keys, kinds or shapes raises it too.
    """
    ring = _Ring(bench.part(), 0, 1, 2)
    bad: list[Any] = [None, {}]
    if bench.has("columns"):
        bad += [{"id": 1}, {**make_row(1), "extra": 1}, {**make_row(1), "reward": "much"}]
    for row in bad:
        for rows in ([row], [make_row(8), row]):
            with raises(f"accept({rows!r:.80})", SchemaMismatchError):
                ring.storage.accept(rows)
    ring.push(3, 4)
    ring.expect("after refused rows")


def rule_04_accepting_stores_nothing(bench: PartBench) -> None:
    """Only ``put`` stores accepted rows; ``accept`` without ``put`` changes nothing."""
    ring = _Ring(bench.part(), *range(CAPACITY))
    ring.storage.accept([make_row(50)])
    ring.expect("after rows that were accepted and not put")
    ring.push(20, 21)
    ring.expect("after the next push")


def rule_05_stored_rows_are_copies(bench: PartBench) -> None:
    """Changes to rows after they were put do not change the stored rows."""
    ring = _Ring(bench.part())
    for rows in ([make_row(0), make_row(1)], SampleBatch.from_rows([make_row(2), make_row(3)])):
        first = 0 if isinstance(rows, list) else 2
        ring.put(slice(first, first + 2), rows, (first, first + 1))
        spoil(rows)
    ring.expect("after the pushed rows were overwritten")


def rule_06_taken_rows_are_copies(bench: PartBench) -> None:
    """Changes to taken rows do not change the stored rows, or rows taken by another call."""
    ring = _Ring(bench.part(), *range(4))
    kept = ring.storage.take(np.arange(4))
    for where in (slice(0, 4), np.arange(4)):
        spoil(ring.storage.take(where))
    ring.expect("after taken rows were overwritten")
    expect_equal(numbers_of(kept), list(range(4)), "rows taken before")


def rule_07_single_rows_are_stored_like_batches(bench: PartBench) -> None:
    """``put_row`` stores a row for which ``takes_row`` is true.

    ``takes_row`` is false for a row that does not fit the others. A storage may always return
    false.
    """
    ring = _Ring(bench.part(), 0, 1, 2)
    for position, number in ((3, 7), (1, 9)) if bench.has("any_order") else ((3, 7),):
        if ring.storage.takes_row(make_row(number)):
            ring.storage.put_row(position, make_row(number))
            ring.there[position] = number
    ring.expect("after single rows")
    if bench.has("columns"):
        lacking = {key: value for key, value in make_row(5).items() if key != "reward"}
        for row in (lacking, {**make_row(5), "id": "5"}, {**make_row(5), "extra": 1}):
            expect(not ring.storage.takes_row(row), f"takes_row({row!r:.80}), which does not fit")


def rule_08_clear_drops_rows_and_their_form(bench: PartBench) -> None:
    """After ``clear`` a storage accepts rows with any columns, as a new one does."""
    ring = _Ring(bench.part(), *range(CAPACITY))
    ring.storage.clear()
    observed = {name: make_row(0)[name] for name in ("obs", "next_obs")}
    ring.storage.put(slice(0, 1), ring.storage.accept([{**observed, "other": 1.0}]))
    (row,) = ring.storage.take(slice(0, 1))
    expect_equal(sorted(row), ["next_obs", "obs", "other"], "keys of a row after clear()")
    ring.storage.clear()
    again = _Ring(ring.storage, 30, 31)
    again.expect("after clear()")


def rule_09_ring_is_loaded_in_pieces(bench: PartBench) -> None:
    """After ``expect(rows)`` the rows of a ring may be put in pieces, starting at any position."""
    ring = _Ring(bench.part())
    ring.storage.expect(CAPACITY)
    for number in range(0, CAPACITY, 2):
        rows = [make_row(number), make_row(number + 1)]
        ring.put(positions((number + 3) % CAPACITY, 2), rows, (number, number + 1))
    ring.tail = 3
    ring.expect("of a loaded ring")
    ring.push(20, 21)
    ring.expect("after a push to a loaded ring")


@needs("columns")
def rule_10_columns_come_back_as_columns(bench: PartBench) -> None:
    """Rows are returned as a SampleBatch with the columns, shapes and dtypes of the first push."""
    rows = SampleBatch.from_rows([make_row(n) for n in range(4)])
    storage = bench.part()
    storage.put(slice(0, 4), storage.accept(rows))
    for where in (slice(0, 4), np.arange(4)):
        expect(storage.take(where) == rows, f"take({where}) does not return the batch as it was")
        found = storage.take(where).columns["reward"].dtype
        expect_equal(found, rows.columns["reward"].dtype, "dtype of a column")


@needs("objects")
def rule_11_any_object_is_a_row(bench: PartBench) -> None:
    """Text, tuples, numbers and objects come back as they were."""
    rows = ["text", (1, "two"), 5, object(), {"note": ["text", None]}]
    storage = bench.part()
    storage.put(slice(0, 5), storage.accept(rows))
    expect_equal(storage.take(np.arange(5)), rows, "rows of any kind")


@needs("grids")
def rule_12_grids_of_positions_give_grids_of_rows(bench: PartBench) -> None:
    """Positions ``[B, T]`` give a SampleBatch of ``B`` rows with columns ``[B, T, ...]``."""
    storage = _Ring(bench.part(), *range(6)).storage
    where = np.array([[4, 0, 1], [2, 2, 5]])
    found = storage.take_grid(where)
    expect_equal(found.columns["id"].tolist(), where.tolist(), "numbers of the rows of a grid")
    expect_equal(found.columns["next_obs"]["pos"].shape, (2, 3, WIDTH), "shape of a column")
    expect_equal(len(found), 2, "rows of the batch")


@needs("any_order")
def rule_13_rows_leave_in_any_order(bench: PartBench) -> None:
    """Any positions may be replaced, in any order."""
    ring, rng = _Ring(bench.part(), *range(CAPACITY)), np.random.default_rng(0)
    ring.storage.seal()
    for first in range(20, 80, 3):
        numbers = range(first, first + 3)
        where = rng.permutation(CAPACITY)[:3]
        ring.put(where, [make_row(number) for number in numbers], numbers)
        ring.expect(f"after rows were put to {where}")


@needs("durable")
def rule_14_rows_outlive_the_storage(bench: PartBench) -> None:
    """A storage in the folder of a closed storage has the same rows, state and marks.

    The state is that of the last ``commit``. In a new folder there is none.
    """
    old = bench.part(folder="kept")
    old.keep_marks()
    expect_equal(old.recovered(), None, "recovered() in a new folder")
    ring = _Ring(old, *range(CAPACITY))
    ring.push(20, 21, 22)
    old.commit({"tail": ring.tail, "valid_count": CAPACITY, "more": 7})
    old.mark(np.array([1, 2, 2]), np.array([4, 5, 6]))
    for _ in range(2):
        old.close()
    ring.storage = new = bench.part(folder="kept")
    new.keep_marks()
    state = new.recovered() or {}
    expected = {"tail": ring.tail, "valid_count": CAPACITY, "more": 7}
    expect_equal({key: state.get(key) for key in expected}, expected, "the state found again")
    ring.expect("found again")
    marks = new.recovered_marks(np.arange(4))
    expect_equal(None if marks is None else marks.tolist(), [0, 4, 6, 0], "marks found again")
    ring.push(50)
    ring.expect("found again, and a push")


STORAGE_BOOK: Final = RuleBook(
    collect(__name__),
    {
        "columns": "Rows are dicts of numbers and arrays, returned as SampleBatch.",
        "objects": "A row may be any object.",
        "grids": "`take_grid` gives columns.",
        "any_order": "Rows may leave in any order; without it the oldest leave first.",
        "durable": "Rows stay in the folder when the storage is closed.",
    },
    PartBench,
)


class StorageContract(PartContract):
    """Contract tests of a storage; see ``PART_RULES["storage"].known_capabilities``."""

    book = STORAGE_BOOK
