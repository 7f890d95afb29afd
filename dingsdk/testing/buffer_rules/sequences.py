"""Rules 41 to 45: sequences, episodes and windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.errors import SchemaMismatchError
from dingsdk.testing.buffer_bench import CAPACITY, BufferBench, expect, expect_equal, raises
from dingsdk.testing.buffer_rows import WIDTH, episode_length, flat, make_row, numbers_of
from dingsdk.testing.buffer_rules.sampling import expect_alike
from dingsdk.testing.rule import needs

_ROWS = 20


@needs("sequences")
def rule_41_sequences_are_unbroken(bench: BufferBench) -> None:
    """A sequence is rows of one trajectory, as they followed each other; it crosses no end.

    An end is a row whose ``done`` is true, and the newest row: the oldest does not follow it.
    Columns come as ``[batch, time, ...]``, objects as a list of lists.
    """
    for pushed in (7, _ROWS, 3 * _ROWS - 4):
        ends = {n for n in range(pushed) if n % 7 == 4}
        buffer = _filled(bench, range(pushed), ends)
        held = range(max(0, pushed - _ROWS), pushed)
        for length in (1, 2, 3, 5):
            if 2 * length > len(held):
                continue
            for _ in range(25):
                for numbers in _sequences(bench, buffer, 2, length):
                    expect(set(numbers) <= set(held), f"rows {numbers} were drawn of {held}")
                    steps = all(after == one + 1 for one, after in pairwise(numbers))
                    expect(steps, f"rows {numbers} are no sequence")
                    across = ends.intersection(numbers[:-1])
                    expect(not across, f"sequence {numbers} goes on after the end at {across}")


@needs("sequences")
def rule_42_every_start_can_be_drawn(bench: BufferBench) -> None:
    """Every row from which a whole sequence follows is its start as often as any other."""
    ends = {4, 9, 17}
    buffer = _filled(bench, range(_ROWS + 2), ends)
    for length, starts in ((3, {2, 5, 6, 7, *range(10, 16), 18, 19}), (5, {5, 10, 11, 12, 13})):
        counts: Counter[int] = Counter()
        for _ in range(200):
            counts.update(each[0] for each in _sequences(bench, buffer, 4, length))
        expect_equal(sorted(counts), sorted(starts), f"starts of sequences of {length}")
        expect_alike(counts, len(starts), f"starts of sequences of {length}")


@needs("sequences")
def rule_43_no_sequence_is_none(bench: BufferBench) -> None:
    """A sample is None where no sequence of that length is whole, or there are too few rows.

    It comes at once, and the buffer serves on.
    """
    buffer = _filled(bench, range(_ROWS), {n for n in range(_ROWS) if n % 4 == 3})
    expect_equal(buffer.sample(1, 5, 0), None, "sequences of 5 in trajectories of 4")
    expect_equal(buffer.sample(6, 4, 0), None, f"6 sequences of 4 in {_ROWS} rows")
    expect_equal(buffer.sample(0, 4, 0), [], "no sequences")
    expect_equal(len(_sequences(bench, buffer, 5, 4)), 5, "sequences of 4")


@needs("episodes")
def rule_44_episodes_are_whole(bench: BufferBench) -> None:
    """An episode comes back with all of its transitions, whatever its length and form.

    It is pushed as a SampleBatch or a list of transitions within a list of episodes. What is no
    episode, or an empty one, is refused with SchemaMismatchError, and nothing is pushed.
    """
    buffer = bench.buffer(1, 2)
    buffer.push([[make_row(n)] * episode_length(n) for n in (3, 4)], 0)
    bench.expect_contents(buffer, [1, 2, 3, 4], "after episodes as batches and as lists")
    wrong: tuple[Any, ...] = (5, "text", [], make_row(1))
    for row in wrong:
        with raises(f"push of an episode {row!r:.40}", SchemaMismatchError):
            buffer.push([*bench.rows(7), row], 0)
    bench.expect_contents(buffer, [1, 2, 3, 4], "after refused episodes")


@needs("elastic")
def rule_45_window_holds_the_newest(bench: BufferBench) -> None:
    """Samples come from as many of the newest rows as ``set_buffer_size`` says for an env step.

    ``update(envstep)`` moves the window. One that grows again finds the rows that it had left; a
    sample of more rows than it has is None.
    """
    buffer = bench.buffer(*range(9), set_buffer_size=lambda step: 3 if step < 10 else step // 10)
    rows = list(range(9))[-CAPACITY:]
    for envstep, window in ((None, 3), (20, 2), (50, 5), (10, 1), (990, CAPACITY), (0, 3)):
        if envstep is not None:
            buffer.update(envstep)
        found: set[int] = set()
        for _ in range(60):
            found.update(bench.draw(buffer, 1))
        found.update(bench.draw(buffer, window))
        expect_equal(sorted(found), rows[-window:], f"rows drawn at env step {envstep}")
        expect_equal(bench.sample(buffer, window + 1), None, f"{window + 1} rows of {window}")
    bench.push(buffer, 30)
    expect_equal(sorted(bench.draw(buffer, 3)), [7, 8, 30], "rows drawn after another push")


def _filled(bench: BufferBench, numbers: Iterable[int], ends: Collection[int]) -> Any:
    buffer = bench.buffer(replay_buffer_size=_ROWS)
    rows = [make_row(number, done=number in ends) for number in numbers]
    # Pushes of several sizes, so that trajectories go on from one to the next.
    for start in range(0, len(rows), 3):
        buffer.push(rows[start : start + 3], 0)
    return buffer


def _sequences(bench: BufferBench, buffer: Any, size: int, length: int) -> list[list[int]]:
    found = buffer.sample(size, length, 0)
    if isinstance(found, SampleBatch):
        shape = found.columns["obs"]["pos"].shape
        expect_equal(shape, (size, length, WIDTH), "shape of a column in a batch")
    numbers = numbers_of(flat(found))
    expect_equal(len(numbers), size * length, f"rows of {size} sequences of {length}")
    sequences: list[list[int]] = np.reshape(numbers, (size, length)).tolist()
    return sequences
