"""Demonstrations beside a table: their share of each batch, priorities, and saved states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    BufferClosedError,
    CheckpointCorruptError,
    InvalidPriorityError,
    RunFolderError,
    SchemaMismatchError,
)
from dingsdk.worker import create_buffer
from dingsdk.worker.replay_buffer.demonstrations import STATE_NAME, TableWithDemonstrations

SHOWN = -1.0
"""The reward of demonstrations."""


def rows(numbers: Any, reward: float = 1.0) -> SampleBatch:
    """Return a row for each number."""
    obs = np.asarray(numbers, np.float32)
    return SampleBatch({"obs": obs, "reward": np.full(len(obs), reward, np.float32)})


def made(
    kind: str = "naive", *, size: int = 8, shown: int = 5, share: float = 0.25, **cfg: Any
) -> Any:
    """Return an empty table beside ``shown`` demonstrations, with the numbers 1000, 1001, ..."""
    section = {"type": kind, "seed": 0, **cfg}
    online: Any = create_buffer({**section, "replay_buffer_size": size})
    demonstrations: Any = create_buffer({**section, "replay_buffer_size": shown, "seed": 1})
    demonstrations.push(rows(range(1000, 1000 + shown), SHOWN), 0)
    return TableWithDemonstrations(online, demonstrations, share, "shown.npz")


KINDS: dict[str, dict[str, Any]] = {
    "naive": {"kind": "naive"},
    "elastic": {"kind": "elastic", "set_buffer_size": 6},
    "advanced": {"kind": "advanced"},
    "rank": {"kind": "advanced", "sampler": {"type": "rank"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_has_the_share_after_the_online_rows_were_replaced_often(kind: str) -> None:
    buffer, seen = made(**KINDS[kind]), set[float]()
    for number in range(60):
        buffer.push(rows(range(4 * number, 4 * number + 4)), 4 * number + 4)
        # 0.25 of 6 is 1.5, and halves are rounded to even numbers.
        for size, wanted in ((4, 1), (5, 1), (6, 2)):
            columns = buffer.sample(size, number).columns
            is_shown = columns["reward"] == SHOWN
            assert is_shown.tolist() == [False] * (size - wanted) + [True] * wanted
            seen.update(columns["obs"][is_shown].tolist())
            assert columns["obs"][~is_shown].min() >= 4 * number + 4 - 8
    assert seen == {1000.0, 1001.0, 1002.0, 1003.0, 1004.0}
    assert (buffer.count(), buffer.push_count) == (8, 240)
    assert buffer.demonstrations.stats().left == 0


def test_demonstrations_are_drawn_only_with_collected_rows() -> None:
    buffer = made(size=8, shown=4, share=0.5)
    assert buffer.sample(4, 0) is None
    buffer.push(rows([1]), 1)
    assert not buffer.can_sample(4)
    assert buffer.sample(4, 0) is None
    buffer.push(rows([2]), 2)
    assert buffer.can_sample(4)
    assert len(buffer.sample(4, 0)) == 4
    assert buffer.sample(0, 0) == []
    assert buffer.demonstrations.stats().sampled == 2


def prioritized(**cfg: Any) -> Any:
    buffer = made("advanced", share=0.5, shown=3, alpha=1.0, beta=1.0, anneal_step=0, **cfg)
    buffer.push(rows([0, 1]), 2)
    return buffer


def priorities(table: Any) -> list[float]:
    found: list[float] = table.state_dict()["sampler"]["priorities"].tolist()
    return found


def set_priorities(buffer: Any, **by_number: float) -> None:
    """Set the priorities of rows by their numbers, in one update."""
    wanted = {float(name[1:]): value for name, value in by_number.items()}
    found: dict[float, tuple[int, int]] = {}
    while found.keys() != wanted.keys():
        columns = buffer.sample(4, 0).columns
        names = ("obs", "replay_unique_id", "replay_buffer_idx")
        for number, *place in zip(*(columns[name].tolist() for name in names), strict=True):
            if number in wanted:
                found[number] = tuple(place)
    # The least priority is added to each.
    buffer.update(
        {
            "priority": [wanted[number] - 1e-5 for number in found],
            "replay_unique_id": [place[0] for place in found.values()],
            "replay_buffer_idx": [place[1] for place in found.values()],
        }
    )


def test_demonstrations_have_ids_below_zero_and_no_staleness() -> None:
    buffer = prioritized()
    columns = buffer.sample(4, 5).columns
    is_shown = columns["reward"] == SHOWN
    assert (columns["replay_unique_id"] < 0).tolist() == is_shown.tolist()
    assert (columns["replay_unique_id"] == -1 - (columns["obs"] - 1000))[is_shown].all()
    assert (columns["staleness"][is_shown] == -1).all()
    assert (columns["use"] >= 1).all()


def test_importance_weights_correct_each_draw() -> None:
    buffer = prioritized()
    set_priorities(buffer, n0=1.0, n1=3.0, n1000=1.0, n1001=1.0, n1002=1.0)
    # 1 / (N * probability), divided by the largest of the table.
    wanted = {0.0: 1.0, 1.0: 1 / 3, 1000.0: 1.0, 1001.0: 1.0, 1002.0: 1.0}
    seen = set[float]()
    for _ in range(20):
        columns = buffer.sample(4, 0).columns
        for number, weight in zip(columns["obs"].tolist(), columns["IS"].tolist(), strict=True):
            assert weight == pytest.approx(wanted[number], rel=1e-4)
            seen.add(number)
    assert seen == wanted.keys()
    set_priorities(buffer, n0=1e300, n1001=1e-5)
    for _ in range(20):
        weights = buffer.sample(4, 0).columns["IS"]
        assert np.isfinite(weights).all()
        assert (weights <= 1).all()


def test_update_refuses_what_a_prioritized_buffer_refuses() -> None:
    buffer = prioritized()
    batch = buffer.sample(4, 0)
    before = priorities(buffer.online), priorities(buffer.demonstrations)
    info = {name: batch.columns[name] for name in ("replay_unique_id", "replay_buffer_idx")}
    for wrong in ({"priority": [1.0]}, {"priority": [np.nan] * 4}, {"priority": [-1.0] * 4}):
        with pytest.raises(InvalidPriorityError):
            buffer.update({**info, **wrong})
    with pytest.raises(InvalidPriorityError, match="replay_buffer_idx"):
        buffer.update({"priority": [9.0] * 4, "replay_unique_id": info["replay_unique_id"]})
    buffer.update(info)  # without priorities nothing happens
    assert (priorities(buffer.online), priorities(buffer.demonstrations)) == before


def test_uniform_buffers_ignore_priorities_and_take_env_steps() -> None:
    buffer = made("elastic", set_buffer_size={"start": 2, "end": 8, "env_steps": 10})
    buffer.push(rows(range(8)), 8)
    buffer.sample(4, 0)
    buffer.update({"priority": [1.0], "replay_unique_id": [None], "replay_buffer_idx": [None]})
    buffer.update(10)
    assert buffer.window == 8


@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_a_saved_buffer_continues_with_the_same_batches(tmp_path: Path, kind: str) -> None:
    def trained(buffer: Any, first: int, last: int) -> list[SampleBatch]:
        found = []
        for number in range(first, last):
            buffer.push(rows([number]), number)
            batch = buffer.sample(6, number)
            found.append(batch)
            if batch is not None and "IS" in batch.columns:
                names = ("replay_unique_id", "replay_buffer_idx")
                info = {name: batch.columns[name] for name in names}
                buffer.update({**info, "priority": np.arange(6) + 0.5 * number})
        return found

    buffer = made(kind, share=0.5)
    trained(buffer, 0, 20)
    buffer.save_data(str(tmp_path / "saved"))
    other = made(kind, share=0.5)
    other.resume_data(str(tmp_path / "saved"))
    wanted = trained(buffer, 20, 60)
    assert wanted[-1] is not None
    assert trained(other, 20, 60) == wanted


def test_a_save_with_a_damaged_or_missing_state_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    buffer = made()
    buffer.push(rows(range(8)), 8)
    buffer.save_data(folder)
    other = made()
    path = tmp_path / "saved" / STATE_NAME
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointCorruptError):
        other.resume_data(folder)
    path.unlink()
    with pytest.raises(CheckpointCorruptError, match="it is missing"):
        other.resume_data(folder)
    absent = tmp_path / "absent"
    with pytest.raises(RunFolderError):
        other.resume_data(str(absent))
    assert not absent.exists()


def test_demonstrations_with_other_columns_than_collected_rows_are_an_error() -> None:
    buffer = made()
    wrong = rows(range(8)).with_columns(reward=np.zeros(8, np.float64))
    buffer.push(wrong, 8)
    with pytest.raises(SchemaMismatchError, match=r"demonstrations of shown\.npz .*'reward'"):
        buffer.sample(4, 0)


def test_close_closes_both_tables() -> None:
    buffer = made()
    buffer.close()
    buffer.close()
    for table in (buffer.online, buffer.demonstrations):
        with pytest.raises(BufferClosedError):
            table.push(rows([1]), 1)
