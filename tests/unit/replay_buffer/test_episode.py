"""The episode buffer: its elements are whole episodes."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointVersionError,
    ConfigError,
    SchemaMismatchError,
    StorageFullError,
)
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.worker.replay_buffer import EpisodeReplayBuffer, NaiveReplayBuffer
from dingsdk.worker.replay_buffer.persistence import save
from dingsdk.worker.replay_buffer.remover import FifoRemover
from dingsdk.worker.replay_buffer.storage import memmap

from .pushing_episodes import CAPACITY, episode_of
from .saved_rows import edit, manifest_of, replace_frame


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


def test_numbers_in_dicts_are_converted_and_columns_are_not() -> None:
    buffer = make()
    buffer.push([[{"reward": 0.5}]], 0)
    buffer.push([[{"reward": 1}, {"reward": 2}]], 0)
    newest = buffer.sample(1, 0, sample_range=slice(-1, None))
    assert newest is not None
    assert newest[0].columns["reward"].tolist() == [1.0, 2.0]
    with pytest.raises(SchemaMismatchError, match="reward"):
        buffer.push([SampleBatch({"reward": np.array([1])})], 0)


STORAGES: list[Any] = [
    pytest.param({"type": "array"}, id="array"),
    pytest.param({"type": "array", "next_of": "obs"}, id="array-next_of"),
    pytest.param({"type": "memmap"}, id="memmap"),
    pytest.param({"type": "memmap", "next_of": "obs"}, id="memmap-next_of"),
]


def opened(path: Path, storage: dict[str, Any], **cfg: Any) -> EpisodeReplayBuffer:
    if storage["type"] == "memmap":
        storage = {**storage, "path": str(path), "reopen": (path / "header.json").exists()}
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


def test_disk_space_is_reserved_for_all_episodes_of_a_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memmap, "_STEP_BYTES", 0)
    with opened(tmp_path / "rows", {"type": "memmap"}) as buffer:
        table: Any = buffer
        episodes = [episode_of(number) for number in range(5)]
        storage = table._new_storage()
        storage.accept(episodes)
        assert storage._rows._n_reserved >= sum(map(len, episodes)) > max(map(len, episodes))
        storage.close()


def test_the_error_for_an_array_in_place_of_an_episode_is_one_line() -> None:
    buffer = EpisodeReplayBuffer({"replay_buffer_size": 3})
    with pytest.raises(SchemaMismatchError, match="found ndarray") as caught:
        buffer.push([np.zeros((3, 40))], 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("storage", STORAGES[2:])
def test_an_interrupted_first_push_leaves_no_episodes(
    tmp_path: Path, storage: dict[str, Any]
) -> None:
    with opened(tmp_path / "rows", storage) as buffer:
        table: Any = buffer
        episodes = table._new_storage()
        episodes.put(slice(0, 2), episodes.accept([episode_of(70), episode_of(71)]))
        episodes.close()
    with opened(tmp_path / "rows", storage) as buffer:
        assert buffer.count() == 0
        # Longer than all rows that space was reserved for.
        expected = [SampleBatch.concat([episode_of(n) for n in range(20)])]
        buffer.push(expected, 0)
        assert held(buffer) == expected


@pytest.mark.parametrize("storage", STORAGES[2:])
def test_a_buffer_on_disk_is_reopened_with_its_episodes(
    tmp_path: Path, storage: dict[str, Any]
) -> None:
    pushed = 0
    for pushes in (3, 1, 20, 0, 40):
        with opened(tmp_path / "rows", storage) as buffer:
            expected = [episode_of(n) for n in range(max(0, pushed - CAPACITY), pushed)]
            assert held(buffer) == expected
            assert buffer.push_count == pushed
            for n in range(pushed, pushed + pushes):
                buffer.push([episode_of(n)], 0)
            pushed += pushes
            state = buffer.state_dict()
    with opened(tmp_path / "rows", storage) as buffer:
        buffer.clear()
        buffer.push([[{"obs": 1, "next_obs": 2}] * 3], 0)
        buffer.load_state_dict(state)
        expected = [episode_of(n) for n in range(pushed - CAPACITY, pushed)]
        assert held(buffer) == expected
    with opened(tmp_path / "rows", storage) as buffer:
        assert held(buffer) == expected


@pytest.mark.parametrize("left", [1, 3], ids="{} left".format)  # with 1, into the first rows
@pytest.mark.parametrize("storage", STORAGES[2:])
def test_an_interrupted_push_leaves_the_earlier_episodes(
    tmp_path: Path, storage: dict[str, Any], left: int
) -> None:
    with opened(tmp_path / "rows", storage) as buffer:
        for n in range(CAPACITY + left):
            buffer.push([episode_of(n)], 0)
        store = buffer._storage
        assert store is not None
        # All steps of a push except the last one, the commit.
        where = (left + np.arange(3)) % CAPACITY
        store.put(where, store.accept([episode_of(n) for n in range(90, 93)]))
    for first in (left, left + 2):
        with opened(tmp_path / "rows", storage) as buffer:
            assert held(buffer) == [episode_of(n) for n in range(first, first + CAPACITY)]
            buffer.push([episode_of(first + CAPACITY), episode_of(first + CAPACITY + 1)], 0)


@pytest.mark.parametrize("storage", STORAGES[2:])
def test_episodes_of_a_killed_process_are_recovered(
    tmp_path: Path, storage: dict[str, Any]
) -> None:
    folder = tmp_path / "rows"
    command = [sys.executable, str(Path(__file__).parent / "pushing_episodes.py")]
    text = json.dumps({**storage, "path": str(folder)})
    with subprocess.Popen([*command, text], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        told = [child.stdout.readline() for _ in range(40)]
        child.send_signal(signal.SIGKILL)
        told += child.stdout.readlines()
    pushed = int([line for line in told if line.endswith(b"\n")][-1])
    with opened(folder, storage) as buffer:
        newest = buffer.push_count
        assert pushed <= newest <= pushed + 3
        for n in range(newest, newest + 3):
            assert held(buffer) == [episode_of(k) for k in range(n - CAPACITY, n)]
            buffer.push([episode_of(n)], 0)


@pytest.mark.parametrize("storage", STORAGES[2:])
def test_columns_that_were_growing_when_their_process_died_are_reopened(
    tmp_path: Path, storage: dict[str, Any]
) -> None:
    folder = tmp_path / "rows"
    with opened(folder, storage) as buffer:
        for n in range(CAPACITY):
            buffer.push([episode_of(n)], 0)
    # The process may also have written rows, links and marks that it did not commit.
    for name in ("column-0000.bin", "links.bin", "marks.bin"):
        if (folder / name).exists():
            (folder / name).write_bytes(2 * (folder / name).read_bytes())
    with opened(folder, storage) as buffer:
        for n in range(CAPACITY, 60):
            assert held(buffer) == [episode_of(k) for k in range(n - CAPACITY, n)]
            buffer.push([episode_of(n)], 0)
        buffer.push([episode_of(n) for n in range(60, 75)], 0)
    with opened(folder, storage) as buffer:
        assert held(buffer) == [episode_of(k) for k in range(75 - CAPACITY, 75)]


def test_space_of_removed_episodes_is_reused_after_reopening(tmp_path: Path) -> None:
    folder, storage, sizes = tmp_path / "rows", {"type": "memmap"}, []
    for n in range(4 * CAPACITY):
        with opened(folder, storage) as buffer:
            buffer.push([episode(n, 3)], 0)
        sizes.append((folder / "column-0000.bin").stat().st_size)
        assert sizes[-1] == sizes[min(n, CAPACITY)]


def test_episodes_and_rows_do_not_share_a_folder(tmp_path: Path) -> None:
    storage = {"type": "memmap", "path": str(tmp_path / "rows")}
    with make(storage=storage) as buffer:
        buffer.push([episode(0, 3)], 0)
    cfg = {"replay_buffer_size": 4, "storage": {**storage, "reopen": True}}
    with pytest.raises(CheckpointVersionError, match="episodes"):
        NaiveReplayBuffer(cfg)
    (tmp_path / "rows" / "marks.bin").unlink()
    with pytest.raises(CheckpointCorruptError, match="marks"):
        EpisodeReplayBuffer(cfg)


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
    with opened(tmp_path / "rows", storage) as buffer:
        assert held(buffer) == [episode_of(n) for n in range(30 - CAPACITY, 30)]


class YoungestFirst(FifoRemover):
    """Does not declare that the oldest episodes leave first."""

    config: ClassVar[dict[str, Any]] = {"type": "youngest"}
    is_fifo = False


def test_episodes_on_disk_need_a_remover_that_keeps_their_order(tmp_path: Path) -> None:
    with use_manager(PluginManager()) as manager:
        manager.registry("removers").register("youngest", YoungestFirst)
        cfg: dict[str, Any] = {"remover": {"type": "youngest"}}
        make(storage={"type": "array"}, **cfg).push([episode(0, 2)], 0)
        with pytest.raises(ConfigError, match="fifo"):
            make(storage={"type": "memmap", "path": str(tmp_path / "rows")}, **cfg)
