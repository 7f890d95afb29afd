"""Rules 10 to 20: what is sampled."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError
from dingsdk.testing.buffer_bench import CAPACITY, BufferBench, expect, expect_equal, raises
from dingsdk.testing.buffer_rows import numbers_of, spoil
from dingsdk.testing.rule import needs

_SPREADS = 5.0
"""A count may be off by that many standard deviations: once in two million draws of one."""


def rule_10_sample_has_the_size_and_whole_rows(bench: BufferBench) -> None:
    """``sample(n)`` returns ``n`` rows as they were pushed, all of which the buffer holds."""
    buffer = bench.buffer(*range(10))
    for size in range(1, CAPACITY + 1):
        strange = set(bench.draw(buffer, size)) - set(range(10 - CAPACITY, 10))
        expect(not strange, f"rows {sorted(strange)} were drawn, which had left")


@needs("columns")
def rule_11_columns_come_back_as_columns(bench: BufferBench) -> None:
    """A batch is a SampleBatch with the columns and dtypes of what was pushed first."""
    buffer = bench.buffer(1, 2, 3)
    pushed = bench.batch(1)
    found = bench.sample(buffer, 2)
    expect(isinstance(found, SampleBatch), f"a batch is a {type(found).__name__}")
    for name in ("id", "reward", "done"):
        expect_equal(found.columns[name].dtype, pushed.columns[name].dtype, f"dtype of {name}")


def rule_12_every_row_can_be_drawn(bench: BufferBench) -> None:
    """Each row that the buffer holds is drawn sooner or later, also when the buffer is full."""
    for held in (1, 3, CAPACITY, CAPACITY + 2):
        buffer = bench.buffer(*range(held))
        expected = set(range(held)) if held <= CAPACITY else set(range(held - CAPACITY, held))
        size = (len(expected) + 1) // 2
        found: set[int] = set()
        for _ in range(200):
            found.update(bench.draw(buffer, size))
            if found == expected:
                break
        expect_equal(sorted(found), sorted(expected), f"rows drawn in 200 batches of {size}")


def rule_13_sampled_rows_are_the_callers(bench: BufferBench) -> None:
    """What the caller does with a batch changes nothing stored, and no other batch."""
    buffer = bench.buffer(*range(CAPACITY))
    earlier = bench.sample(buffer, CAPACITY)
    numbers = numbers_of(earlier)
    for _ in range(3):
        spoil(bench.sample(buffer, CAPACITY))
    expect_equal(numbers_of(earlier), numbers, "an earlier batch after later ones were changed")
    bench.push(buffer, *range(20, 20 + CAPACITY))
    expect_equal(numbers_of(earlier), numbers, "a batch after its rows were overwritten")
    bench.expect_contents(buffer, range(20, 20 + CAPACITY), "after batches were changed")


def rule_14_sample_of_none_is_empty(bench: BufferBench) -> None:
    """``sample(0)`` is ``[]``, whatever the buffer holds."""
    for held in (0, 3):
        expect_equal(bench.sample(bench.buffer(*range(held)), 0), [], f"sample(0) of {held}")


def rule_15_none_where_it_cannot_serve(bench: BufferBench) -> None:
    """A sample of more rows than there are is None, at once; then the buffer serves on."""
    buffer = bench.buffer()
    expect_equal(bench.sample(buffer, 1), None, "a sample of an empty buffer")
    bench.push(buffer, 1, 2)
    expect_equal(bench.sample(buffer, 3), None, "a sample of 3 of 2 rows")
    expect_equal(bench.sample(buffer, CAPACITY + 1), None, "a sample larger than the capacity")
    bench.expect_contents(buffer, [1, 2], "after samples that could not be served")


def rule_16_wrong_sizes_are_refused(bench: BufferBench) -> None:
    """A size that is no integer, or below 0, is a ConfigError (a ValueError)."""
    buffer = bench.buffer(1, 2)
    sizes: tuple[Any, ...] = (-1, 1.5, "1", None, True)
    for size in sizes:
        with raises(f"sample({size!r})", ConfigError):
            bench.sample(buffer, size)
    bench.expect_contents(buffer, [1, 2], "after refused sizes")


@needs("distinct")
def rule_17_rows_of_a_batch_are_distinct(bench: BufferBench) -> None:
    """No row comes twice in a batch; with ``replace`` one may, and a batch exceed the rows."""
    buffer = bench.buffer(*range(CAPACITY))
    for size in [2, 3, CAPACITY - 1, CAPACITY] * 12:
        numbers = bench.draw(buffer, size)
        expect_equal(len(set(numbers)), size, f"distinct rows of {numbers}")
    repeated = bench.draw(buffer, 10 * CAPACITY, replace=True)
    expect_equal(sorted(set(repeated)), list(range(CAPACITY)), "rows drawn with replacement")


@needs("distinct")
def rule_18_rows_are_drawn_alike(bench: BufferBench) -> None:
    """Each row is as likely as any other, with and without replacement, and so is each pair."""
    buffer = bench.buffer(*range(CAPACITY + 3))
    times = 500
    for size, options in ((1, {}), (2, {}), (CAPACITY - 1, {}), (3, {"replace": True})):
        counts: Counter[int] = Counter()
        for _ in range(times):
            counts.update(bench.draw(buffer, size, **options))
        expect_alike(counts, CAPACITY, f"rows in batches of {size}, {options}")
    pairs = Counter(tuple(sorted(bench.draw(buffer, 2))) for _ in range(times))
    expect_alike(pairs, CAPACITY * (CAPACITY - 1) // 2, "pairs")


@needs("ages")
def rule_19_sample_range_counts_by_age(bench: BufferBench) -> None:
    """``sample_range`` is a slice of the rows by age, oldest first; negative from the newest.

    It means the same when the buffer has wrapped around. An empty range gives None, as one of too
    few distinct rows does, and what is no slice is a ConfigError.
    """
    slices = [slice(-2, None), slice(0, 2), slice(None), slice(None, 3), slice(1, -1), slice(2, 99)]
    for held in (4, CAPACITY, CAPACITY + 4):
        buffer = bench.buffer(*range(held))
        rows = list(range(held))[-CAPACITY:]
        for ages in slices:
            expected, found = set(rows[ages]), set()
            for _ in range(60):
                found.update(bench.draw(buffer, len(expected), sample_range=ages))
                if found == expected:
                    break
            expect_equal(sorted(found), sorted(expected), f"rows drawn from {ages} of {rows}")
            if bench.has("distinct"):
                few = bench.sample(buffer, len(expected) + 1, sample_range=ages)
                expect_equal(few, None, f"a sample larger than {ages} of {rows}")
    for empty in (slice(50, 60), slice(0, 0)):
        expect_equal(bench.sample(buffer, 1, sample_range=empty), None, f"a sample of {empty}")
    with raises("sample_range=3", ConfigError):
        bench.sample(buffer, 1, sample_range=3)


def rule_20_clear_drops_all_rows(bench: BufferBench) -> None:
    """After ``clear`` the buffer is empty, and takes rows like a new one, of any columns."""
    for held in (0, 3, CAPACITY + 2):
        buffer = bench.buffer(*range(held))
        buffer.clear()
        expect_equal(buffer.count(), 0, "count() after clear()")
        expect_equal(bench.sample(buffer, 1), None, "a sample after clear()")
        expect_equal(bench.contents(buffer), [], "rows after clear()")
        bench.push(buffer, *range(20, 21 + CAPACITY))
        bench.expect_contents(buffer, range(21, 21 + CAPACITY), "after clear() and a push")
        if not bench.has("episodes"):
            buffer.clear()
            observed = {name: bench.rows(0)[0][name] for name in ("obs", "next_obs")}
            buffer.push([{**observed, "other": 1.0}], 0)
            expect_equal(buffer.count(), 1, "count() after a push of other columns")


def expect_alike(counts: Counter[Any], kinds: int, what: str) -> None:
    """Expect each of so many kinds, all of which should come, about as often as any other."""
    total = counts.total()
    share = total / kinds
    # Distinct rows of a batch spread less than independent draws, which this is the width of.
    width = _SPREADS * (share * (1 - 1 / kinds)) ** 0.5
    for drawn, count in counts.items():
        expect(abs(count - share) <= width, f"{what}: {drawn} came {count} times of {total}")
    expect_equal(len(counts), kinds, f"{what}: how many came at all")
