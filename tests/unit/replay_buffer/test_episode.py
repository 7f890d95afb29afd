"""The episode buffer: its elements are whole episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError, SchemaMismatchError
from dingsdk.worker.replay_buffer import EpisodeReplayBuffer
from dingsdk.worker.replay_buffer.persistence import save

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


def test_one_episode_pushed_without_a_list_around_it_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match=r"push\(\[episode\]"):
        make().push(episode(0, 3), 3)


def many(start: int, n: int) -> list[SampleBatch]:
    return [SampleBatch.from_rows(episode(100 * i, 1 + i % 5)) for i in range(start, start + n)]


def test_saved_episodes_are_loaded_by_buffers_of_any_size(tmp_path: Path) -> None:
    buffer = make(20)
    buffer.push(many(0, 27), 0)
    buffer.save_data(str(tmp_path))
    for other in (make(20), make(9)):
        other.load_data(str(tmp_path))
        assert held(other) == held(buffer)[-other.replay_buffer_size :]


def test_longer_episodes_are_saved_in_segments_of_fewer_episodes(tmp_path: Path) -> None:
    buffer = make(64)
    buffer.push(many(0, 32), 0)
    save(tmp_path, buffer, 1024)
    manifest = manifest_of(tmp_path)
    assert (manifest["rows_each"], len(manifest["segments"])) == (1024, 1)
    long = SampleBatch({"x": np.zeros(1 << 20)})
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


def held(buffer: EpisodeReplayBuffer) -> list[SampleBatch]:
    ages = [slice(age, age + 1) for age in range(buffer.count())]
    return [each for age in ages for each in buffer.sample(1, 0, age) or []]


def test_a_storage_of_columns_is_refused() -> None:
    with pytest.raises(ConfigError, match="stores single rows in columns") as caught:
        make(storage={"type": "array"})
    assert caught.value.path == "storage.type"
