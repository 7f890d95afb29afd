"""Rules 21 to 30, and 59: seeds, states, saved rows and closing."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    BufferClosedError,
    CheckpointCorruptError,
    CheckpointMissingError,
    CheckpointVersionError,
)
from dingsdk.testing.buffer_rules.bench import (
    CAPACITY,
    BufferBench,
    Call,
    expect,
    expect_equal,
    raises,
    spoil,
    update_of,
)
from dingsdk.testing.expect import expect_same, leaves_nothing
from dingsdk.testing.runner import needs


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
        for buffer in (old, new):
            bench.push(buffer, 50, 51)
        expect_equal(bench.contents(new), bench.contents(old), "rows of the loaded state")
        for _ in range(8):
            batches = bench.sample(new, 2), bench.sample(old, 2)
            expect_same(*batches, "batches after the state was loaded")
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
    for key in state:
        lacking = {name: value for name, value in state.items() if name != key}
        with raises(f"a state without {key!r}", CheckpointVersionError, CheckpointCorruptError):
            buffer.load_state_dict(lacking)
    for key, value in state.items():
        if isinstance(value, Mapping) and value and key != "data":
            lacking_all = {**state, key: {}}
            with raises(f"an empty {key!r}", CheckpointVersionError, CheckpointCorruptError):
                buffer.load_state_dict(lacking_all)
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

    Saving does not change the buffer. Saving to the same folder again replaces the saved rows.
    """
    folder = str(bench.folder / "new" / "rows")
    for held in (3, CAPACITY + 2, CAPACITY + 3, 2):
        buffer = bench.buffer(*range(held))
        buffer.save_data(folder)
        bench.expect_contents(buffer, range(held), "after save_data()")
        rows = bench.contents(buffer)
        new = bench.buffer()
        new.load_data(folder)
        bench.expect_contents(new, rows, "after load_data()")
        expect_equal(new.push_count, len(rows), "push_count after load_data()")
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
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        # A flipped bit in a JSON file may be valid data, so JSON files are only cut.
        for damaged in (None if _is_json(content) else flipped, content[:middle], b""):
            if damaged is None:
                continue
            path.write_bytes(damaged)
            _expect_refused(buffer, folder, path.name)
        path.unlink()
        _expect_refused(buffer, folder, path.name)
        path.write_bytes(content)
    with raises("load_data() of an empty folder", CheckpointMissingError):
        buffer.load_data(str(bench.folder / "absent"))
    bench.expect_contents(buffer, [1, 2], "after refused files")
    buffer.load_data(str(folder))
    bench.expect_contents(buffer, range(CAPACITY), "after the files were put back")


@needs("saves")
def rule_59_loaded_rows_are_sampled_on(bench: BufferBench) -> None:
    """An empty buffer that loads a save of its own kind samples as the saved buffer does.

    Both have the same settings, except for the seed. After the same pushes they are still the same.
    """
    cfg: dict[str, Any] = {}
    if bench.has("elastic"):
        cfg["set_buffer_size"] = lambda envstep: CAPACITY if envstep else 1
    for held in (0, 3, CAPACITY, CAPACITY + 3):
        old, new = bench.buffer(*range(held), **cfg), bench.buffer(seed=9, **cfg)
        if held:
            _use(bench, old)
        folder = str(bench.folder / f"rows-{held}")
        old.save_data(folder)
        new.load_data(folder)
        if held:
            expect_equal(bench.draws(new), bench.draws(old), "batches after a save was loaded")
        for buffer in (old, new):
            bench.push(buffer, 50, 51)
            if bench.has("elastic"):
                buffer.update(7)
        expect_equal(bench.contents(new), bench.contents(old), "rows of the loaded save")
        expect_equal(bench.draws(new), bench.draws(old), "batches after later pushes")


def _use(bench: BufferBench, buffer: Any) -> None:
    """Change the state of a buffer, so that it differs from that of a new one."""
    if bench.has("elastic"):
        buffer.update(7)
    found = bench.sample(buffer, 2)
    if bench.has("priorities"):
        buffer.update(update_of(found, [4.0, 0.1]))


def _expect_refused(buffer: Any, folder: Path, name: str) -> None:
    kinds = (CheckpointCorruptError, CheckpointMissingError, CheckpointVersionError)
    with raises(f"load_data() with a damaged {name}", *kinds):
        buffer.load_data(str(folder))


def _as_batch(data: Any) -> Any:
    return data if isinstance(data, list) else SampleBatch(data)


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def rule_29_close_is_idempotent(bench: BufferBench) -> None:
    """``close`` may be called twice, from several threads, and before use; ``count`` is then 0.

    All other methods that read or write rows raise BufferClosedError; ``save_data`` makes no
    folder.
    """
    for held in (0, 3):
        buffer = bench.buffer(*range(held))
        for call in [Call(buffer.close, "close()") for _ in range(4)]:
            call.value(bench.patience_s)
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
    files = _entries()
    with leaves_nothing(0.0):
        for _ in range(2):
            threads = set(threading.enumerate())
            buffer = bench.buffer(*range(9))
            started = [each.name for each in threading.enumerate() if each not in threads]
            bench.draw(buffer, 2)
            buffer.close()
            expect_equal(started, [], "threads of a new buffer")
        del buffer
    expect_equal(sorted(_entries() - files), [], "new files in the working folder")


def _entries() -> set[str]:
    return {path.name for path in Path.cwd().iterdir()}
