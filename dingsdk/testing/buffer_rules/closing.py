"""Rules 28 to 30: what a buffer takes from the process, and gives back."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

from dingsdk.errors import BufferClosedError
from dingsdk.testing.buffer_bench import BufferBench, Call, expect, expect_equal, raises


def rule_28_constructor_makes_nothing(bench: BufferBench) -> None:
    """Making a buffer makes no file, no folder and no thread; neither does using it."""
    threads, files = set(threading.enumerate()), _entries()
    buffer = bench.buffer()
    started = [each.name for each in threading.enumerate() if each not in threads]
    expect_equal(started, [], "threads of a new buffer")
    expect_equal(sorted(_entries() - files), [], "files in the working folder of a new buffer")
    bench.push(buffer, 1, 2)
    bench.draw(buffer, 1)
    expect_equal(sorted(_entries() - files), [], "files in the working folder after a push")


def rule_29_close_is_idempotent(bench: BufferBench) -> None:
    """``close`` may be called twice, from many threads, and before use; ``count`` is then 0.

    Whatever else reads or writes rows raises BufferClosedError, and saving leaves no folder.
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


def rule_30_close_gives_everything_back(bench: BufferBench) -> None:
    """After its close a buffer leaves no thread and no open file."""
    bench.buffer(1).close()  # what is set up once a process is set up now
    threads, files = set(threading.enumerate()), _open_files()
    for _ in range(2):
        buffer = bench.buffer(*range(9))
        bench.draw(buffer, 2)
        buffer.close()
    left = [each.name for each in threading.enumerate() if each not in threads]
    expect_equal(left, [], "threads left")
    del buffer
    gc.collect()
    expect(_open_files() <= files, f"{_open_files() - files} open files left")


def _entries() -> set[str]:
    return {path.name for path in Path.cwd().iterdir()}


def _open_files() -> int:
    # Where the system does not list them, there is nothing to compare.
    folder = Path("/proc/self/fd")
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
