"""Rows saved during a run: a buffer that loads them continues exactly like the saved one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import CheckpointCorruptError, SchemaMismatchError
from dingsdk.worker import AdvancedReplayBuffer
from dingsdk.worker.replay_buffer import NaiveReplayBuffer
from dingsdk.worker.replay_buffer.persistence import save
from dingsdk.worker.replay_buffer.sampler.uniform import UniformSampler
from tests.own_plugins import using

from .prioritized_rows import equal_states, facts, info, row
from .saved_rows import edit_state

# Loading into other buffers ---------------------------------------------------------------------


def numbered(buffer: Any) -> list[int]:
    data = buffer.state_dict()["data"]
    rows = data if isinstance(data, list) else SampleBatch(data)
    return [int(row["action"]) for row in rows]


def filled(cls: type[Any] = NaiveReplayBuffer, **cfg: Any) -> Any:
    buffer = cls({"replay_buffer_size": 8, "seed": 3, **cfg})
    for number in range(11):
        buffer.push(row(number), 0)
        buffer.sample(1, 0)
    return buffer


@pytest.mark.parametrize("cfg", [{"alpha": 0.5}, {"sampler": {"type": "rank"}}])
def test_another_sampler_gets_only_the_priorities(tmp_path: Path, cfg: dict[str, Any]) -> None:
    old = filled(AdvancedReplayBuffer)
    old.save_data(str(tmp_path))
    new = AdvancedReplayBuffer({"replay_buffer_size": 8, **cfg})
    new.load_data(str(tmp_path))
    assert numbered(new) == list(range(3, 11))
    assert new._contents.metadata.next_id == 8
    assert facts(new, "use") == {n: use + 1 for n, use in uses_of(old).items()}


@pytest.mark.parametrize("storage", ["array", "object"])
def test_each_row_keeps_its_own_priority_and_uses_over_several_segments(
    tmp_path: Path, storage: str
) -> None:
    old = filled(AdvancedReplayBuffer, storage={"type": storage})
    for number in range(8):
        old.update(info(old.sample(1, 0, slice(number, number + 1)), [float(number)]))
    save(tmp_path, old, segment_rows=2)
    new = AdvancedReplayBuffer({"replay_buffer_size": 6, "storage": {"type": storage}})
    new.load_data(str(tmp_path))
    assert uses_of(new) == {n: use for n, use in uses_of(old).items() if n >= 5}
    assert facts(new, "priority") == {n: pytest.approx(n - 3 + 1e-5) for n in range(5, 11)}


def uses_of(buffer: AdvancedReplayBuffer) -> dict[int, int]:
    where = buffer._contents.remover.oldest_first()
    uses = buffer.state_dict()["metadata"]["use"][where]
    return dict(zip(numbered(buffer), uses.tolist(), strict=True))


def test_a_cleared_buffer_continues_and_adds_to_its_push_count(tmp_path: Path) -> None:
    old, new = filled(AdvancedReplayBuffer), filled(AdvancedReplayBuffer)
    old.save_data(str(tmp_path))
    new.clear()
    new.load_data(str(tmp_path))
    assert (new.push_count, new.stats().pushed) == (11 + 8, 11 + 8)
    assert old.sample(4, 0) == new.sample(4, 0)


def test_rows_pushed_during_a_load_stay(tmp_path: Path) -> None:
    class Busy(NaiveReplayBuffer):
        """Pushes a row while a loaded state is prepared."""

        has_pushed = False

        def _new_storage(self, kind: str | None = None) -> Any:
            if not self.has_pushed:
                self.has_pushed = True
                self.push(row(99), 0)
            return super()._new_storage(kind)

    filled().save_data(str(tmp_path))
    new = Busy({"replay_buffer_size": 9})
    ring = {"tail": 8, "valid_count": 8}
    edit_state(tmp_path, lambda rest: rest["state"].update(capacity=9, tail=8, remover=ring))
    new.load_data(str(tmp_path))
    assert numbered(new) == [99, *range(3, 11)]


def test_saved_rows_that_the_storage_refuses_change_nothing(tmp_path: Path) -> None:
    filled().save_data(str(tmp_path / "saved"))
    for kind in ("array", "memmap"):
        storage: dict[str, Any] = {"type": kind, "next_of": "other"}
        if kind == "memmap":
            storage["path"] = str(tmp_path / "rows")
        with NaiveReplayBuffer({"replay_buffer_size": 8, "storage": storage}) as new:
            with pytest.raises(SchemaMismatchError):
                new.load_data(str(tmp_path / "saved"))
            assert new.count() == 0
            new.push({"other": 1.0, "next_other": 2.0}, 0)
            assert new.sample(1, 0) is not None


def test_files_of_loaded_rows_are_deleted_when_the_rows_leave(tmp_path: Path) -> None:
    cfg = {
        "replay_buffer_size": 8,
        "enable_track_used_data": True,
        "data_root": str(tmp_path),
        "max_use": 2,
    }
    old = AdvancedReplayBuffer({**cfg, "enable_track_used_data": False})
    old.push([{"x": n, "data_id": n // 2} for n in range(8)], 0)
    for age in (0, 0, 1, 2, 3, 3):  # rows 0 and 4 leave, 2 and 3 were used once
        old.sample(1, 0, slice(age, age + 1))
    old.save_data(str(tmp_path / "saved"))
    assert old.count() == 6
    for max_use in (2, 1):
        for data_id in range(4):
            (tmp_path / str(data_id)).touch()
        with AdvancedReplayBuffer({**cfg, "max_use": max_use}) as new:
            new.load_data(str(tmp_path / "saved"))
            assert new.stats().used_up == (2 if max_use == 2 else 4)
            assert all((tmp_path / str(n)).exists() for n in range(4))
            new.push([{"x": n, "data_id": 9} for n in range(8)], 0)
            # Rows 2 and 3, which name file 1, are used up in a buffer with max_use 1.
            left = {n for n in range(4) if (tmp_path / str(n)).exists()}
            assert left == ({1} if max_use == 1 else set())
        assert not (tmp_path / "1").exists()


# Altered states ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda rest: rest["state"].update(tail=9),
        lambda rest: rest["state"].update(beta=2.0),
        lambda rest: rest["state"].update(sampler=5),
        lambda rest: rest["state"].pop("beta"),
        lambda rest: rest["state"]["metadata"].popitem(),
        lambda rest: rest.update(state=5),
        lambda rest: rest.pop("facts"),
        lambda rest: rest.update(facts={"use": np.zeros(3, np.int64)}),
    ],
)
def test_an_altered_state_is_refused_and_nothing_changes(
    tmp_path: Path, change: Callable[[Any], Any]
) -> None:
    filled(AdvancedReplayBuffer).save_data(str(tmp_path))
    edit_state(tmp_path, change)
    new = AdvancedReplayBuffer({"replay_buffer_size": 8, "seed": 1})
    before = new.state_dict()
    with pytest.raises(CheckpointCorruptError):
        new.load_data(str(tmp_path))
    assert equal_states(new.state_dict(), before)


class Odd(UniformSampler):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "odd": object()}


def test_a_state_that_cannot_be_saved_raises_and_the_old_rows_stay(tmp_path: Path) -> None:
    filled().save_data(str(tmp_path))
    before = sorted(path.name for path in tmp_path.iterdir())
    with using(samplers={"odd": Odd}):
        odd = filled(sampler={"type": "odd"})
        with pytest.raises(SchemaMismatchError) as caught:
            odd.save_data(str(tmp_path))
    assert caught.value.key == "state.sampler.odd"
    assert sorted(path.name for path in tmp_path.iterdir()) == before
