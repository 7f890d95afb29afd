"""Rules 41 to 58: sequences, episodes, windows and priorities."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.errors import CheckpointVersionError, InvalidPriorityError, SchemaMismatchError
from dingsdk.testing.buffer_rules.bench import (
    CAPACITY,
    WIDTH,
    BufferBench,
    episode_length,
    expect,
    expect_equal,
    flat,
    number_of,
    numbers_of,
    raises,
    update_of,
)
from dingsdk.testing.expect import SPREADS, expect_alike
from dingsdk.testing.runner import RuleBroken, needs

_ROWS = 20


@needs("sequences")
def rule_41_sequences_are_unbroken(bench: BufferBench) -> None:
    """A sequence is consecutive rows of one trajectory; it does not cross the end of one.

    A trajectory ends with a row whose ``done`` is true, where ``end_trajectory`` was called, and at
    the newest row: the oldest row does not follow the newest. A loaded state has the same ends.
    Columns have the shape ``[batch, time, ...]``; objects are in a list of lists.
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
                    expect(not across, f"sequence {numbers} continues after the end at {across}")
    buffer = bench.buffer(replay_buffer_size=_ROWS)
    for first in range(0, 12, 3):
        buffer.push([bench.row(number, done=False) for number in range(first, first + 3)], 0)
        buffer.end_trajectory()
    loaded = bench.buffer(replay_buffer_size=_ROWS)
    loaded.load_state_dict(buffer.state_dict())
    for each in (buffer, loaded) * 25:
        for one, after in _sequences(bench, each, 2, 2):
            is_within = after == one + 1 and after % 3 > 0
            expect(is_within, f"sequence {[one, after]} continues after end_trajectory()")


@needs("sequences", unless="own_law")
def rule_42_every_start_can_be_drawn(bench: BufferBench) -> None:
    """All rows from which a whole sequence can start are equally likely as the start.

    In a buffer of parts, ``count_starts`` returns their number.
    """
    ends = {4, 9, 17}
    buffer = _filled(bench, range(_ROWS + 2), ends)
    for length, starts in ((3, {2, 5, 6, 7, *range(10, 16), 18, 19}), (5, {5, 10, 11, 12, 13})):
        counts: Counter[int] = Counter()
        for _ in range(200):
            counts.update(each[0] for each in _sequences(bench, buffer, 4, length))
        expect_equal(sorted(counts), sorted(starts), f"starts of sequences of {length}")
        expect_alike(counts, len(starts), f"starts of sequences of {length}")
        if bench.has("parts"):
            expect_equal(buffer.count_starts(length), len(starts), f"count_starts({length})")


@needs("sequences")
def rule_43_sample_is_none_without_sequences(bench: BufferBench) -> None:
    """``sample`` returns None if no sequence of that length fits, or there are too few rows.

    It returns at once, and the buffer works afterwards.
    """
    buffer = _filled(bench, range(_ROWS), {n for n in range(_ROWS) if n % 4 == 3})
    expect_equal(buffer.sample(1, 5, 0), None, "sequences of 5 in trajectories of 4")
    expect_equal(buffer.sample(6, 4, 0), None, f"6 sequences of 4 in {_ROWS} rows")
    expect_equal(buffer.sample(0, 4, 0), [], "no sequences")
    expect_equal(len(_sequences(bench, buffer, 5, 4)), 5, "sequences of 4")


@needs("episodes")
def rule_44_episodes_are_whole(bench: BufferBench) -> None:
    """An episode comes back with all of its transitions, whatever its length and form.

    Episodes are pushed in a list; each is a SampleBatch or a list of transitions. An empty episode,
    or a value that is not an episode, raises SchemaMismatchError, and nothing is pushed.
    """
    buffer = bench.buffer(1, 2)
    buffer.push([[bench.row(n)] * episode_length(n) for n in (3, 4)], 0)
    bench.expect_contents(buffer, [1, 2, 3, 4], "after episodes as batches and as lists")
    wrong: tuple[Any, ...] = (5, "text", [], bench.row(1))
    for row in wrong:
        with raises(f"push of an episode {row!r:.40}", SchemaMismatchError):
            buffer.push([*bench.rows(7), row], 0)
    bench.expect_contents(buffer, [1, 2, 3, 4], "after refused episodes")


@needs("elastic")
def rule_45_window_holds_the_newest(bench: BufferBench) -> None:
    """Samples come from a window of the newest rows; ``set_buffer_size(envstep)`` is its size.

    ``update(envstep)`` changes the window. If the window shrinks and grows again, it has the older
    rows again. ``sample`` returns None for more rows than the window has.
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
    rows = [bench.row(number, done=number in ends) for number in numbers]
    # Several pushes, so that trajectories continue from one push to the next.
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


_CLOSE = 1e-3
"""Tolerance: priorities and weights may be float32, and a priority may be slightly increased."""
PRIORITIES = (0.5, 4.0, 1.0, 2.0, 8.0, 3.0)


@needs("priorities")
def rule_46_samples_carry_their_facts(bench: BufferBench) -> None:
    """Each sampled row has ``replay_unique_id``, ``replay_buffer_idx``, ``IS``, ``priority``.

    It also has ``use``, how often the row was sampled, including this time, and ``staleness``, the
    learner iterations since its ``collect_iter``, or -1 if it has none. They are columns of the
    batch, or keys of each row.
    """
    buffer = bench.buffer(*range(4))
    used: Counter[int] = Counter()
    for _ in range(6):
        for row in _rows(buffer, 3):
            used[number_of(row)] += 1
            expect_equal(int(row["use"]), used[number_of(row)], "use")
            expect(0 <= int(row["replay_buffer_idx"]) < CAPACITY, "replay_buffer_idx")
            expect_equal(int(row["staleness"]), -1, "staleness of a row without collect_iter")
    buffer = bench.buffer()
    buffer.push([{**row, "collect_iter": 3} for row in bench.rows(1)], 0)
    (row,) = _rows(buffer, 1, 7)
    expect_equal(int(row["staleness"]), 4, "staleness in iteration 7 of a row of iteration 3")


@needs("priorities")
def rule_48_new_rows_have_the_largest_priority(bench: BufferBench) -> None:
    """A row pushed without ``priority`` gets the largest priority so far, which is 1 at first.

    A row pushed with ``priority`` keeps it.
    """
    buffer = bench.buffer(*range(3))
    _expect_priorities(buffer, {0: 1.0, 1: 1.0, 2: 1.0})
    _update(buffer, {1: 5.0})
    bench.push(buffer, 3)
    _update(buffer, {1: 0.25})
    bench.push(buffer, 4)
    _expect_priorities(buffer, {0: 1.0, 1: 0.25, 2: 1.0, 3: 5.0, 4: 5.0})
    buffer.clear()
    bench.push(buffer, 5)
    _expect_priorities(buffer, {5: 1.0})
    buffer = bench.buffer()
    buffer.push([{**row, "priority": 2.5} for row in bench.rows(6)], 0)
    _expect_priorities(buffer, {6: 2.5})


@needs("priorities", unless="own_law")
def rule_49_weights_are_above_0_and_at_most_1(bench: BufferBench) -> None:
    """``IS`` is in (0, 1]: 1 for the row least likely to be drawn, and lower for likelier rows."""
    buffer = bench.buffer(*range(CAPACITY))
    _update(buffer, dict(enumerate(PRIORITIES)))
    found = _all_rows(buffer)
    weights = {number: float(row["IS"]) for number, row in found.items()}
    expect(all(0 < weight <= 1 for weight in weights.values()), f"IS of rows: {weights}")
    rising = [weights[number] for number in np.argsort(PRIORITIES)[::-1].tolist()]
    expect(rising == sorted(rising), f"IS does not fall as the priority rises: {weights}")
    expect(abs(rising[-1] - 1) < _CLOSE, f"no row has IS 1: {weights}")


@needs("proportional")
def rule_50_rows_are_drawn_by_priority(bench: BufferBench) -> None:
    """A row is drawn in proportion to ``priority ** alpha``, for any ``alpha`` from 0 to 1.

    Its ``IS`` is ``(rows * share) ** -beta``, divided by the largest such value of all rows in the
    buffer. It is exactly 1 while all priorities are equal.
    """
    for row in _rows(bench.buffer(*range(CAPACITY)), CAPACITY):
        expect_equal(float(row["IS"]), 1.0, "IS while priorities are equal")
    for alpha, beta in ((0.0, 0.4), (0.6, 1.0), (1.0, 0.4)):
        cfg = {"alpha": alpha, "beta": beta, "anneal_step": 0}
        buffer = bench.buffer(*range(CAPACITY + 2), **cfg)
        bench.push(buffer, *range(20, 20 + CAPACITY))
        _update(buffer, {20 + n: priority for n, priority in enumerate(PRIORITIES)})
        mass = np.array(PRIORITIES) ** alpha
        share = mass / mass.sum()
        weights = (CAPACITY * share) ** -beta
        weights /= weights.max()
        counts: Counter[int] = Counter()
        for _ in range(300):
            for row in _rows(buffer, CAPACITY):
                number = number_of(row) - 20
                counts[number] += 1
                close = math.isclose(float(row["IS"]), weights[number], rel_tol=_CLOSE)
                expect(close, f"IS is {row['IS']}, not {weights[number]}, with {cfg}")
        total = counts.total()
        for number, part in enumerate(share.tolist()):
            off = abs(counts[number] - total * part)
            # The width is that of independent draws; stratified draws vary less.
            width = SPREADS * (total * part * (1 - part)) ** 0.5 + _CLOSE * total
            expect(off <= width, f"row {number} came {counts[number]} times, not {total * part}")


@needs("priorities")
def rule_51_update_sets_priorities(bench: BufferBench) -> None:
    """``update`` sets the priorities of the rows with the given ids and positions.

    It takes lists and arrays of any length. If a row is given twice, the last priority counts. An
    update without ``priority`` changes nothing.
    """
    buffer = bench.buffer(*range(4))
    found = _all_rows(buffer)
    ids = [int(found[n]["replay_unique_id"]) for n in (0, 1, 0)]
    places = [int(found[n]["replay_buffer_idx"]) for n in (0, 1, 0)]
    info = {"replay_unique_id": ids, "replay_buffer_idx": places, "priority": [9.0, 2.0, 3.0]}
    buffer.update(info)
    _expect_priorities(buffer, {0: 3.0, 1: 2.0, 2: 1.0, 3: 1.0})
    buffer.update({key: np.array(value)[1:2] * 1 for key, value in info.items()})
    buffer.update({"replay_unique_id": [], "replay_buffer_idx": [], "priority": []})
    buffer.update({"loss": 1.0})
    _expect_priorities(buffer, {0: 3.0, 1: 2.0, 2: 1.0, 3: 1.0})


@needs("priorities")
def rule_52_bad_updates_are_refused(bench: BufferBench) -> None:
    """A priority that is not a finite number >= 0 raises InvalidPriorityError, changing nothing.

    Lists of different lengths and missing or invalid ids or positions do so too.
    """
    buffer = bench.buffer(*range(3))
    found = list(_all_rows(buffer).values())
    ids = [int(row["replay_unique_id"]) for row in found]
    places = [int(row["replay_buffer_idx"]) for row in found]
    good = {"replay_unique_id": ids, "replay_buffer_idx": places, "priority": [2.0, 2.0, 2.0]}
    wrong: list[Any] = [
        *([2.0, bad, 2.0] for bad in (math.nan, math.inf, -math.inf, -1.0, -1e-9, "1", None, True)),
        [2.0, 2.0],
        [2.0] * 4,
        [[2.0], [2.0], [2.0]],
        "222",
        2.0,
    ]
    for priority in wrong:
        with raises(f"update() with priorities {priority!r}", InvalidPriorityError):
            buffer.update({**good, "priority": priority})
    for key in ("replay_unique_id", "replay_buffer_idx"):
        for value in (None, ids[:2], [0.5, 1.5, 2.5], "abc"):
            with raises(f"update() with {key} {value!r}", InvalidPriorityError):
                buffer.update({**good, key: value})
    _expect_priorities(buffer, {0: 1.0, 1: 1.0, 2: 1.0})


@needs("priorities")
def rule_53_extreme_priorities_cause_no_errors(bench: BufferBench) -> None:
    """A row of priority 0 can be drawn; very small and very large priorities cause no errors."""
    buffer = bench.buffer(*range(4), alpha=1.0)
    _update(buffer, {0: 0.0, 1: 5e-324, 2: 0.0, 3: 0.0})
    expect_equal(buffer.count(), 4, "count() of rows of priority 0")
    expect_equal(sorted(_all_rows(buffer)), [0, 1, 2, 3], "rows drawn of priority 0")
    _update(buffer, {0: 1e308, 1: 1e308, 2: 1.0, 3: 0.0})
    for _ in range(20):
        for row in _rows(buffer, 4):
            expect(0 < float(row["IS"]) <= 1, f"IS is {row['IS']} beside a priority of 1e308")
    bench.push(buffer, 4, 5)
    bench.draw(buffer, CAPACITY)


@needs("priorities")
def rule_54_updates_of_rows_that_left_are_skipped(bench: BufferBench) -> None:
    """An update for a row that is no longer in the buffer, or never was, is skipped.

    The row that is now at its position is not changed: ``replay_unique_id`` is a different number
    for every row that was ever pushed, also after ``clear``. The other rows of the same update are
    set.
    """
    buffer = bench.buffer(*range(CAPACITY))
    before = _info(_all_rows(buffer), dict.fromkeys(range(CAPACITY), 7.0))
    bench.push(buffer, 20, 21)
    rows = bench.held(buffer, [*range(CAPACITY), 20, 21])
    before["replay_unique_id"] += [10**9, -5, 0]
    before["replay_buffer_idx"] += [10**9, -5, 10**9]
    before["priority"] += [7.0, 7.0, 7.0]
    buffer.update(before)
    _expect_priorities(buffer, {number: 7.0 if number < 20 else 1.0 for number in rows})
    buffer.clear()
    bench.push(buffer, *range(30, 30 + CAPACITY))
    buffer.update(before)
    _expect_priorities(buffer, dict.fromkeys(range(30, 30 + CAPACITY), 1.0))


@needs("priorities")
def rule_55_rows_leave_after_their_last_use(bench: BufferBench) -> None:
    """A row that was sampled ``max_use`` times leaves after that batch, and does not come back.

    ``count`` is the number of rows that can still be sampled. A later update of the priority of a
    row that left changes nothing.
    """
    buffer = bench.buffer(*range(CAPACITY), max_use=3)
    used: Counter[int] = Counter()
    facts: dict[int, Any] = {}
    while buffer.count():
        batch = _rows(buffer, buffer.count())
        numbers = [number_of(row) for row in batch]
        expect(all(used[n] < 3 for n in numbers), f"rows {numbers} were drawn, used {used}")
        used.update(numbers)
        facts.update(zip(numbers, batch, strict=True))
        expect_equal(buffer.count(), sum(used[n] < 3 for n in range(CAPACITY)), "count()")
        expect(used.total() < 100, "used rows never leave")
    expect_equal(bench.sample(buffer, 1), None, "a sample when all rows were used")
    buffer.update(_info(facts, dict.fromkeys(facts, 5.0)))
    expect_equal(buffer.count(), 0, "count() after a late update")
    expect_equal(bench.sample(buffer, 1), None, "a sample after a late update")
    bench.push(buffer, 20, 21)
    expect_equal(buffer.count(), 2, "count() after another push")
    expect_equal(set(numbers_of(_rows(buffer, 2))) - {20, 21}, set(), "unexpected rows")


@needs("priorities")
def rule_56_stale_rows_leave(bench: BufferBench) -> None:
    """Rows leave when ``max_staleness`` iterations have passed since their ``collect_iter``.

    They leave before the next sample. Rows without ``collect_iter`` never become stale.
    """
    buffer = bench.buffer(max_staleness=3)
    for number, iteration in enumerate((0, 1, 1, 4)):
        buffer.push([{**row, "collect_iter": iteration} for row in bench.rows(number)], 0)
    expect_equal(len(_rows(buffer, 4, 2)), 4, "rows in iteration 2")
    expect_equal(buffer.sample(4, 3), None, "4 rows in iteration 3, when one is stale")
    expect_equal(buffer.count(), 3, "count() in iteration 3")
    drawn = {number for _ in range(300) for number in numbers_of(_rows(buffer, 3, 3))}
    expect_equal(drawn, {1, 2, 3}, "rows drawn in iteration 3")
    expect_equal(set(numbers_of(_rows(buffer, 1, 4))), {3}, "rows in iteration 4")
    expect_equal(buffer.sample(1, 7), None, "a row in iteration 7, when all are stale")
    expect_equal(buffer.count(), 0, "count() in iteration 7")
    buffer = bench.buffer(1, max_staleness=3)
    expect_equal(len(_rows(buffer, 1, 1000)), 1, "rows without collect_iter")


@needs("priorities")
def rule_57_state_keeps_beta(bench: BufferBench) -> None:
    """A loaded state restores ``beta``; one with another ``alpha`` is refused.

    Such a state raises CheckpointVersionError, and changes nothing. ``beta`` reaches 1 after
    ``anneal_step`` samples, in equal steps; if ``anneal_step`` is 0, ``beta`` does not change.
    """
    cfg = {"beta": 0.4, "anneal_step": 4}
    old, new = bench.buffer(1, 2, **cfg), bench.buffer(40, **cfg)
    for sampled in range(1, 5):
        bench.draw(old, 1)
        expect(math.isclose(old.beta, 0.4 + 0.15 * sampled), f"beta after {sampled}: {old.beta}")
        new.load_state_dict(old.state_dict())
        expect_equal(new.beta, old.beta, "beta of the loaded state")
    other = bench.buffer(1, 2, alpha=0.3, beta=0.4, anneal_step=0)
    with raises("a state with another alpha", CheckpointVersionError):
        other.load_state_dict(old.state_dict())
    bench.expect_contents(other, [1, 2], "after a refused state")
    expect_equal(other.beta, 0.4, "beta that stays")


@needs("priorities")
def rule_58_saved_rows_keep_priorities_and_uses(bench: BufferBench) -> None:
    """Rows that ``save_data`` wrote are loaded with their priorities and use counts.

    This applies to buffers that declare ``saves``.
    """
    if not bench.has("saves"):
        return
    old, new = bench.buffer(*range(CAPACITY)), bench.buffer(40)
    _update(old, dict(enumerate(PRIORITIES)))
    known = _all_rows(old)
    old.save_data(str(bench.folder / "rows"))
    new.load_data(str(bench.folder / "rows"))
    for row in [*_rows(new, CAPACITY), *_rows(new, 2)]:
        number = number_of(row)
        if number == 40:
            continue
        expect_equal(int(row["use"]), int(known[number]["use"]) + 1, f"use of loaded row {number}")
        expect_equal(row["priority"], known[number]["priority"], f"priority of row {number}")
        known[number] = row


def _rows(buffer: Any, size: int, iteration: int = 0) -> list[Any]:
    found = buffer.sample(size, iteration)
    if found is None or len(found) != size:
        raise RuleBroken(f"a sample of {size} of {buffer.count()} rows is {found!r:.200}")
    return list(found)


def _all_rows(buffer: Any) -> dict[int, Any]:
    """Sample until each row was drawn; return the rows by number."""
    found: dict[int, Any] = {}
    for _ in range(2000):
        found.update((number_of(row), row) for row in _rows(buffer, buffer.count()))
        if len(found) == buffer.count():
            return found
    raise RuleBroken(f"in 2000 batches only rows {sorted(found)} of {buffer.count()} were drawn")


def _info(rows: dict[int, Any], priorities: dict[int, float]) -> dict[str, list[Any]]:
    return update_of([rows[number] for number in priorities], priorities.values())


def _update(buffer: Any, priorities: dict[int, float]) -> None:
    buffer.update(_info(_all_rows(buffer), priorities))


def _expect_priorities(buffer: Any, expected: dict[int, float]) -> None:
    found = {number: float(row["priority"]) for number, row in _all_rows(buffer).items()}
    close = found.keys() == expected.keys() and all(
        math.isclose(found[number], value, rel_tol=_CLOSE) for number, value in expected.items()
    )
    expect(close, f"priorities are {found}, not {expected}")
