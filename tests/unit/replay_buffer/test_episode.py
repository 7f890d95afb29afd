"""The episode buffer: its elements are whole episodes."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    SchemaMismatchError,
    StorageFullError,
)
from dingsdk.worker.replay_buffer import EpisodeReplayBuffer
from dingsdk.worker.replay_buffer.persistence import save

from .saved_rows import edit, manifest_of, replace_frame

CAPACITY = 6
_WIDTH = 2100
"""Length of an observation; large enough for rows of two pages."""


def episode_of(number: int) -> SampleBatch:
    """Return episode ``number``; its length, 1 to 40, depends on the number."""
    steps = np.arange(2 + number * 7 % 40)
    obs = np.repeat((1000 * number + steps).astype(np.float32)[:, None], _WIDTH, axis=1)
    return SampleBatch({"obs": obs[:-1], "next_obs": obs[1:], "id": 1000 * number + steps[:-1]})


def episode(first: int, length: int) -> list[dict[str, Any]]:
    return [{"x": first + i, "obs": {"a": np.full(2, i, np.float32)}} for i in range(length)]


def make(capacity: int = 4, **cfg: Any) -> EpisodeReplayBuffer:
    return EpisodeReplayBuffer({"replay_buffer_size": capacity, "seed": 0, **cfg})


def test_rows_that_are_not_dicts_of_numbers_stay_a_list() -> None:
    buffer = make()
    buffer.push([["step one", "step two"], [{"text": "a"}]], 0)
    assert buffer.episode_len == [2, 1]
    found = buffer.sample(2, 0)
    assert found is not None
    assert sorted(map(len, found)) == [1, 2]
    assert ["step one", "step two"] in found


@pytest.mark.parametrize("kind", ["array", "memmap"])
def test_a_refused_first_push_does_not_set_the_columns(tmp_path: Path, kind: str) -> None:
    place = {"path": str(tmp_path / "rows")} if kind == "memmap" else {}
    buffer = make(storage={"type": kind, **place})
    other = [{"x": np.zeros(2, np.float32)}] * 2
    with pytest.raises(SchemaMismatchError):
        buffer.push([episode(0, 3), other], 0)
    assert buffer.episode_len == []
    buffer.push([other], 0)
    assert buffer.episode_len == [2]
    with pytest.raises(SchemaMismatchError):
        buffer.push([other, episode(0, 3)], 0)
    assert buffer.episode_len == [2]
    buffer.close()


def test_one_episode_pushed_without_a_list_around_it_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match=r"push\(\[episode\]"):
        make().push(episode(0, 3), 3)


def many(start: int, n: int) -> list[SampleBatch]:
    return [SampleBatch.from_rows(episode(100 * i, 1 + i % 5)) for i in range(start, start + n)]


def test_episodes_in_columns_are_loaded_by_any_storage(tmp_path: Path) -> None:
    buffer = make(20)
    buffer.push(many(0, 27), 0)
    buffer.save_data(str(tmp_path))
    for other in (make(20), make(20, storage={"type": "object"}), make(9)):
        other.load_data(str(tmp_path))
        assert held(other) == held(buffer)[-other.replay_buffer_size :]


def test_longer_episodes_are_saved_in_segments_of_fewer_episodes(tmp_path: Path) -> None:
    buffer = make(64)
    buffer.push(many(0, 32), 0)
    save(tmp_path, buffer, 1024)
    manifest = manifest_of(tmp_path)
    assert (manifest["rows_each"], len(manifest["segments"])) == (1024, 1)
    long = SampleBatch({"x": np.arange(2 << 16), "obs": {"a": np.zeros((2 << 16, 2), "f4")}})
    buffer.push([long] * 32, 0)
    save(tmp_path, buffer, 1024)
    manifest = manifest_of(tmp_path)
    assert manifest["rows_each"] <= 16
    assert len(manifest["segments"]) >= 4
    other = make(64)
    other.load_data(str(tmp_path))
    assert other.episode_len == buffer.episode_len


@pytest.mark.parametrize("wrong", [SampleBatch({"x": np.zeros(0)}), [], 5, {"x": 1}])
def test_saved_rows_that_are_not_episodes_are_refused(tmp_path: Path, wrong: Any) -> None:
    buffer = make(6)
    buffer.push(many(0, 6), 0)
    buffer.save_data(str(tmp_path))
    rows = [*many(0, 5), wrong]
    entry = manifest_of(tmp_path)["segments"][0]
    replace_frame(tmp_path, entry, "replay-rows", rows)
    edit(tmp_path, lambda found: found["segments"].__setitem__(0, entry))
    for other in (buffer, make(6)):
        count = other.count()
        with pytest.raises(SchemaMismatchError):
            other.load_data(str(tmp_path))
        assert other.count() == count


def test_the_first_push_chooses_the_storage_for_auto() -> None:
    columns, objects = make(), make()
    columns.push([episode(0, 2), SampleBatch.from_rows(episode(5, 3))], 0)
    assert columns.state_dict()["storage"] == "array"
    with pytest.raises(SchemaMismatchError, match="obs"):
        columns.push([episode(0, 2), [{"x": 1}]], 0)
    assert columns.episode_len == [2, 3]
    objects.push([episode(0, 2), ["text"]], 0)
    assert objects.state_dict()["storage"] == "object"
    for buffer in (columns, objects):
        other = make()
        other.load_state_dict(buffer.state_dict())
        other.push([episode(0, 4)], 0)
        buffer.push([episode(0, 4)], 0)
        assert other.sample(3, 0) == buffer.sample(3, 0)
        assert other.state_dict()["storage"] == buffer.state_dict()["storage"]


STORAGES: list[Any] = [
    pytest.param({"type": "array"}, id="array"),
    pytest.param({"type": "array", "next_of": "obs"}, id="array-next_of"),
    pytest.param({"type": "memmap"}, id="memmap"),
    pytest.param({"type": "memmap", "next_of": "obs"}, id="memmap-next_of"),
]


def opened(path: Path, storage: dict[str, Any], **cfg: Any) -> EpisodeReplayBuffer:
    if storage["type"] == "memmap":
        storage = {**storage, "path": str(path)}
    return make(CAPACITY, storage=storage, **cfg)


def held(buffer: EpisodeReplayBuffer) -> list[SampleBatch]:
    ages = [slice(age, age + 1) for age in range(buffer.count())]
    return [each for age in ages for each in buffer.sample(1, 0, age) or []]


@pytest.mark.parametrize("storage", STORAGES)
def test_columns_grow_with_the_episodes(tmp_path: Path, storage: dict[str, Any]) -> None:
    with opened(tmp_path / "rows", storage) as buffer:
        for first in range(0, 60, 4):
            buffer.push([episode_of(first)], 0)
            buffer.push([episode_of(first + n) for n in range(1, 4)], 0)
            newest = first + 4
            expected = [episode_of(n) for n in range(max(0, newest - CAPACITY), newest)]
            assert held(buffer) == expected
            assert buffer.episode_len == [len(each) for each in expected]
        buffer.push([episode_of(n) for n in range(60, 70)], 0)
        assert held(buffer) == [episode_of(n) for n in range(70 - CAPACITY, 70)]


def test_rows_of_episodes_that_left_are_used_again() -> None:
    buffer: Any = make(CAPACITY)
    capacities = set()
    for first in range(0, 40 * CAPACITY, 4):
        buffer.push([episode(n, 3) for n in range(first, first + 4)], 0)
        capacities.add(buffer._storage._rows.capacity)
    assert capacities == {64}  # the least: more than the rows that are held, and those of a push


@pytest.mark.parametrize("storage", STORAGES[2:])
def test_an_episode_that_the_disk_cannot_hold_leaves_the_others(
    tmp_path: Path, storage: dict[str, Any]
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(tmp_path / "rows", storage) as buffer:
        for n in range(4):
            buffer.push([episode_of(n)], 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, limits[1]))
        try:
            with pytest.raises(StorageFullError):
                buffer.push([SampleBatch.concat([episode_of(n)] * 40)], 0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert held(buffer) == [episode_of(n) for n in range(4)]
        for n in range(4, 30):
            buffer.push([episode_of(n)], 0)
        assert held(buffer) == [episode_of(n) for n in range(30 - CAPACITY, 30)]
