"""The rules of samplers."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import numpy as np

from dingsdk.errors import CheckpointCorruptError, CheckpointVersionError
from dingsdk.testing.buffer_rules.bench import make_row
from dingsdk.testing.expect import expect, expect_alike, expect_equal, expect_same, raises
from dingsdk.testing.part_rules.bench import CAPACITY, PartBench, PartContract, as_list, positions
from dingsdk.testing.runner import RuleBook, RuleBroken, collect, needs

_POPULATION = 12
_TIMES = 400
_ENDS = (2, 9, 12)
"""Numbers of the rows that end a trajectory."""


def _filled(bench: PartBench, rows: int = CAPACITY + 3, seed: int = 0) -> Any:
    """Return a sampler after ``on_insert`` of rows 0, 1, 2... in several pushes."""
    sampler = bench.part(seed=seed)
    for first in range(0, rows, 3):
        _insert(sampler, *range(first, min(first + 3, rows)))
    return sampler


def _insert(sampler: Any, *numbers: int, priorities: list[float] | None = None) -> None:
    rows = _rows(sampler, numbers)
    sampler.check(rows)
    known = None if priorities is None else np.array(priorities, np.float64)
    sampler.on_insert(positions(numbers[0] % CAPACITY, len(numbers)), rows, known)


def _rows(sampler: Any, numbers: Iterable[int]) -> list[dict[str, Any]]:
    """Return rows that have the columns that the sampler needs."""
    return [make_row(number, number in _ENDS, sampler.needs_columns) for number in numbers]


def _draws(bench: PartBench, sampler: Any, times: int = 5) -> list[Any]:
    """Return several draws, as lists."""
    if bench.has("sequences"):
        return [sampler.draw(3, 2).where.tolist() for _ in range(times)]
    args = (5,) if bench.has("priorities") else (_POPULATION, 5)
    return [sampler.draw(*args).tolist() for _ in range(times)]


def rule_01_seed_decides_the_draws(bench: PartBench) -> None:
    """The same seed gives the same draws; another seed gives others."""
    one, two, other = (_draws(bench, _filled(bench, seed=seed)) for seed in (5, 5, 6))
    expect_equal(two, one, "draws with one seed")
    expect(other != one, "another seed gave the same draws")


def rule_02_state_gives_the_same_future(bench: PartBench) -> None:
    """After loading a state and ``on_restore``, a sampler continues with the draws of its source.

    The state is a copy of plain numbers, text and arrays.
    """
    old, new = _filled(bench), bench.part(seed=9)
    _draws(bench, old)
    state = old.state_dict()
    before = copy.deepcopy(state)
    numbers = range(3, CAPACITY + 3)
    new.load_state_dict(state)
    new.on_restore(np.array(numbers) % CAPACITY, _rows(new, numbers))
    expect_equal(_draws(bench, new), _draws(bench, old), "draws after a state was loaded")
    for sampler in (old, new):
        _insert(sampler, CAPACITY + 3, CAPACITY + 4)
    expect_equal(_draws(bench, new), _draws(bench, old), "draws after more rows")
    expect_same(state, before, "a state after its sampler went on")


def rule_03_wrong_state_is_refused(bench: PartBench) -> None:
    """A state that is not from such a sampler raises an error, and changes nothing.

    The error is CheckpointCorruptError, or CheckpointVersionError for other settings.
    """
    sampler, twin = _filled(bench), _filled(bench)
    state = sampler.state_dict()
    for wrong in ({}, *({**state, key: object()} for key in ("state", "inc"))):
        with raises(
            "load_state_dict() of a wrong state", CheckpointCorruptError, CheckpointVersionError
        ):
            sampler.load_state_dict(wrong)
    expect_equal(_draws(bench, sampler), _draws(bench, twin), "draws after refused states")


def rule_04_clear_forgets_all_rows(bench: PartBench) -> None:
    """After ``clear`` a sampler has no rows, and draws only from rows that are inserted later."""
    sampler = _filled(bench)
    sampler.clear()
    if bench.has("rows"):
        found = sampler.draw(3, 3).tolist()
        expect_equal(sorted(found), [0, 1, 2], "ranks of 3 rows after clear()")
        return
    empty = sampler.draw(1, 1) if bench.has("sequences") else sampler.draw(1).tolist()
    expect(not empty, f"a draw after clear() is {empty}")
    _insert(sampler, 0, 1, 2)
    for drawn in _draws(bench, sampler):
        strange = set(np.ravel(drawn).tolist()) - {0, 1, 2}
        expect(not strange, f"positions {strange} were drawn after clear()")


@needs("rows")
def rule_05_ranks_are_of_the_population(bench: PartBench) -> None:
    """``draw(population, size)`` returns int64[size] from ``0..population-1``, all different.

    With ``replace`` they may repeat, and ``size`` may be larger than ``population``.
    """
    sampler = bench.part()
    for population in (1, 2, 5, CAPACITY):
        for size in range(1, population + 1):
            drawn = sampler.draw(population, size)
            expect_equal((drawn.dtype, drawn.shape), (np.dtype(np.int64), (size,)), "a draw's form")
            ranks = set(drawn.tolist())
            expect(ranks <= set(range(population)), f"ranks {ranks} of {population}")
            expect_equal(len(ranks), size, f"different ranks of {drawn.tolist()}")
        drawn = sampler.draw(population, 4 * population, replace=True)
        expect_equal(len(drawn), 4 * population, "ranks drawn with replacement")
        expect(set(drawn.tolist()) <= set(range(population)), f"ranks {drawn} of {population}")


@needs("rows", unless="own_law")
def rule_06_ranks_are_equally_likely(bench: PartBench) -> None:
    """All ranks are equally likely.

    A rank does not depend on the age of a row: in a full buffer rank 0 may be the newest row.
    """
    sampler = _filled(bench)
    for size, replace in ((1, False), (3, False), (CAPACITY - 1, False), (3, True)):
        counts: Counter[int] = Counter()
        for _ in range(_TIMES):
            counts.update(sampler.draw(CAPACITY, size, replace=replace).tolist())
        expect_alike(counts, CAPACITY, f"ranks in draws of {size}, replace={replace}")


@needs("distinct")
def rule_07_pairs_are_equally_likely(bench: PartBench) -> None:
    """All pairs of ranks are equally likely."""
    sampler = _filled(bench)
    pairs = Counter(tuple(sorted(sampler.draw(6, 2).tolist())) for _ in range(2 * _TIMES))
    expect_alike(pairs, 15, "pairs of ranks")


@needs("priorities")
def rule_08_new_rows_have_their_priority_or_the_largest(bench: PartBench) -> None:
    """A row without a priority gets the largest priority so far, which is 1 at first.

    A row inserted with a priority keeps it. ``facts`` has the same priorities as ``priorities``. A
    new row inherits nothing from the row that was at its position before.
    """
    sampler = bench.part()

    def check(*expected: float) -> None:
        where = np.arange(len(expected))
        facts = sampler.facts(sampler.state_dict(), where)
        for found in (sampler.priorities(where), facts["priority"]):
            expect(np.allclose(found, expected), f"priorities are {found}, not {expected}")

    _insert(sampler, 0, 1, 2)
    check(1.0, 1.0, 1.0)
    _insert(sampler, 3, 4, priorities=[7.0, math.nan])
    check(1.0, 1.0, 1.0, 7.0, 1.0)
    sampler.assign(np.array([0, 1, 0]), np.array([5.0, 2.0, 3.0]))
    _insert(sampler, 5)
    check(3.0, 2.0, 1.0, 7.0, 1.0, 7.0)
    _insert(sampler, CAPACITY, CAPACITY + 1, priorities=[0.5, 0.25])
    check(0.5, 0.25, 1.0, 7.0)
    sampler.clear()
    _insert(sampler, 0)
    check(1.0)


@needs("priorities")
def rule_09_only_rows_that_are_there_are_drawn(bench: PartBench) -> None:
    """``draw`` returns ``size`` positions of rows that have not left, in ascending order.

    With ``among`` it draws only from these positions. If there are no rows to draw, it returns no
    positions. ``drawable`` is the number of rows that can be drawn.
    """
    sampler = _filled(bench, 6)
    sampler.on_remove(np.array([1, 4]))
    sampler.on_remove(slice(1, 2))
    expect_equal(sampler.drawable, 4, "drawable")
    for among, allowed in ((None, {0, 2, 3, 5}), (np.array([1, 2, 3]), {2, 3})):
        found: set[int] = set()
        for _ in range(50):
            drawn = sampler.draw(3, among).tolist()
            expect_equal(drawn, sorted(drawn), "positions of a draw, ascending")
            expect_equal(len(drawn), 3, "positions of a draw of 3")
            found.update(drawn)
        expect_equal(sorted(found), sorted(allowed), f"positions drawn of {among}")
    expect_equal(as_list(sampler.draw(3, np.array([1, 4]))), [], "a draw among rows that left")
    sampler.on_remove(slice(0, 6))
    expect_equal((sampler.drawable, as_list(sampler.draw(2))), (0, []), "a draw of no rows")


@needs("priorities", unless="own_law")
def rule_10_larger_priorities_are_drawn_more(bench: PartBench) -> None:
    """Rows of larger priority are drawn more often, and rows of equal priority equally often."""
    sampler = bench.part()
    _insert(sampler, 0, 1, 2, 3, priorities=[0.01, 1.0, 40.0, 9.0])
    counts = Counter(np.concatenate([sampler.draw(10) for _ in range(_TIMES)]).tolist())
    order = sorted(range(4), key=lambda position: counts[position])
    expect_equal(order, [0, 1, 3, 2], f"positions from the least drawn ({dict(counts)})")
    sampler = _filled(bench, CAPACITY)
    counts = Counter(np.concatenate([sampler.draw(CAPACITY) for _ in range(100)]).tolist())
    if max(counts.values()) - min(counts.values()) > 100 * sampler.drawable / 4:
        raise RuleBroken(f"rows of equal priority came {dict(counts)} times")


@needs("priorities", unless="own_law")
def rule_11_importance_is_relative_to_the_rarest_row(bench: PartBench) -> None:
    """Weights are float32 in (0, 1]: 1 for the row drawn least often, and lower for other rows.

    With ``beta`` 0 all weights are 1.
    """
    sampler = _filled(bench, 4)
    where = np.arange(4)
    sampler.assign(where, np.array([2.0, 0.5, 8.0, 1.0]))
    sampler.draw(64)
    weights = sampler.importance(where, 0.7)
    expect_equal(weights.dtype, np.dtype(np.float32), "dtype of weights")
    ordered = weights[[2, 0, 3, 1]].tolist()
    rising = all(one <= after for one, after in pairwise(ordered))
    expect(rising and 0 < ordered[0] < 1, f"weights from the largest priority: {ordered}")
    expect(math.isclose(ordered[-1], 1, rel_tol=1e-5), f"the largest weight is {ordered[-1]}")
    expect_equal(sampler.importance(where, 0.0).tolist(), [1.0] * 4, "weights with beta 0")


@needs("proportional")
def rule_12_shares_are_powers_of_priorities(bench: PartBench) -> None:
    """Shares of draws are proportional to ``priority ** alpha``; weights ``(N * share) ** -beta``.

    Weights are divided by the largest weight, so all are 1 while priorities are equal.
    """
    sampler = _filled(bench, 4)
    where = np.arange(4)
    expect_equal(sampler.importance(where, 0.7).tolist(), [1.0] * 4, "weights of equal priorities")
    priorities = np.array([2.0, 0.5, 8.0, 1.0])
    sampler.assign(where, priorities)
    mass = priorities**sampler.alpha
    weights = (mass / mass.min()) ** -0.7
    found = sampler.importance(where, 0.7)
    expect(np.allclose(found, weights, rtol=1e-3), f"weights are {found}, not {weights}")
    counts = Counter(np.concatenate([sampler.draw(20) for _ in range(_TIMES)]).tolist())
    shares = np.array([counts[position] for position in range(4)]) / counts.total()
    expected = mass / mass.sum()
    expect(np.allclose(shares, expected, atol=0.02), f"shares are {shares}, not {expected}")


@needs("sequences")
def rule_13_sequences_are_unbroken(bench: PartBench) -> None:
    """A sequence has the positions of consecutive rows of one trajectory.

    It does not cross the end of a trajectory, or continue from the newest row to the oldest. Ends
    that ``end_trajectory`` sets are in the state.
    """
    held = range(3, CAPACITY + 3)
    for _ in range(20):
        sampler = _filled(bench)
        for length in (1, 2, 3):
            for where in sampler.draw(4, length).where.tolist():
                numbers = [min(n for n in held if n % CAPACITY == p) for p in where]
                steps = all(b == a + 1 for a, b in pairwise(numbers))
                expect(steps and len(numbers) == length, f"rows {numbers} are no sequence")
                across = set(_ENDS) & set(numbers[:-1])
                expect(not across, f"sequence {numbers} continues after the end at {across}")
    sampler, loaded = bench.part(seed=0), bench.part(seed=0)
    _insert(sampler, 0, 1)
    sampler.end_trajectory()
    loaded.load_state_dict(sampler.state_dict())
    loaded.on_restore(positions(0, 2), _rows(loaded, range(2)))
    for each in (sampler, loaded):
        _insert(each, 2, 3, 4)  # row 2 is an end, too
        drawn = {tuple(where) for where in each.draw(40, 2).where.tolist()}
        allowed = {(0, 1), (3, 4)}
        expect(drawn <= allowed, f"sequences {sorted(drawn - allowed)} cross end_trajectory()")


@needs("sequences", unless="own_law")
def rule_14_starts_are_equally_likely(bench: PartBench) -> None:
    """All rows from which a whole sequence can start are equally likely as the start.

    ``count_starts`` returns their number. ``draw`` returns None if there are none.
    """
    sampler = _filled(bench)
    # The buffer has rows 3 to 10, and row 9 ends a trajectory.
    for length, starts in ((1, range(3, 11)), (3, range(3, 8)), (7, range(3, 4))):
        where = np.concatenate([sampler.draw(5, length).where[:, 0] for _ in range(_TIMES // 4)])
        counts = Counter(where.tolist())
        expected = {number % CAPACITY for number in starts}
        expect_equal(set(counts), expected, f"positions of starts of sequences of {length}")
        expect_alike(counts, len(expected), f"starts of sequences of {length}")
        expect_equal(sampler.count_starts(length), len(expected), f"count_starts({length})")
    expect_equal(sampler.draw(2, CAPACITY), None, "sequences longer than any trajectory")


SAMPLER_BOOK: Final = RuleBook(
    collect(__name__),
    {
        "rows": "A `RowSampler`: it draws single rows, all equally likely.",
        "distinct": "All pairs of rows are equally likely to be in a batch.",
        "priorities": "A `PrioritySampler`: it draws single rows by their priority.",
        "proportional": "A row's share of the draws is `priority ** alpha`.",
        "own_law": "Its draws follow a law of their own, which its author tests.",
        "sequences": "A `SequenceSampler`: it draws runs of consecutive rows.",
    },
    PartBench,
)


class SamplerContract(PartContract):
    """Contract tests of a sampler; see ``PART_RULES["sampler"].known_capabilities``."""

    book = SAMPLER_BOOK
