"""Data sets written for Minari and read back, and what is refused."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from dingsdk_minari.datasets import MinariDatasets
from minari.data_collector import EpisodeBuffer

import dingsdk
from dingsdk.data import Dataset
from dingsdk.errors import DatasetError
from dingsdk.worker import read_dataset, write_dataset

PATTERN = np.arange(32 * 32 * 3).reshape(32, 32, 3) * 37


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_equal(found[key], value)
    else:
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def walk(obs: Any, action: Any) -> Dataset:
    """Return 3 episodes of 2, 3 and 1 rows: terminated, truncated, and cut by the recording.

    ``obs`` makes the observations from int64[n], so that rows of an episode follow each other.
    """
    now = np.array([0, 1, 10, 11, 12, 20])
    columns = {
        "obs": obs(now),
        "action": action,
        "reward": np.arange(6, dtype=np.float32),
        "next_obs": obs(now + 1),
        "terminated": np.array([0, 1, 0, 0, 0, 0], bool),
        "truncated": np.array([0, 0, 0, 0, 1, 0], bool),
    }
    return Dataset(columns, source="a walk")


@pytest.mark.parametrize(
    ("obs", "action"),
    [
        (lambda n: n[:, None] / np.float64(3), np.array([0, 1, 2, 0, 1, 2])),
        (lambda n: n.astype(np.int64), np.zeros((6, 2), np.float32)),
        (
            lambda n: {
                # Minari would store images of this size as JPEG files, which changes them.
                "image": (n[:, None, None, None] * 11 + PATTERN).astype(np.uint8),
                "mask": np.stack([n % 2 == 0, n % 2 == 1], 1),
                "inner": {"speed": n.astype(np.float32)},
            },
            np.arange(12, dtype=np.int64).reshape(6, 2),
        ),
    ],
    ids=["vector", "number", "dict"],
)
def test_written_data_set_is_read_back_bit_by_bit(obs: Any, action: Any) -> None:
    expected = walk(obs, action)

    write_dataset(expected, "minari:walk/test-v0")
    found = read_dataset("minari:walk/test-v0")

    assert_equal(found.columns, expected.columns)
    assert_equal(found.ends, expected.ends)
    assert found.source == "minari:walk/test-v0"


def test_recording_of_a_run_is_the_same_as_in_a_file(tmp_path: Path) -> None:
    sets = ["system.max_env_steps=200", "env.evaluator_env_num=2", "env.n_evaluator_episode=2"]
    run = dingsdk.train("cartpole-dqn", sets=sets, output=tmp_path / "run").run_dir

    dingsdk.record(run, 3, tmp_path / "data.npz", seed=4)
    dingsdk.record(run, 3, "minari:cartpole/test-v0", seed=4)

    found, expected = read_dataset("minari:cartpole/test-v0"), read_dataset(tmp_path / "data.npz")
    assert_equal(found.columns, expected.columns)
    assert_equal(found.ends, expected.ends)


def test_data_set_that_minari_wrote_is_read() -> None:
    steps = EpisodeBuffer(
        observations=np.arange(8, dtype=np.float32).reshape(4, 2),
        actions=np.array([0, 1, 0]),
        rewards=[0.5, 1.5, 2.5],
        terminations=[False, False, True],
        truncations=[False, False, False],
        infos={"extra": np.zeros(4)},
    )
    with warnings.catch_warnings(action="ignore"):
        minari.create_dataset_from_buffers(
            "other-v0",
            [steps, steps],
            env="CartPole-v1",
            observation_space=gym.spaces.Box(0, 9, (2,)),
        )

    found = read_dataset("minari:other-v0")

    assert found.columns["reward"].tolist() == [0.5, 1.5, 2.5] * 2
    assert found.columns["next_obs"][2].tolist() == [6, 7]
    assert found.ends.tolist() == [3, 6]


def test_older_data_set_is_replaced_unless_the_new_one_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = walk(lambda n: n[:, None] / 3, np.zeros((6, 1), np.float32))
    name = "minari:walk/test-v0"
    (folder / "other-v0").mkdir(parents=True)
    with pytest.raises(DatasetError, match="other-v0 is no data set of Minari"):
        write_dataset(first, "minari:other-v0")
    assert not MinariDatasets().has("walk/test-v0")
    write_dataset(first, name)
    assert MinariDatasets().has("walk/test-v0")

    rows = {key: column[[0, 2]] for key, column in first.columns.items()}
    loose = Dataset({**rows, "terminated": np.zeros(2, bool), "truncated": np.array([0, 1], bool)})
    with pytest.raises(DatasetError, match="rows 0 to 1 are a piece, and do not follow"):
        write_dataset(loose, name)

    def fail(*args: Any, **kwargs: Any) -> None:
        (folder / "walk" / "test-v0" / "data").mkdir(parents=True)
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(minari, "create_dataset_from_buffers", fail)
        with pytest.raises(DatasetError, match="test-v0 cannot be written: no space left"):
            write_dataset(Dataset(rows, ends=[1]), name)
    assert_equal(read_dataset(name).columns, first.columns)

    write_dataset(Dataset(rows, ends=[1]), name)
    assert len(read_dataset(name)) == 2
    assert [path.name for path in (folder / "walk").iterdir() if path.is_dir()] == ["test-v0"]


@pytest.mark.parametrize("name", ["test", "a//b-v0", "../b-v0", "/tmp/b-v0", "a/b-v0/", "x/b-v0"])
def test_name_that_minari_does_not_take_is_refused(name: str) -> None:
    for use in (MinariDatasets().read, MinariDatasets().has):
        with pytest.raises(DatasetError, match="is no name of Minari: expected NAME-v0 or"):
            use(name)


def test_missing_or_damaged_data_set_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(DatasetError, match=r"minari:walk/test-v0 does not exist; .* in "):
        read_dataset("minari:walk/test-v0")
    write_dataset(walk(lambda n: n[:, None] / 3, np.arange(6)), "minari:walk/test-v0")
    data = folder / "walk" / "test-v0" / "data"
    (data / "main_data.hdf5").write_bytes(b"none")
    with pytest.raises(DatasetError, match="minari:walk/test-v0 cannot be read: "):
        read_dataset("minari:walk/test-v0")
    (data / "metadata.json").write_text("{")
    with pytest.raises(DatasetError, match="minari:walk/test-v0 is damaged"):
        read_dataset("minari:walk/test-v0")


def test_data_set_without_spaces_is_refused_as_its_env_would_be_made(folder: Path) -> None:
    write_dataset(walk(lambda n: n[:, None] / 3, np.arange(6)), "minari:walk/test-v0")
    path = folder / "walk" / "test-v0" / "data" / "metadata.json"
    facts = json.loads(path.read_text())
    del facts["action_space"]
    path.write_text(json.dumps(facts))
    with pytest.raises(DatasetError, match="no action_space in its metadata"):
        read_dataset("minari:walk/test-v0")
