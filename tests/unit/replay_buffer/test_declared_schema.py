"""Columns that are declared in the config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError, SchemaMismatchError
from dingsdk.pipeline.train import compile_run
from dingsdk.worker.replay_buffer import NaiveReplayBuffer

SCHEMA = {
    "obs": {"image": {"dtype": "uint8", "shape": [2, 2]}, "speed": "float32"},
    "reward": "float32",
}


def make(schema: Any, tmp_path: Path, kind: str = "array") -> NaiveReplayBuffer:
    place = {"path": str(tmp_path / "rows")} if kind == "memmap" else {}
    storage = {"type": kind, "schema": schema, **place}
    return NaiveReplayBuffer({"replay_buffer_size": 4, "storage": storage})


def row(**changes: Any) -> dict[str, Any]:
    obs = {"image": np.zeros((2, 2), np.uint8), "speed": 1.0}
    return {"obs": obs, "reward": 0, **changes}


@pytest.mark.parametrize("kind", ["array", "memmap"])
def test_first_rows_get_the_declared_dtypes_and_shapes(tmp_path: Path, kind: str) -> None:
    with make(SCHEMA, tmp_path, kind) as buffer:
        buffer.push(row(), 0)
        buffer.push([row(reward=0.5)], 0)
        batch = buffer.sample(2, 0)
        assert isinstance(batch, SampleBatch)
        assert batch.columns["reward"].dtype == np.float32
        assert batch.columns["obs"]["image"].shape == (2, 2, 2)


@pytest.mark.parametrize("shape", [(2, 3), [2, 3], (0, 3), (), []])
def test_shapes_are_lists_or_tuples_of_any_sizes(tmp_path: Path, shape: Any) -> None:
    with make({"x": {"dtype": "int64", "shape": shape}}, tmp_path) as buffer:
        with pytest.raises(SchemaMismatchError):
            buffer.push({"x": np.zeros((*shape, 2), np.int64)}, 0)
        buffer.push({"x": np.zeros(shape, np.int64)}, 0)
        batch = buffer.sample(1, 0)
        assert isinstance(batch, SampleBatch)
        assert batch.columns["x"].shape == (1, *shape)


@pytest.mark.parametrize("kind", ["array", "memmap"])
@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        (row(extra=1.0), "extra"),
        ({"reward": 0.0}, "obs"),
        (row(reward=np.zeros(3, np.float32)), "reward"),
        (row(obs={"image": np.zeros((3, 2), np.uint8), "speed": 1.0}), "obs.image"),
        (row(obs={"image": np.zeros((2, 2), np.float32), "speed": 1.0}), "obs.image"),
    ],
)
def test_first_rows_that_do_not_match_the_schema_are_refused(
    tmp_path: Path, kind: str, wrong: dict[str, Any], key: str
) -> None:
    with make(SCHEMA, tmp_path, kind) as buffer:
        with pytest.raises(SchemaMismatchError) as caught:
            buffer.push([wrong], 0)
        assert caught.value.facts["key"] == key
        assert buffer.count() == 0
        buffer.push(row(), 0)
        assert buffer.count() == 1


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({}, "storage.schema"),
        ("float32", "storage.schema"),
        ({"x": "wide"}, "storage.schema.x"),
        ({"x": "O"}, "storage.schema.x"),
        ({"x": None}, "storage.schema.x"),
        ({3: "float32"}, "storage.schema"),
        ({"x": {3: "float32"}}, "storage.schema.x"),
        ({"x": {"dtype": {"dtype": "int64"}}}, "storage.schema.x"),
        ({"x": "longdouble"}, "storage.schema.x"),
        ({"x": {"dtype": "int64", "shape": [-1]}}, "storage.schema.x"),
        ({"x": {"dtype": "int64", "shape": [2.0]}}, "storage.schema.x"),
        ({"x": {"dtype": "int64", "shape": [True]}}, "storage.schema.x"),
        ({"x": {"dtype": "int64", "shape": 3}}, "storage.schema.x"),
        ({"x": {"dtype": "int64", "shape": [2**70]}}, "storage.schema.x"),
        ({"x": {"dtype": "int64", "shape": [1] * 100}}, "storage.schema.x"),
        ({"x": {"dtype": "int64", "size": 3}}, "storage.schema.x"),
        ({"x": {"y": {}}}, "storage.schema.x.y"),
    ],
)
def test_error_for_an_invalid_schema_names_its_key(tmp_path: Path, schema: Any, path: str) -> None:
    with pytest.raises(ConfigError, match=f"^{path}( must be|: expected) [a-z]+") as caught:
        make(schema, tmp_path)
    assert caught.value.path == path


def test_an_invalid_schema_is_refused_before_a_run_starts() -> None:
    storage = 'policy.other.replay_buffer.storage={"type": "array", "schema": {"x": "wide"}}'
    with pytest.raises(ConfigError) as caught:
        compile_run("cartpole-dqn", sets=(storage,))
    assert caught.value.path == "policy.other.replay_buffer.storage.schema.x"
