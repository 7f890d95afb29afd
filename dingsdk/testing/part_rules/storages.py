"""The rules of storages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from dingsdk.testing.buffer_bench import make_row, numbers_of
from dingsdk.testing.expect import expect_equal
from dingsdk.testing.part_rules.bench import CAPACITY, PartBench, PartContract
from dingsdk.testing.runner import RuleBook, collect, needs


def _put(storage: Any, where: Any, numbers: Sequence[int], there: dict[int, int]) -> None:
    """Put rows of these numbers to positions, and record them in ``there``."""
    storage.put(where, storage.accept([make_row(number) for number in numbers]))
    there.update(zip(np.arange(CAPACITY)[where].tolist(), numbers, strict=True))


def _expect_rows(storage: Any, there: Mapping[int, int], what: str) -> None:
    found = numbers_of(storage.take(np.array([*there], np.int64)))
    expect_equal(found, [*there.values()], f"rows by position {what}")


def rule_09_ring_is_loaded_in_pieces(bench: PartBench) -> None:
    """The rows of a ring may be put in pieces, starting at any position."""
    storage = bench.part()
    there: dict[int, int] = {}
    for number, where in enumerate((slice(3, 5), slice(5, 7), np.array([7, 0]), slice(1, 3))):
        _put(storage, where, (2 * number, 2 * number + 1), there)
    _expect_rows(storage, there, "of a loaded ring")
    _put(storage, np.array([3, 4]), (20, 21), there)
    _expect_rows(storage, there, "of a loaded ring, after a push")


@needs("any_order")
def rule_13_rows_leave_in_any_order(bench: PartBench) -> None:
    """Any positions may be replaced, in any order."""
    storage, rng = bench.part(), np.random.default_rng(0)
    there: dict[int, int] = {}
    _put(storage, slice(0, CAPACITY), range(CAPACITY), there)
    for first in range(20, 80, 3):
        where = rng.permutation(CAPACITY)[:3]
        _put(storage, where, range(first, first + 3), there)
        _expect_rows(storage, there, f"after rows were put to {where}")


@needs("durable")
def rule_14_rows_outlive_the_storage(bench: PartBench) -> None:
    """A storage in the folder of a closed storage has the same rows, state and marks.

    The state is that of the last ``commit``. In a new folder there is none.
    """
    old = bench.part(folder="kept")
    there: dict[int, int] = {}
    expect_equal(old.recovered(), None, "recovered() in a new folder")
    _put(old, slice(0, CAPACITY), range(CAPACITY), there)
    old.commit({"tail": 0, "valid_count": CAPACITY})
    _put(old, slice(0, 3), (20, 21, 22), there)
    expected = {"tail": 3, "valid_count": CAPACITY, "more": 7}
    old.commit(expected)
    old.mark(np.array([1, 2, 2]), np.array([4, 5, 6]))
    for _ in range(2):
        old.close()
    new = bench.part(folder="kept")
    state = new.recovered() or {}
    expect_equal({key: state.get(key) for key in expected}, expected, "the state found again")
    _expect_rows(new, there, "found again")
    marks = new.recovered_marks(np.arange(4))
    expect_equal(None if marks is None else marks.tolist(), [0, 4, 6, 0], "marks found again")
    _put(new, slice(3, 4), (50,), there)
    _expect_rows(new, there, "found again, and a push")


def rule_15_buffer_with_it_follows_the_rules(bench: PartBench) -> None:
    """A buffer that uses the storage follows the rules of buffers."""
    also = {name for name in ("columns", "objects") if bench.has(name)}
    if bench.build().is_durable:
        also.add("durable")
    capabilities = {"fifo", "parts", "saves", "distinct", "ages", *also}
    bench.expect_rules_of_buffers("storage", "naive", capabilities)


STORAGE_BOOK: Final = RuleBook(
    collect(__name__),
    {
        "columns": "Rows are dicts of numbers and arrays, returned as SampleBatch.",
        "objects": "A row may be any object.",
        "any_order": "Rows may leave in any order; without it the oldest leave first.",
        "durable": "Rows stay in the folder when the storage is closed.",
    },
    PartBench,
)


class StorageContract(PartContract):
    """Contract tests of a storage; see ``PART_RULES["storage"].known_capabilities``."""

    book = STORAGE_BOOK
