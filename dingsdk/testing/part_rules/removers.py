"""The rules of removers."""

from __future__ import annotations

import copy
from typing import Any, Final

import numpy as np

from dingsdk.errors import CheckpointCorruptError
from dingsdk.testing.expect import expect, expect_equal, expect_same, raises
from dingsdk.testing.part_rules.bench import CAPACITY, PartBench, PartContract, as_list
from dingsdk.testing.runner import RuleBook, collect, needs

_SIZES = (3, 4, 1, 2, CAPACITY, 5, 1, 7, 3)
"""Sizes of pushes: the third fills the buffer, and the fourth overwrites the first rows."""


class _Table:
    """Calls a remover, and keeps the positions of all rows by age, to compare with it."""

    def __init__(self, remover: Any) -> None:
        self.remover = remover
        self.oldest_first: list[int] = []

    def push(self, n: int) -> tuple[list[int], list[int]]:
        """Allot ``n`` new rows; return their positions, and those of the rows that left."""
        where, leaving = self.remover.allot(n)
        taken, left = as_list(where), [] if leaving is None else as_list(leaving)
        self.oldest_first = [p for p in self.oldest_first if p not in left] + taken
        return taken, left

    def by_age(self) -> list[int]:
        count = self.remover.count
        return as_list(self.remover.by_age(np.arange(count, dtype=np.int64)))


def rule_01_positions_are_first_used_in_order(bench: PartBench) -> None:
    """Until the buffer is full, rows take the positions 0, 1, 2... and no row leaves."""
    table = _Table(bench.part())
    for first, n in ((0, 3), (3, 1), (4, 4)):
        expect_equal(table.remover.count, first, "count")
        found = table.push(n)
        expect_equal(found, (list(range(first, first + n)), []), f"positions of {n} rows")
    expect_equal(table.remover.count, CAPACITY, "count of a full buffer")


def rule_02_no_two_rows_share_a_position(bench: PartBench) -> None:
    """The positions of a push are distinct; rows leave only if new rows need their positions."""
    table = _Table(bench.part())
    for n in _SIZES:
        free = CAPACITY - len(table.oldest_first)
        taken, left = table.push(n)
        expect_equal(len(set(taken)), n, f"distinct positions of {n} rows: {taken}")
        expect(set(taken) <= set(range(CAPACITY)), f"positions {taken} of {CAPACITY}")
        expect_equal(len(left), max(0, n - free), f"rows that left for {n}, with {free} free")
        expect(set(left) <= set(taken), f"rows at {left} left, new ones went to {taken}")
        expect_equal(table.remover.count, len(table.oldest_first), "count")


def rule_03_rows_leave_oldest_first(bench: PartBench) -> None:
    """The positions of leaving rows are ordered by age, oldest first; None if no row leaves."""
    table = _Table(bench.part())
    for n in _SIZES:
        before = list(table.oldest_first)
        _, leaving = table.remover.allot(n)
        left = [] if leaving is None else as_list(leaving)
        expect_equal(left, [p for p in before if p in left], "leaving rows by age")
        expect(
            leaving is None or len(left) > 0,
            "no row left, and allot() did not return None for them",
        )
        table.oldest_first = table.by_age()


def rule_04_by_age_gives_the_order_of_rows(bench: PartBench) -> None:
    """``by_age`` maps 0 to the position of the oldest row, and so on to the newest."""
    table = _Table(bench.part())
    for n in _SIZES:
        table.push(n)
        expect_equal(table.by_age(), table.oldest_first, f"positions by age after {n} rows")
    found = as_list(table.remover.by_age(np.array([2, 0, 2])))
    expect_equal(found, [table.oldest_first[age] for age in (2, 0, 2)], "positions of some ages")


def rule_05_ranks_are_all_rows(bench: PartBench) -> None:
    """``positions`` maps the ranks ``0..count-1`` to the positions of all rows, each once."""
    table = _Table(bench.part())
    for n in _SIZES:
        table.push(n)
        found = as_list(table.remover.positions(np.arange(table.remover.count)))
        expect_equal(sorted(found), sorted(table.oldest_first), "positions of all ranks")


def rule_06_clear_forgets_all_rows(bench: PartBench) -> None:
    """After ``clear`` there are no rows, and new rows take the positions 0, 1, 2..."""
    table = _Table(bench.part())
    for n in _SIZES:
        table.push(n)
    table.remover.clear()
    expect_equal(table.remover.count, 0, "count after clear()")
    found = _Table(table.remover).push(5)
    expect_equal(found, (list(range(5)), []), "positions of 5 rows after clear()")


def rule_07_state_gives_the_same_future(bench: PartBench) -> None:
    """A remover that loads a state has the rows of its source, and removes the same rows.

    The state is a copy. An invalid state raises CheckpointCorruptError, and changes nothing.
    """
    for pushes in ((), (3,), _SIZES):
        old, new = _Table(bench.part()), _Table(bench.part(seed=9))
        for n in pushes:
            old.push(n)
        new.push(2)
        state = old.remover.state_dict()
        kept = copy.deepcopy(state)
        new.remover.load_state_dict(state)
        new.oldest_first = list(old.oldest_first)
        expect_equal(new.by_age(), old.oldest_first, "positions by age of a loaded state")
        for n in (2, 5, 1):
            expect_equal(new.push(n), old.push(n), f"positions of {n} rows after a state")
            expect_equal(new.by_age(), old.oldest_first, "positions by age after a state")
        expect_same(state, kept, "a state after its remover went on")
        before = new.by_age()
        wrong: dict[str, Any] = dict.fromkeys(state, "wrong")
        for bad in ({}, wrong, dict.fromkeys(state, -5), dict.fromkeys(state, 10**6)):
            with raises(f"load_state_dict({bad})", CheckpointCorruptError):
                new.remover.load_state_dict(bad)
        expect_equal(new.by_age(), before, "positions by age after refused states")


@needs("fifo")
def rule_08_oldest_rows_leave_first(bench: PartBench) -> None:
    """The oldest rows leave, and new rows take their positions in that order.

    Rows leave only if there is no free position. ``is_fifo`` is True.
    """
    table = _Table(bench.part())
    expect(type(table.remover).is_fifo, "is_fifo is False")
    newest = 0
    for n in _SIZES:
        before = list(table.oldest_first)
        taken, left = table.push(n)
        expect_equal(left, before[: len(left)], "rows that left, oldest first")
        expect_equal(taken, [(newest + i) % CAPACITY for i in range(n)], f"positions of {n} rows")
        newest += n


@needs("ages")
def rule_09_newer_counts_the_rows_that_came_after(bench: PartBench) -> None:
    """``newer`` returns for each position how many rows were added after the row there."""
    table = _Table(bench.part())
    for n in _SIZES:
        table.push(n)
        found = as_list(table.remover.newer(np.array(table.oldest_first)))
        expect_equal(found, list(range(len(found)))[::-1], "rows that came after each, by age")


@needs("random")
def rule_10_seed_decides_which_rows_leave(bench: PartBench) -> None:
    """The same seed removes the same rows, another seed removes others; ``is_fifo`` is False."""
    removers = [_Table(bench.part(seed=seed)) for seed in (5, 5, 6)]
    one, two, other = ([table.push(n) for n in _SIZES * 4] for table in removers)
    expect_equal(two, one, "positions with one seed")
    expect(other != one, "another seed removed the same rows")
    expect(not type(removers[0].remover).is_fifo, "is_fifo is True")


REMOVER_BOOK: Final = RuleBook(
    collect(__name__),
    {
        "fifo": "The oldest rows leave first, and their positions are used in that order.",
        "ages": "`newer` returns how many rows were added after others.",
        "random": "Which rows leave depends on the seed.",
    },
    PartBench,
)


class RemoverContract(PartContract):
    """Contract tests of a remover; see ``PART_RULES["remover"].known_capabilities``."""

    book = REMOVER_BOOK
