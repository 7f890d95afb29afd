"""The episode buffer: its elements are whole episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError, SchemaMismatchError
from dingsdk.worker.replay_buffer.episode import EpisodeReplayBuffer


def episode(first: int, length: int) -> list[dict[str, Any]]:
    return [{"x": first + i, "obs": {"a": np.full(2, i, np.float32)}} for i in range(length)]


def make(capacity: int = 4, **cfg: Any) -> EpisodeReplayBuffer:
    return EpisodeReplayBuffer({"replay_buffer_size": capacity, "seed": 0, **cfg})


def test_episodes_come_back_whole_as_columns() -> None:
    buffer = make()
    buffer.push([episode(0, 3), episode(10, 1), SampleBatch.from_rows(episode(20, 5))], 9)
    assert buffer.count() == buffer.push_count == 3
    assert buffer.episode_len == [3, 1, 5]
    found = buffer.sample(3, 0)
    assert isinstance(found, list)
    assert all(isinstance(each, SampleBatch) for each in found)
    numbers = sorted(each.columns["x"].tolist() for each in found)
    assert numbers == [[0, 1, 2], [10], [20, 21, 22, 23, 24]]
    assert found[0].columns["obs"]["a"].shape == (len(found[0]), 2)


def test_the_oldest_episodes_leave() -> None:
    buffer, gone = make(capacity=2), []
    buffer.add_remove_listener(lambda rows, reason: gone.extend((len(e), reason) for e in rows))
    buffer.push([episode(0, length) for length in (1, 2, 3)], 0)
    buffer.push(SampleBatch.from_rows(episode(0, 4)), 0)
    assert buffer.episode_len == [3, 4]
    buffer.clear()
    assert gone == [(1, "overwritten"), (2, "overwritten"), (3, "cleared"), (4, "cleared")]


def test_nothing_is_shared_with_the_buffer() -> None:
    buffer, batch = make(), SampleBatch.from_rows(episode(0, 3))
    buffer.push([batch], 0)
    batch.columns["x"][:] = -1
    for _ in range(2):
        found = buffer.sample(1, 0)
        assert found is not None
        assert found[0].columns["x"].tolist() == [0, 1, 2]
        found[0].columns["x"][:] = -1


def test_rows_that_are_no_dicts_of_numbers_stay_a_list() -> None:
    buffer = make()
    buffer.push([["step one", "step two"], [{"text": "a"}]], 0)
    assert buffer.episode_len == [2, 1]
    found = buffer.sample(2, 0)
    assert found is not None
    assert sorted(map(len, found)) == [1, 2]
    assert ["step one", "step two"] in found


@pytest.mark.parametrize("bad", [None, {}, {"x": 1}, 5, "steps", [], ()])
def test_what_is_no_episode_is_refused(bad: Any) -> None:
    buffer = make()
    buffer.push([episode(0, 2)], 0)
    with pytest.raises(SchemaMismatchError):
        buffer.push([episode(5, 2), bad], 0)
    assert buffer.episode_len == [2]


def test_one_episode_pushed_as_many_elements_is_told_apart() -> None:
    with pytest.raises(SchemaMismatchError, match=r"push\(\[episode\]"):
        make().push(episode(0, 3), 3)


def test_episodes_are_saved_and_loaded(tmp_path: Path) -> None:
    buffer, other = make(), make()
    buffer.push([episode(0, 3), episode(7, 2), [{"text": "a"}]], 0)
    buffer.save_data(str(tmp_path / "rows"))
    other.load_data(str(tmp_path / "rows"))
    assert other.episode_len == [3, 2, 1]
    found, same = buffer.sample(3, 0), other.sample(3, 0)
    assert found == same


def test_a_state_gives_the_same_future_samples() -> None:
    buffer, other = make(), make()
    buffer.push([episode(i, i) for i in range(1, 6)], 0)
    buffer.sample(2, 0)
    other.load_state_dict(buffer.state_dict())
    for _ in range(5):
        assert buffer.sample(2, 0) == other.sample(2, 0)


def test_demonstrations_are_pushed_as_they_are() -> None:
    buffer = make()
    buffer.load_state_dict({"data": [episode(0, 2), episode(0, 4)]})
    assert buffer.episode_len == [2, 4]


@pytest.mark.parametrize("storage", ["array", "memmap"])
def test_storages_of_one_shape_are_refused(storage: str) -> None:
    with pytest.raises(ConfigError, match="episodes differ in length"):
        make(storage={"type": storage})
    assert make(storage={"type": "auto"}).count() == 0
