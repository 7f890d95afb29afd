"""The rules of the replay buffers, and functions that check them.

Rules 1 to 20 are about pushing and sampling rows, 21 to 30 about seeds, states, saved rows
and closing, 31 to 40 about waiting, limits, listeners and threads, 41 to 45 about sequences,
episodes and windows, and 46 to 58 about priorities.
"""

from __future__ import annotations

import copy
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    BufferClosedError,
    BufferFullError,
    CheckpointCorruptError,
    CheckpointMissingError,
    CheckpointVersionError,
    ConfigError,
    InvalidPriorityError,
    SchemaMismatchError,
)
from dingsdk.testing.buffer_bench import (
    CAPACITY,
    WIDTH,
    BufferBench,
    episode_length,
    flat,
    number_of,
    numbers_of,
    spoil,
    update_of,
)
from dingsdk.testing.expect import (
    WAIT_S,
    Call,
    RuleBroken,
    expect,
    expect_alike,
    expect_equal,
    expect_same,
    expect_shares,
    leaves_nothing,
    raises,
)
from dingsdk.testing.runner import Contract, RuleBook, collect, needs


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


def rule_05_rows_are_copies(bench: BufferBench) -> None:
    """Changes to pushed or sampled rows do not change the stored rows, and vice versa.

    A push does not change the pushed data; neither do later samples and updates. Changes to a batch
    do not change other batches. The same object pushed twice is stored as two rows.
    """
    buffer = bench.buffer()
    twice, batch = bench.rows(1)[0], bench.batch(2, 3)
    rows = [twice, twice]
    before = copy.deepcopy((rows, batch))
    buffer.push(rows, 0)
    buffer.push(batch, 0)
    earlier = bench.sample(buffer, 4)
    numbers = numbers_of(earlier)
    for _ in range(4):
        spoil(bench.sample(buffer, 4))
    expect_same((rows, batch), before, "what was pushed")
    expect_equal(numbers_of(earlier), numbers, "an earlier batch after later ones were changed")
    spoil(rows[:1])
    rows.clear()
    spoil(batch)
    bench.expect_contents(buffer, [1, 1, 2, 3], "after the caller's were overwritten")
    bench.push(buffer, *range(20, 20 + CAPACITY))
    expect_equal(numbers_of(earlier), numbers, "a batch after its rows were overwritten")


def rule_07_empty_rows_are_refused(bench: BufferBench) -> None:
    """A push of None or an empty dict, alone or among rows, raises SchemaMismatchError.

    No row of such a push is stored.
    """
    nothing: tuple[Any, ...] = (None, {})
    for held in (0, 2, CAPACITY):
        pushes = [data for bad in nothing for data in ([bad], [*bench.rows(8, 9), bad], bad)]
        _expect_refused(bench, held, pushes)


def _expect_refused(bench: BufferBench, held: int, pushes: Sequence[Any]) -> list[Any]:
    """Push what must be refused to a buffer of ``held`` rows; return the errors."""
    buffer = bench.buffer(*range(held))
    errors = []
    for data in pushes:
        with raises(f"push({data!r:.120})", SchemaMismatchError) as caught:
            buffer.push(data, 0)
        errors += caught
    bench.expect_contents(buffer, range(held), "after refused pushes")
    expect_equal(buffer.push_count, held, "push_count after refused pushes")
    # The refused rows did not determine the form of the stored rows.
    bench.push(buffer, 50)
    expect_equal(bench.contents(buffer)[-1], 50, "the newest row after refused pushes")
    return errors


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
    columns = bench.batch(7, 8).columns
    wider = columns["reward"].astype(np.float64)
    pushes: list[tuple[str, Any]] = [
        (key, SampleBatch({**columns, key: wider})) for key in ("reward", "extra")
    ]
    for key, rows in bad.items():
        for row in rows:
            pushes += [(key, data) for data in (row, [row], [bench.row(8), row])]
    for held in (1, CAPACITY):
        errors = _expect_refused(bench, held, [data for _, data in pushes])
        for error, (key, data) in zip(errors, pushes, strict=True):
            expect_equal(error.key, key, f"the key in the error of a push of {data!r:.120}")


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
        found = bench.drawn(buffer, size, expected)
        expect_equal(found, sorted(expected), f"rows drawn in 200 batches of {size}")


def rule_15_sample_is_none_without_enough_rows(bench: BufferBench) -> None:
    """``sample`` of more rows than there are returns None at once; the buffer works afterwards.

    So does a sample of sequences if no sequence of that length fits. ``sample(0)`` returns ``[]``,
    whether or not the buffer is empty. A size that is not an integer, or is below 0, raises
    ConfigError (a ValueError).
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
    if bench.has("sequences"):
        buffer = _filled(bench, range(_ROWS), {n for n in range(_ROWS) if n % 4 == 3})
        expect_equal(buffer.sample(1, 5, 0), None, "sequences of 5 in trajectories of 4")
        expect_equal(buffer.sample(6, 4, 0), None, f"6 sequences of 4 in {_ROWS} rows")
        expect_equal(buffer.sample(0, 4, 0), [], "no sequences")
        expect_equal(len(_sequences(bench, buffer, 5, 4)), 5, "sequences of 4")


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
            expected = set(rows[ages])
            found = bench.drawn(buffer, len(expected), expected, sample_range=ages)
            expect_equal(found, sorted(expected), f"rows drawn from {ages} of {rows}")
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


def rule_21_same_seed_same_samples(bench: BufferBench) -> None:
    """With the same seed, the same calls return the same batches; another seed gives others.

    With ``own_law``, draws need not be random.
    """
    one, two, other = (bench.buffer(*range(CAPACITY), seed=seed) for seed in (5, 5, 6))
    found = bench.draws(one)
    expect_equal(bench.draws(two), found, "batches of another buffer with the seed")
    if not bench.has("own_law"):
        expect(bench.draws(other) != found, "another seed gave the same batches")


def rule_22_state_gives_the_same_future(bench: BufferBench) -> None:
    """A buffer that loads a state continues with the rows, counts and samples of its source.

    The rows that it had before are gone. After the same pushes both buffers are still the same.
    """
    for held in (0, 3, CAPACITY, CAPACITY + 3):
        old = bench.buffer(*range(held))
        if held:
            _use(bench, old)
        new = bench.buffer(40, 41, seed=9)
        new.load_state_dict(old.state_dict())
        expect_equal(new.push_count, old.push_count, "push_count of the loaded state")
        expect_equal(new.count(), old.count(), "count() of the loaded state")
        _expect_same_future(
            bench, new, old, lambda buffer: [bench.sample(buffer, 2) for _ in range(8)]
        )
        expect_same(new.state_dict(), old.state_dict(), "the state of the loaded state")


def rule_23_state_is_a_copy(bench: BufferBench) -> None:
    """A state does not change when its buffer does, and changing a state changes no buffer.

    This also applies to a state that was loaded.
    """
    buffer = bench.buffer(*range(CAPACITY))
    state = buffer.state_dict()
    before = copy.deepcopy(state)
    bench.push(buffer, 20, 21)
    bench.draws(buffer, times=2)
    expect_same(state, before, "a state after the buffer went on")
    other = bench.buffer(seed=9)
    other.load_state_dict(state)
    spoil(_as_batch(state["data"]))
    bench.expect_contents(buffer, [*range(CAPACITY), 20, 21], "after a state was changed")
    bench.expect_contents(other, range(CAPACITY), "after the loaded state was changed")


def rule_24_wrong_state_is_refused(bench: BufferBench) -> None:
    """A state of another capacity or version, or an incomplete state, is refused.

    Another capacity or version raises CheckpointVersionError. A missing key or an empty state of a
    part raises CheckpointVersionError or CheckpointCorruptError, a missing row
    CheckpointCorruptError. The buffer does not change.
    """
    state = bench.buffer(*range(CAPACITY)).state_dict()
    larger = bench.buffer(1, 2, replay_buffer_size=2 * CAPACITY).state_dict()
    buffer, twin = bench.buffer(1, 2, 3), bench.buffer(1, 2, 3)
    for wrong in (larger, {**state, "version": -1}):
        with raises("load_state_dict() of another buffer", CheckpointVersionError):
            buffer.load_state_dict(wrong)
    parts = [key for key, value in state.items() if isinstance(value, Mapping) and value]
    incomplete = [{name: state[name] for name in state if name != key} for key in state]
    incomplete += [{**state, key: {}} for key in parts if key != "data"]
    for wrong in incomplete:
        with raises(f"a state {wrong!r:.120}", CheckpointVersionError, CheckpointCorruptError):
            buffer.load_state_dict(wrong)
    shorter = _as_batch(state["data"])[1:]
    with raises("a state with a row too few", CheckpointCorruptError):
        buffer.load_state_dict({**state, "data": getattr(shorter, "columns", shorter)})
    bench.expect_contents(buffer, [1, 2, 3], "after refused states")
    bench.draw(twin, 3)
    expect_equal(bench.draws(buffer), bench.draws(twin), "batches after refused states")


def rule_25_state_of_data_alone_is_pushed(bench: BufferBench) -> None:
    """If a state has only ``data`` (demonstrations), its rows are added to those in the buffer."""
    data = bench.buffer(8, 9).state_dict()["data"]
    buffer = bench.buffer(1)
    buffer.load_state_dict({"data": data})
    bench.expect_contents(buffer, [1, 8, 9], "after a state of data alone")
    expect_equal(buffer.push_count, 3, "push_count")


@needs("saves")
def rule_26_saved_rows_are_pushed_back(bench: BufferBench) -> None:
    """``save_data`` makes the folder and its parents; ``load_data`` pushes the rows, oldest first.

    Saving does not change the buffer. Saving to the same folder again replaces the saved rows. An
    empty buffer that loads a save of its own kind samples as the saved buffer does, also after the
    same pushes. Both have the same settings, except for the seed.
    """
    folder = str(bench.folder / "new" / "rows")
    cfg: dict[str, Any] = {}
    if bench.has("elastic"):
        cfg["set_buffer_size"] = lambda envstep: CAPACITY if envstep else 1
    for held in (0, 3, CAPACITY + 2, CAPACITY + 3, 2):
        old, new = bench.buffer(*range(held), **cfg), bench.buffer(seed=9, **cfg)
        if held:
            _use(bench, old)
        old.save_data(folder)
        new.load_data(folder)
        for buffer, what in ((old, "after save_data()"), (new, "after load_data()")):
            bench.expect_contents(buffer, range(held), what)
        expect_equal(bench.contents(new), bench.contents(old), "rows after load_data()")
        expect_equal(new.push_count, old.count(), "push_count after load_data()")
        if held < 3:
            continue
        expect_equal(bench.draws(new), bench.draws(old), "batches after load_data()")
        _expect_same_future(bench, new, old, bench.draws)
    some = bench.buffer(30)
    some.load_data(folder)
    bench.expect_contents(some, [30, 0, 1], "after load_data() onto a row")


@needs("saves")
def rule_27_altered_save_is_refused(bench: BufferBench) -> None:
    """Saved files that were altered, cut or removed are refused, and nothing is pushed.

    Loading them raises CheckpointCorruptError, CheckpointMissingError or CheckpointVersionError. A
    folder without saved rows raises CheckpointMissingError.
    """
    source, buffer = bench.buffer(*range(CAPACITY)), bench.buffer(1, 2)
    folder = bench.folder / "rows"
    source.save_data(str(folder))
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        content = path.read_bytes()
        middle = len(content) // 2
        damaged = [content[:middle], b"", None]
        if b"\0" in content:  # a text with another character may be valid data
            flipped = bytes([content[middle] ^ 1])
            damaged.append(content[:middle] + flipped + content[middle + 1 :])
        for wrong in damaged:
            if wrong is None:
                path.unlink()
            else:
                path.write_bytes(wrong)
            kinds = (CheckpointCorruptError, CheckpointMissingError, CheckpointVersionError)
            with raises(f"load_data() with a damaged {path.name}", *kinds):
                buffer.load_data(str(folder))
        path.write_bytes(content)
    with raises("load_data() of an empty folder", CheckpointMissingError):
        buffer.load_data(str(bench.folder / "absent"))
    bench.expect_contents(buffer, [1, 2], "after refused files")
    buffer.load_data(str(folder))
    bench.expect_contents(buffer, range(CAPACITY), "after the files were put back")


def _expect_same_future(bench: BufferBench, new: Any, old: Any, read: Callable[[Any], Any]) -> None:
    # The same rows, and after the same push the same results of ``read``.
    for buffer in (old, new):
        bench.push(buffer, 50, 51)
        if bench.has("elastic"):
            buffer.update(7)
    expect_equal(bench.contents(new), bench.contents(old), "rows of the loaded buffer")
    expect_same(read(new), read(old), "batches after later pushes")


def _use(bench: BufferBench, buffer: Any) -> None:
    """Change the state of a buffer, so that it differs from that of a new one."""
    if bench.has("elastic"):
        buffer.update(7)
    found = bench.sample(buffer, 2)
    if bench.has("priorities"):
        buffer.update(update_of(found, [4.0, 0.1]))


def _as_batch(data: Any) -> Any:
    return data if isinstance(data, list) else SampleBatch(data)


def rule_29_close_is_idempotent(bench: BufferBench) -> None:
    """``close`` may be called twice, from several threads, and before use; ``count`` is then 0.

    All other methods that read or write rows raise BufferClosedError; ``save_data`` makes no
    folder.
    """
    for held in (0, 3):
        buffer = bench.buffer(*range(held))
        bench.together(*[buffer.close] * 4)
        buffer.close()
        expect_equal(buffer.count(), 0, "count() of a closed buffer")
        folder = bench.folder / "rows"
        for name, use in {
            "push()": lambda: bench.push(buffer, 1),  # noqa: B023 - called in this round
            "push([])": lambda: buffer.push([], 0),  # noqa: B023
            "sample(1)": lambda: bench.sample(buffer, 1),  # noqa: B023
            "sample(0)": lambda: bench.sample(buffer, 0),  # noqa: B023
            "clear()": buffer.clear,
            "state_dict()": buffer.state_dict,
            "save_data()": lambda: buffer.save_data(str(folder)),  # noqa: B023
        }.items():
            with raises(f"{name} of a closed buffer", BufferClosedError):
                use()
        expect(not folder.exists(), "save_data() of a closed buffer made a folder")


def rule_30_close_releases_everything(bench: BufferBench) -> None:
    """A closed buffer leaves no thread and no open file.

    Making a buffer starts no thread; making or using a buffer creates no file and no folder in the
    working folder.
    """
    bench.buffer(1).close()  # so that one-time setup of the process is done before the check
    files = set(Path.cwd().iterdir())
    with leaves_nothing(0.0):
        for _ in range(2):
            threads = set(threading.enumerate())
            buffer = bench.buffer(*range(9))
            started = [each.name for each in threading.enumerate() if each not in threads]
            bench.draw(buffer, 2)
            buffer.close()
            expect_equal(started, [], "threads of a new buffer")
        del buffer
    expect_equal({*Path.cwd().iterdir()} - files, set(), "new files in the working folder")


_RATIO = {"type": "samples_per_insert", "samples_per_insert": 1, "error_buffer": 2}


@needs("parts")
def rule_31_sample_waits_for_rows(bench: BufferBench) -> None:
    """``sample`` with ``timeout_s`` waits for rows, and returns as soon as there are enough.

    If they do not come, it returns None at its deadline, not earlier or much later. Without
    ``timeout_s`` it does not wait.
    """
    buffer = bench.buffer()
    for timeout_s in (None, 0.0, WAIT_S):
        call = Call(partial(bench.sample, buffer, 2, timeout_s=timeout_s), "sample()")
        found = call.value(WAIT_S + bench.patience_s, timeout_s or 0.0)
        expect_equal(found, None, "a sample of an empty buffer")
    call = _waiting(bench, buffer, 2)
    bench.push(buffer, 1)
    call.expect_waits()
    bench.push(buffer, 2)
    expect_equal(set(numbers_of(call.value(bench.patience_s))) - {1, 2}, set(), "unexpected rows")


@needs("parts")
def rule_33_close_wakes_waiting_calls(bench: BufferBench) -> None:
    """Closing the buffer ends every wait on it with BufferClosedError."""
    buffer = bench.buffer(1, 2, 3, limiter=_RATIO)
    waits = [_waiting(bench, buffer, CAPACITY), _waiting(bench, buffer, CAPACITY)]
    waits.append(_refused(bench, buffer, 20 * bench.patience_s))
    waits[-1].expect_waits()
    bench.in_time(buffer.close, "close()")
    for call in waits:
        with raises("a wait on a closed buffer", BufferClosedError):
            call.value(bench.patience_s)


@needs("parts")
def rule_35_refused_push_raises_and_loses_nothing(bench: BufferBench) -> None:
    """A push that the limiter refuses raises BufferFullError, and may be repeated.

    With ``timeout_s`` it waits until samples make room or the time is over. Rows are never dropped
    without an error.
    """
    buffer = bench.buffer(1, 2, 3, limiter=_RATIO)
    for timeout_s in (None, 0.0, WAIT_S):
        call = _refused(bench, buffer, timeout_s)
        with raises(f"a refused push, timeout_s={timeout_s}", BufferFullError):
            call.value(WAIT_S + bench.patience_s, timeout_s or 0.0)
        expect_equal(bench.contents(buffer), [1, 2, 3], "rows after a refused push")
        expect_equal(buffer.push_count, 3, "push_count after a refused push")
    call = _refused(bench, buffer, 20 * bench.patience_s)
    call.expect_waits()
    for _ in range(2):
        bench.draw(buffer, 1)
    call.value(bench.patience_s)
    expect_equal(bench.contents(buffer), [1, 2, 3, 9], "rows after the wait")


@needs("parts")
def rule_36_samples_do_not_run_ahead(bench: BufferBench) -> None:
    """If the limiter requires more pushes, ``sample`` returns None, or waits for the pushes.

    With ``limiter.min_size`` nothing is sampled until the buffer has that many rows.
    """
    buffer = bench.buffer(1, limiter={**_RATIO, "min_size": 3})
    call = _waiting(bench, buffer, 1)
    bench.push(buffer, 2)
    call.expect_waits()
    expect_equal(bench.sample(buffer, 1), None, "a sample below min_size")
    bench.push(buffer, 3)
    expect_equal(len(numbers_of(call.value(bench.patience_s))), 1, "rows at min_size")
    taken = 1
    while bench.sample(buffer, 1) is not None:
        taken += 1
        expect(taken <= 2, "more was sampled than the rows pushed and the slack allow")
    expect_equal(taken, 2, "samples before the limiter refused one")
    call = _waiting(bench, buffer, 1)
    bench.push(buffer, 4)
    expect_equal(len(numbers_of(call.value(bench.patience_s))), 1, "rows after another push")


@needs("parts")
def rule_37_listeners_get_every_row_that_leaves(bench: BufferBench) -> None:
    """A remove listener gets every row that leaves once, oldest first, with the reason.

    The reason is ``overwritten`` or ``cleared``. ``cleared`` is for ``clear``, and for ``close``
    unless rows stay in a folder. The listener is called after the operation, and may call the
    buffer. Its errors do not reach the caller of the buffer. ``stats()`` counts these rows too.
    """
    buffer = bench.buffer()
    told: list[tuple[int, str]] = []
    counts: list[int] = []

    def listen(rows: Any, reason: str) -> None:
        told.extend((number, reason) for number in numbers_of(rows))
        counts.append(buffer.count())

    def fail(rows: Any, reason: str) -> None:
        if reason == "cleared":
            raise ValueError("a listener that fails")

    buffer.add_remove_listener(fail)
    buffer.add_remove_listener(listen)
    there: list[int] = []

    def expect_gone(pushed: Iterable[int], reason: str, left: list[int]) -> None:
        gone = [(n, reason) for n in (*there, *pushed) if n not in left]
        expect_equal(told, gone, "rows that left, with the reason")
        there[:] = left
        told.clear()

    for numbers in (range(4), range(4, 9), range(9, 9 + CAPACITY + 2)):
        bench.push(buffer, *numbers)
        expect_gone(numbers, "overwritten", bench.held(buffer, [*there, *numbers]))
    expect_equal(counts[-1], CAPACITY, "count() as a listener sees it")
    buffer.clear()
    expect_gone((), "cleared", [])
    stats = buffer.stats()
    facts = stats.pushed, stats.overwritten, stats.cleared, stats.count
    expect_equal(facts, (11 + CAPACITY, 11, CAPACITY, 0), "rows pushed, overwritten, cleared, left")
    bench.push(buffer, 50)
    buffer.close()
    expect_gone([50], "cleared", [])


def _waiting(bench: BufferBench, buffer: Any, size: int) -> Call[Any]:
    timeout_s = 20 * bench.patience_s
    what = f"sample() of {size} rows, which are not there or not admitted,"
    call = Call(lambda: bench.sample(buffer, size, timeout_s=timeout_s), what)
    call.expect_waits()
    return call


def _refused(bench: BufferBench, buffer: Any, timeout_s: float | None) -> Call[Any]:
    what = "a push that the limiter refuses"
    return Call(lambda: buffer.push(bench.batch(9), 0, timeout_s=timeout_s), what)


_TURNS = 60


def rule_39_threads_share_a_buffer(bench: BufferBench) -> None:
    """Threads may push, sample, update, clear, save and take states at the same time.

    No call fails, every returned row is whole and was pushed, listeners get each row that leaves
    once, and the buffer works normally afterwards.
    """
    capacity = 32
    buffer = bench.buffer(replay_buffer_size=capacity)
    gone: list[int] = []
    if bench.has("parts"):
        buffer.add_remove_listener(lambda rows, reason: gone.extend(numbers_of(rows)))

    def push(which: int) -> None:
        for turn in range(_TURNS):
            first = 10_000 * which + 5 * turn
            bench.push(buffer, *range(first, first + 5))

    def sample() -> None:
        for _ in range(_TURNS):
            found = bench.sample(buffer, 7)
            if found is None:
                continue
            check(numbers_of(found), "sampled")
            if bench.has("priorities"):
                buffer.update(update_of(found, [1.0 + n % 3 for n in range(len(found))]))

    def keep() -> None:
        for turn in range(_TURNS):
            numbers = bench.contents(buffer)
            check(numbers, "in a state")
            # A state has all rows of a push, in their order, or none of them.
            for one, after in pairwise(numbers) if bench.has("fifo") else ():
                expect(after == one + 1 or one % 5 == 4, f"{after} follows {one} in a state")
            expect(len(numbers) <= capacity, f"{len(numbers)} rows in a state")
            if bench.has("saves") and turn % 20 == 19:
                buffer.save_data(str(bench.folder / "rows"))

    def clear() -> None:
        for _ in range(_TURNS // 20):
            for _ in range(20):
                expect(0 <= buffer.count() <= capacity, "count() is above the capacity")
            buffer.clear()

    def check(numbers: list[int], what: str) -> None:
        strange = [n for n in numbers if not 0 <= n % 10_000 < 5 * _TURNS or n >= 30_000]
        expect(not strange, f"rows {strange} were {what}, which were never pushed")

    bench.exits.callback(sys.setswitchinterval, sys.getswitchinterval())
    sys.setswitchinterval(1e-5)
    bench.together(*[partial(push, which) for which in range(3)], *[sample] * 3, keep, clear)
    buffer.clear()
    bench.push(buffer, *range(90_000, 90_000 + capacity))
    expect_equal(bench.contents(buffer), list(range(90_000, 90_000 + capacity)), "rows at the end")
    if bench.has("parts"):
        stats = buffer.stats()
        expect_equal(stats.pushed, 3 * 5 * _TURNS + capacity, "rows pushed in all")
        expect_equal(stats.pushed, stats.left + stats.count, "rows in all")
        expect_equal(len(gone), stats.left, "rows that listeners were called with")
        expect_equal(len(set(gone)), len(gone), "different rows that listeners were called with")


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
        found = {*bench.drawn(buffer, 1), *bench.draw(buffer, window)}
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
        # Stratified draws vary less than independent draws.
        expect_shares(counts, dict(enumerate(share.tolist())), f"rows with {cfg}")


@needs("priorities")
def rule_51_update_sets_priorities(bench: BufferBench) -> None:
    """``update`` sets the priorities of the rows with the given ids and positions.

    It takes lists and arrays of any length. If a row is given twice, the last priority counts. An
    update without ``priority`` changes nothing.
    """
    buffer = bench.buffer(*range(4))
    found = _all_rows(buffer)
    info = update_of([found[0], found[1], found[0]], [9.0, 2.0, 3.0])
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
    good = update_of(list(_all_rows(buffer).values()), [2.0, 2.0, 2.0])
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
        for value in (None, good[key][:2], [0.5, 1.5, 2.5], "abc"):
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


BUFFER_CAPABILITIES: Final[Mapping[str, str]] = {
    "columns": "Rows are dicts of numbers and arrays, kept in columns, and sampled as SampleBatch.",
    "objects": "A row may be any object. Batches are lists.",
    "fifo": "The oldest rows leave first; without it any row may make room for a new one.",
    "distinct": "Rows are equally likely; a row repeats in a batch only with `replace=True`.",
    "ages": "`sample` takes `sample_range`, a slice over the rows by age.",
    "priorities": (
        "Rows are drawn by priority, which `update` changes; `alpha`, `beta`, `anneal_step`, "
        "`max_use` and `max_staleness` are settings."
    ),
    "proportional": "The priorities are proportional: a share is `priority ** alpha` of all.",
    "own_law": "The draws of its sampler follow a law of their own: not uniform, not by priority.",
    "sequences": "`sample(size, sequence, ...)` gives stretches of rows that follow each other.",
    "episodes": "A row is an episode: a SampleBatch or a list of transitions, of any length.",
    "elastic": "Samples come from a window of the newest rows, which `update(envstep)` moves.",
    "parts": (
        "Made of parts as `NaiveReplayBuffer` is: `limiter` is a setting, `timeout_s` an argument "
        "of `push` and `sample`, and there are `add_remove_listener` and `stats`."
    ),
    "saves": "`save_data` and `load_data` serve the rows of the kit.",
}
"""The capabilities that a buffer may declare, and what each promises."""

BUFFER_BOOK: Final = RuleBook(collect(__name__), BUFFER_CAPABILITIES, BufferBench)
BUFFER_RULES: Final = BUFFER_BOOK.rules
"""All rules, ordered by number. The number of a removed rule is never used again."""
check_buffer_rule = BUFFER_BOOK.check_rule
check_buffer = BUFFER_BOOK.check
"""Check a replay buffer, including its parts, against every rule, as ``RuleBook.check``.

``make(cfg)`` returns a new buffer. The settings in ``cfg`` override those that you choose,
e.g. ``lambda cfg: MyBuffer({"storage": {"type": "mine"}, **cfg})``. They are
``replay_buffer_size`` and ``seed``, and the settings that the declared capabilities have.
"""


class BufferContract(Contract):
    """Contract tests of a replay buffer and its parts; see ``BUFFER_CAPABILITIES``.

    ``make_buffer(cfg)`` returns a new buffer with these settings.
    """

    book = BUFFER_BOOK
    maker = "make_buffer(cfg)"
