"""Rules 1 to 20: pushing, refusing and sampling rows."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError, SchemaMismatchError
from dingsdk.testing.buffer_rules.bench import (
    CAPACITY,
    BufferBench,
    expect,
    expect_equal,
    numbers_of,
    raises,
    spoil,
)
from dingsdk.testing.expect import expect_alike, expect_same
from dingsdk.testing.runner import RuleBroken, needs


def rule_01_push_keeps_rows_in_order(bench: BufferBench) -> None:
    """Rows are kept in the order in which they were pushed, up to the capacity.

    A list or a SampleBatch is pushed as several rows, anything else as one row. ``count`` is the
    number of rows in the buffer, ``push_count`` the number of rows pushed, and
    ``replay_buffer_size`` the capacity. A push of an empty list or batch changes nothing.
    """
    buffer = bench.buffer()
    expect_equal((buffer.count(), buffer.push_count), (0, 0), "counts of a new buffer")
    expect_equal(buffer.replay_buffer_size, CAPACITY, "replay_buffer_size")
    for number in (0, 1):
        one = bench.rows(number)
        buffer.push(one if bench.has("episodes") else one[0], 0)
    buffer.push(bench.rows(2, 3), 1)
    buffer.push(bench.batch(4, 5), 2)
    buffer.push([], 0)
    buffer.push(bench.batch(7)[:0], 0)
    bench.expect_contents(buffer, range(6), "after two, two in a list and two in a batch")
    expect_equal(buffer.push_count, 6, "push_count")


@needs("fifo")
def rule_02_full_buffer_drops_the_oldest(bench: BufferBench) -> None:
    """A full buffer overwrites its oldest rows, whatever the sizes of the pushes.

    If more rows are pushed than the capacity, the newest of them are kept. ``push_count`` grows by
    one for each row; ``count`` stays at the capacity.
    """
    for size in (1, 2, 4, 5, CAPACITY, CAPACITY + 1, 3 * CAPACITY + 2):
        buffer = bench.buffer()
        for first in range(0, 4 * CAPACITY, size):
            numbers = range(first, first + size)
            buffer.push(bench.rows(*numbers) if first % 2 else bench.batch(*numbers), 0)
            expect_equal(buffer.push_count, first + size, "push_count")
            bench.expect_contents(buffer, range(first + size), f"of pushes of {size}")


def rule_05_stored_rows_are_copies(bench: BufferBench) -> None:
    """Changes to rows after they were pushed do not change the stored rows, and vice versa.

    A push does not change the pushed data; neither do later samples and updates. The same object
    pushed twice is stored as two rows.
    """
    buffer = bench.buffer()
    twice, batch = bench.rows(1)[0], bench.batch(2, 3)
    rows = [twice, twice]
    before = copy.deepcopy((rows, batch))
    buffer.push(rows, 0)
    buffer.push(batch, 0)
    for _ in range(4):
        spoil(bench.sample(buffer, 2))
    expect_same((rows, batch), before, "what was pushed")
    spoil(rows[:1])
    rows.clear()
    spoil(batch)
    bench.expect_contents(buffer, [1, 1, 2, 3], "after the caller's were overwritten")


def rule_07_empty_rows_are_refused(bench: BufferBench) -> None:
    """A push of None or an empty dict, alone or among rows, raises SchemaMismatchError.

    No row of such a push is stored.
    """
    nothing: tuple[Any, ...] = (None, {})
    for held in (0, 2, CAPACITY):
        buffer = bench.buffer(*range(held))
        for bad in nothing:
            for data in ([bad], [*bench.rows(8, 9), bad], bad):
                with raises(f"push({data!r:.80})", SchemaMismatchError):
                    buffer.push(data, 0)
                expect_equal(buffer.push_count, held, "push_count after a refused push")
        bench.expect_contents(buffer, range(held), "after refused pushes")
        # The refused rows did not determine the form of the stored rows.
        bench.push(buffer, 50)
        expect_equal(bench.contents(buffer)[-1], 50, "the newest row after refused pushes")


@needs("columns")
def rule_08_rows_that_do_not_fit_are_refused(bench: BufferBench) -> None:
    """A row that does not fit the stored rows raises SchemaMismatchError, which names the key.

    A row does not fit if a key is missing or extra, or has another shape, kind or nesting. In a
    push of columns, another dtype does not fit either. No row of such a push is stored.
    """
    good = bench.row(7)
    lacking = {key: value for key, value in good.items() if key != "reward"}
    bad: dict[str, list[dict[str, Any]]] = {
        "reward": [lacking, {**good, "reward": None}, {**good, "reward": np.zeros(2, np.float32)}],
        "extra": [{**good, "extra": 1}],
        "id": [{**good, "id": 0.5}, {**good, "id": "7"}],
        "obs": [{**good, "obs": np.zeros(2, np.float32)}],
        "obs.pos": [{**good, "obs": {**good["obs"], "pos": np.zeros(3, np.float32)}}],
    }
    for held in (1, CAPACITY):
        buffer = bench.buffer(*range(held))
        for key, rows in bad.items():
            for row in rows:
                for data in (row, [row], [bench.row(8), row]):
                    _expect_refused(buffer, data, key)
        columns = bench.batch(7, 8).columns
        wider = columns["reward"].astype(np.float64)
        _expect_refused(buffer, SampleBatch({**columns, "reward": wider}), "reward")
        _expect_refused(buffer, SampleBatch({**columns, "extra": wider}), "extra")
        bench.expect_contents(buffer, range(held), "after refused pushes")
        expect_equal(buffer.push_count, held, "push_count after refused pushes")
        bench.push(buffer, 50)
        expect_equal(bench.contents(buffer)[-1], 50, "the newest row after refused pushes")


@needs("objects")
def rule_09_any_object_is_a_row(bench: BufferBench) -> None:
    """Strings, tuples, numbers, dicts of anything and objects come back as they were.

    Containers are copied: the caller may change a list inside a sampled dict.
    """
    thing = object()
    for row in ("text", (1, "two"), 5, {"note": "text", "more": [1, {"a": None}]}, thing):
        buffer = bench.buffer()
        buffer.push([row], 0)
        found = bench.sample(buffer, 1)
        expect_equal(found, [row], "the row")
        if isinstance(row, dict):
            row["more"].append(2)
            found[0]["more"].clear()
            expect_equal(bench.sample(buffer, 1)[0]["more"], [1, {"a": None}], "a list of the row")


def _expect_refused(buffer: Any, data: Any, key: str) -> None:
    try:
        buffer.push(data, 0)
    except SchemaMismatchError as error:
        expect_equal(error.key, key, f"the key that the error of a push of {data!r:.120} names")
    else:
        raise RuleBroken(f"push of {data!r:.120} was taken, whose {key} does not fit")


@needs("columns")
def rule_11_columns_come_back_as_columns(bench: BufferBench) -> None:
    """A batch is a SampleBatch with the columns and dtypes of the first push."""
    buffer = bench.buffer(1, 2, 3)
    pushed = bench.batch(1)
    found = bench.sample(buffer, 2)
    expect(isinstance(found, SampleBatch), f"a batch is a {type(found).__name__}")
    for name in ("id", "reward", "done"):
        expect_equal(found.columns[name].dtype, pushed.columns[name].dtype, f"dtype of {name}")


@needs("columns", unless="own_law")
def rule_12_every_row_can_be_drawn(bench: BufferBench) -> None:
    """``sample(n)`` returns ``n`` rows that are in the buffer, as they were pushed.

    Each row in the buffer is drawn sooner or later, also when the buffer is full.
    """
    for held in (1, 3, CAPACITY, CAPACITY + 2):
        buffer = bench.buffer(*range(held))
        expected = set(bench.held(buffer, range(held)))
        size = (len(expected) + 1) // 2
        found: set[int] = set()
        for _ in range(200):
            found.update(bench.draw(buffer, size))
            if found == expected:
                break
        expect_equal(sorted(found), sorted(expected), f"rows drawn in 200 batches of {size}")


def rule_13_sampled_rows_are_copies(bench: BufferBench) -> None:
    """Changes to a sampled batch do not change the stored rows or other batches."""
    buffer = bench.buffer(*range(CAPACITY))
    earlier = bench.sample(buffer, CAPACITY)
    numbers = numbers_of(earlier)
    for _ in range(3):
        spoil(bench.sample(buffer, CAPACITY))
    expect_equal(numbers_of(earlier), numbers, "an earlier batch after later ones were changed")
    bench.push(buffer, *range(20, 20 + CAPACITY))
    expect_equal(numbers_of(earlier), numbers, "a batch after its rows were overwritten")
    bench.expect_contents(buffer, range(20, 20 + CAPACITY), "after batches were changed")


def rule_15_sample_is_none_without_enough_rows(bench: BufferBench) -> None:
    """``sample`` of more rows than there are returns None at once; the buffer works afterwards.

    ``sample(0)`` returns ``[]``, whether or not the buffer is empty. A size that is not an integer,
    or is below 0, raises ConfigError (a ValueError).
    """
    buffer = bench.buffer()
    expect_equal(bench.sample(buffer, 0), [], "sample(0) of an empty buffer")
    expect_equal(bench.sample(buffer, 1), None, "a sample of an empty buffer")
    bench.push(buffer, 1, 2)
    expect_equal(bench.sample(buffer, 3), None, "a sample of 3 of 2 rows")
    expect_equal(bench.sample(buffer, CAPACITY + 1), None, "a sample larger than the capacity")
    expect_equal(bench.sample(buffer, 0), [], "sample(0) of 2 rows")
    sizes: tuple[Any, ...] = (-1, 1.5, "1", None, True)
    for size in sizes:
        with raises(f"sample({size!r})", ConfigError):
            bench.sample(buffer, size)
    bench.expect_contents(buffer, [1, 2], "after samples that could not be served")


@needs("distinct")
def rule_18_rows_are_equally_likely(bench: BufferBench) -> None:
    """All rows are equally likely, with and without replacement, and so are all pairs of rows.

    The rows of a batch are distinct, unless ``replace`` is true. Then a batch may be larger than
    the number of rows in the buffer.
    """
    buffer = bench.buffer(*range(CAPACITY + 3))
    times = 500
    for size, replace in ((1, False), (2, False), (CAPACITY, False), (2 * CAPACITY, True)):
        counts: Counter[int] = Counter()
        for _ in range(times):
            numbers = bench.draw(buffer, size, **({"replace": True} if replace else {}))
            expect(replace or len(set(numbers)) == size, f"{numbers} are not distinct")
            counts.update(numbers)
        expect_alike(counts, CAPACITY, f"rows in batches of {size}, replace={replace}")
    pairs = Counter(tuple(sorted(bench.draw(buffer, 2))) for _ in range(times))
    expect_alike(pairs, CAPACITY * (CAPACITY - 1) // 2, "pairs")


@needs("ages")
def rule_19_sample_range_counts_by_age(bench: BufferBench) -> None:
    """``sample_range`` is a slice of the rows by age, oldest first, as a slice of a list.

    It means the same after the buffer has wrapped around. If the range is empty or has too few
    distinct rows, ``sample`` returns None. A value that is not a slice raises ConfigError.
    """
    slices = [slice(-2, None), slice(0, 2), slice(None), slice(None, 3), slice(1, -1), slice(2, 99)]
    for held in (4, CAPACITY, CAPACITY + 4):
        buffer = bench.buffer(*range(held))
        rows = bench.held(buffer, range(held))
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
    """After ``clear`` the buffer is empty, and accepts rows with any columns, as a new one does."""
    for held in (0, 3, CAPACITY + 2):
        buffer = bench.buffer(*range(held))
        buffer.clear()
        expect_equal(buffer.count(), 0, "count() after clear()")
        expect_equal(bench.sample(buffer, 1), None, "a sample after clear()")
        expect_equal(bench.contents(buffer), [], "rows after clear()")
        bench.push(buffer, 10, 11)
        bench.expect_contents(buffer, [10, 11], "after clear() and a short push")
        bench.push(buffer, *range(20, 21 + CAPACITY))
        bench.expect_contents(buffer, range(20, 21 + CAPACITY), "after clear() and a push")
        if not bench.has("episodes"):
            buffer.clear()
            observed = {name: bench.row(0)[name] for name in ("obs", "next_obs", *bench.columns)}
            buffer.push([{**observed, "other": 1.0}], 0)
            expect_equal(buffer.count(), 1, "count() after a push of other columns")
