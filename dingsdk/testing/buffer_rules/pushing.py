"""Rules 1 to 9: what is pushed, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.errors import SchemaMismatchError
from dingsdk.testing.buffer_bench import CAPACITY, BufferBench, expect_equal, raises
from dingsdk.testing.buffer_rows import make_row, spoil
from dingsdk.testing.rule import RuleBroken, needs
from dingsdk.testing.samples import expect_same


def rule_01_push_keeps_rows_in_order(bench: BufferBench) -> None:
    """Rows are kept in the order in which they were pushed, up to the capacity.

    A list or SampleBatch is many rows, in its order; anything else is one. ``count`` is how many
    the buffer holds, ``push_count`` how many were pushed, ``replay_buffer_size`` the capacity.
    """
    buffer = bench.buffer()
    expect_equal((buffer.count(), buffer.push_count), (0, 0), "counts of a new buffer")
    expect_equal(buffer.replay_buffer_size, CAPACITY, "replay_buffer_size")
    one = bench.rows(0)
    buffer.push(one if bench.has("episodes") else one[0], 0)
    buffer.push(bench.rows(1, 2), 1)
    buffer.push(bench.batch(3, 4), 2)
    bench.expect_contents(buffer, range(5), "after one, two in a list and two in a batch")
    expect_equal(buffer.push_count, 5, "push_count")


def rule_02_full_buffer_drops_the_oldest(bench: BufferBench) -> None:
    """A full buffer overwrites its oldest rows, whatever the sizes of the pushes.

    ``push_count`` grows by every row, ``count`` stays.
    """
    for size in (1, 2, 4, 5, CAPACITY):
        buffer = bench.buffer()
        for first in range(0, 4 * CAPACITY, size):
            numbers = range(first, first + size)
            buffer.push(bench.rows(*numbers) if first % 2 else bench.batch(*numbers), 0)
            expect_equal(buffer.push_count, first + size, "push_count")
            kept = range(max(0, first + size - CAPACITY), first + size)
            bench.expect_contents(buffer, kept, f"of pushes of {size}")


def rule_03_longer_push_keeps_the_newest(bench: BufferBench) -> None:
    """Of a push of more rows than the capacity, the newest stay."""
    for held in (0, 2, CAPACITY):
        for size in (CAPACITY + 1, 2 * CAPACITY, 3 * CAPACITY + 2):
            buffer = bench.buffer(*range(held))
            buffer.push(bench.rows(*range(100, 100 + size)), 0)
            kept = range(100 + size - CAPACITY, 100 + size)
            bench.expect_contents(buffer, kept, f"after {size} onto {held}")
            expect_equal(buffer.push_count, held + size, "push_count")


def rule_04_empty_push_changes_nothing(bench: BufferBench) -> None:
    """An empty list or batch is no row."""
    for held in (0, 2):
        buffer = bench.buffer(*range(held))
        buffer.push([], 0)
        buffer.push(bench.batch(7)[:0], 0)
        bench.expect_contents(buffer, range(held), "after empty pushes")
        expect_equal(buffer.push_count, held, "push_count")


def rule_05_stored_rows_are_apart_from_the_pushed(bench: BufferBench) -> None:
    """What the caller does with pushed rows changes nothing stored.

    The same row pushed twice is two rows.
    """
    buffer = bench.buffer()
    twice, batch = bench.rows(1)[0], bench.batch(2, 3)
    rows = [twice, twice]
    buffer.push(rows, 0)
    buffer.push(batch, 0)
    spoil(rows[:1])
    rows.clear()
    spoil(batch)
    bench.expect_contents(buffer, [1, 1, 2, 3], "after the caller's were overwritten")


def rule_06_pushed_rows_are_not_written_to(bench: BufferBench) -> None:
    """A push never changes what the caller gave it; neither do samples and updates."""
    buffer = bench.buffer()
    for data in (bench.rows(0, 1), bench.batch(2, 3), bench.rows(*range(10, 20))):
        before = copy.deepcopy(data)
        buffer.push(data, 0)
        for _ in range(4):
            spoil(bench.sample(buffer, 2))
        expect_same(data, before, "what was pushed")


def rule_07_nothing_is_no_row(bench: BufferBench) -> None:
    """None and an empty dict are refused with SchemaMismatchError, alone and among rows.

    Nothing of such a push is stored.
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
        # The refused ones did not decide what the buffer holds.
        bench.push(buffer, 50)
        expect_equal(bench.contents(buffer)[-1], 50, "the newest row after refused pushes")


@needs("columns")
def rule_08_rows_that_do_not_fit_are_refused(bench: BufferBench) -> None:
    """A row unlike those stored is refused with SchemaMismatchError, which names the key.

    That is one with a key more or less, or another shape, kind or nesting, alone, among good
    rows, or as columns (where another dtype is too much as well). Nothing of it is stored.
    """
    good = make_row(7)
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
                for data in (row, [row], [make_row(8), row]):
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

    Containers are copies: a list inside a sampled dict is the caller's own.
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
