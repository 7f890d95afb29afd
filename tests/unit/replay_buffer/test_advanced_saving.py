"""The prioritized buffer: metadata of its rows when they are saved, loaded or reopened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.worker.replay_buffer import (
    AdvancedReplayBuffer,
    persistence,
)
from dingsdk.worker.replay_buffer.storage import Where

from .prioritized_rows import batch, column, equal_states, facts, info, make_buffer
from .sampling_process import CAPACITY, buffer_in, numbers_in


def numbered(first: int, n: int) -> SampleBatch:
    return SampleBatch({"id": np.arange(first, first + n)})


def test_loaded_rows_above_max_use_of_the_buffer_leave(tmp_path: Path) -> None:
    old, new = make_buffer(), make_buffer(replay_buffer_size=3, max_use=2)
    old.push(batch(*range(6)), 0)
    for age in (1, 4, 4, 5, 5, 5):
        old.sample(1, 0, slice(age, age + 1))
    old.save_data(str(tmp_path / "rows"))
    left: list[Any] = []
    new.add_remove_listener(lambda rows, reason: left.append((column(rows, "action"), reason)))
    new.load_data(str(tmp_path / "rows"))
    assert left == [([0, 1, 2], "overwritten"), ([4, 5], "used_up")]
    assert (new.count(), new.push_count) == (1, 6)
    assert facts(new, "use") == {3: 1}


def test_reopened_rows_leave_once_they_are_stale(tmp_path: Path) -> None:
    storage: dict[str, Any] = {"type": "memmap", "path": str(tmp_path / "rows")}
    cfg = {"replay_buffer_size": 2, "max_staleness": 3}
    with make_buffer(storage=storage, **cfg) as buffer:
        for number in range(5):  # 3 and 4 remain, with ids that are not 0 and 1
            buffer.push(batch(number, collect_iter=np.array([number])), 0)
    with make_buffer(storage={**storage, "reopen": True}, **cfg) as buffer:
        sample = buffer.sample(2, 5)
        assert set(column(sample, "action")) == {3, 4}
        assert column(sample, "replay_unique_id") == column(sample, "action")
        assert column(buffer.sample(1, 6), "action") == [4]
        assert buffer.count() == 1
        assert buffer.sample(1, 7) is None
        assert buffer.count() == 0


@pytest.mark.parametrize("is_loaded", [False, True])
def test_uses_of_reopened_rows_begin_at_zero_without_max_use(
    tmp_path: Path, is_loaded: bool
) -> None:
    storage: dict[str, Any] = {"type": "memmap", "path": str(tmp_path / "rows")}
    with make_buffer(storage=storage, max_staleness=3) as buffer:
        buffer.push(batch(0), 0)
        assert column(buffer.sample(1, 0), "use") == [1]
        state = buffer.state_dict()
        if is_loaded:
            buffer.load_state_dict(state)
            assert column(buffer.sample(1, 0), "use") == [2]
    with make_buffer(storage={**storage, "reopen": True}, max_staleness=3) as buffer:
        assert column(buffer.sample(1, 0), "use") == [1]


@pytest.mark.parametrize("cut", [0, 3])
def test_reopening_keeps_use_counts_and_removed_rows_stay_removed(tmp_path: Path, cut: int) -> None:
    folder = tmp_path / "rows"
    with buffer_in(folder) as buffer:
        for start in (0, 200):
            buffer.push(numbered(start, 200), 0)  # 100 to 399 remain
        for age in (20, 7, 7, 250, 1, 250, 1):
            buffer.sample(1, 0, slice(age, age + 1))
        expected = [*range(100, 400)]
        for number in (107, 351, 101):
            expected.remove(number)
        assert numbers_in(buffer) == expected
        if cut:
            # A push without a commit replaces the oldest rows; marks of the others stay.
            store: Any = buffer._storage
            where, _ = buffer._remover.allot(cut)
            store.put(where, store.accept(numbered(400, cut)))
            expected = [number for number in expected if number >= 100 + cut]
    with buffer_in(folder) as buffer:
        assert numbers_in(buffer) == expected
        stats = buffer.stats()
        assert stats.pushed == stats.left + stats.count
        age = expected.index(120)
        assert column(buffer.sample(1, 0, slice(age, age + 1)), "use") == [2]
        expected.remove(120)
        assert numbers_in(buffer) == expected
        state = buffer.state_dict()
        buffer.clear()
        buffer.push(numbered(1000, 5), 0)
        buffer.load_state_dict(state)
    with buffer_in(folder) as buffer:
        assert numbers_in(buffer) == expected
        buffer.push(numbered(1000, 300), 0)
        assert numbers_in(buffer) == [*range(1000, 1300)]


def test_used_up_rows_stay_removed_in_a_buffer_without_limits(tmp_path: Path) -> None:
    storage: dict[str, Any] = {"type": "memmap", "path": str(tmp_path / "rows")}
    with make_buffer(storage=storage, max_use=1) as buffer:
        buffer.push(batch(*range(8)), 0)
        buffer.sample(1, 0, slice(2, 3))
    storage["reopen"] = True
    for cfg in ({}, {"max_use": 5}):
        with make_buffer(storage=storage, **cfg) as buffer:
            assert buffer.count() == 7


def test_rows_that_a_killed_process_used_up_stay_removed(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    command = [sys.executable, str(Path(__file__).parent / "sampling_process.py"), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        told = [child.stdout.readline() for _ in range(60)]
        child.send_signal(signal.SIGKILL)
        told += child.stdout.readlines()
    uses: dict[int, int] = {}
    for line in told:
        if line.endswith(b"\n"):
            uses |= {int(number): use for number, use in json.loads(line).items()}
    with buffer_in(folder) as buffer:
        left = set(numbers_in(buffer))
        newest = max(left)
        assert buffer.push_count >= newest >= 60 * 7 - 10
        known = {n: use for n, use in uses.items() if n > newest - CAPACITY + 7}
        gone = {number for number, use in known.items() if use >= 2}
        assert len(gone) > 2
        assert not gone & left
        # The output may lack the last sample.
        missing = set(range(newest - CAPACITY + 8, newest)) - left - gone
        assert len(missing) <= 4
        metadata: Any = buffer._metadata
        where = metadata.living(buffer._remover.oldest_first())
        pairs = zip(numbers_in(buffer), metadata.uses(where).tolist(), strict=True)
        wrong = {number for number, use in pairs if use != uses.get(number, 0)}
        assert len(wrong) <= 4


class Disturbed(AdvancedReplayBuffer):
    """A buffer that is changed before each snapshot.

    Attributes:
        meddle: Changes the buffer; None for no change.
    """

    meddle: Callable[[], None] | None = None

    @contextmanager
    def snapshot(self) -> Iterator[persistence.Snapshot]:
        if self.meddle is not None:
            self.meddle()
        with super().snapshot() as now:
            yield now


@pytest.mark.parametrize("sampler", ["proportional", "rank"])
@pytest.mark.parametrize("limits", [{}, {"max_use": 2}, {"max_staleness": 3}])
def test_saved_state_is_that_of_the_last_snapshot_despite_changes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sampler: str,
    limits: dict[str, Any],
) -> None:
    monkeypatch.setattr(persistence, "_CHANGES_LEFT", 3)
    cfg = {"replay_buffer_size": 100, "sampler": {"type": sampler}, **limits}
    buffer, rng = Disturbed({**cfg, "seed": 0}), np.random.default_rng(0)
    looks, sampled = 0, list[dict[str, Any]]()
    copy = persistence.ColumnCopy._copy

    def copy_beside_others(self: persistence.ColumnCopy, where: Where) -> None:
        copy(self, where)
        if not buffer._lock.locked():
            meddle()

    monkeypatch.setattr(persistence.ColumnCopy, "_copy", copy_beside_others)

    def meddle() -> None:
        nonlocal looks
        looks += 1
        if looks > 20:
            buffer.update(sampled[-20])
        buffer.push(batch(*range(looks, looks + 3), collect_iter=np.full(3, looks)), 0)
        sample = buffer.sample(2, looks)
        assert isinstance(sample, SampleBatch)
        sampled.append(info(sample, rng.random(2)))
        sample.columns["replay_buffer_idx"][:] = -1  # the sample is a copy

    for _ in range(40):
        meddle()
    for number in range(3):
        buffer.meddle = meddle
        persistence.save(tmp_path, buffer, 64)
        buffer.meddle = None
        new = AdvancedReplayBuffer({**cfg, "seed": 1})
        new.resume_data(str(tmp_path))
        assert equal_states(new.state_dict(), buffer.state_dict()), number
        assert not buffer._copies
    assert looks >= 40 + 3 * 6
