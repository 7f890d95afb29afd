"""Columns in memory: writing single rows, conversions, and gathering rows."""

from __future__ import annotations

import pickle
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError, SchemaMismatchError
from dingsdk.worker.replay_buffer.storage.arrays import ArrayStorage, Layout


def a_row(**changed: Any) -> dict[str, Any]:
    row = {
        "obs": np.arange(4, dtype=np.float32),
        "image": np.ones((2, 3), np.uint8),
        "nested": {"pos": np.full(2, 7, np.int16), "on": True},
        "action": 3,
        "reward": 0.5,
        "done": False,
    }
    return {**row, **changed}


LOW, HIGH = np.array([-(2**15), 7]), np.array([7, 2**15 - 1])
RANGE = "int16 (-32768 to 32767)"


def storage_of(row: dict[str, Any]) -> ArrayStorage:
    storage = ArrayStorage({}, 8)
    storage.put(slice(0, 1), storage.accept([row]))
    return storage


def layout_of(storage: ArrayStorage) -> Layout:
    assert storage.layout is not None
    return storage.layout


def store(storage: ArrayStorage, position: int, row: dict[str, Any]) -> None:
    """Store a single row as a buffer does."""
    if layout_of(storage).fits_row(row):
        layout_of(storage).put_row(position, row)
    else:
        storage.put(slice(position, position + 1), storage.accept([row]))


def same(left: SampleBatch, right: SampleBatch) -> bool:
    return left == right and repr(left) == repr(right)


@pytest.mark.parametrize(
    "row",
    [
        a_row(),
        a_row(reward=2, action=np.int64(-5), done=np.bool_(True)),
        a_row(reward=np.float64(0.25)),
        a_row(reward=np.float32(0.1)),
        a_row(reward=float("nan")),
        a_row(reward=float("-inf")),
        a_row(obs=np.arange(8, dtype=np.float32)[::2]),
        a_row(obs=torch.arange(4, dtype=torch.float32)),
        a_row(obs=np.arange(4, dtype=np.float64)),
        a_row(action=True),
        a_row(action=np.array(9)),
        a_row(image=np.ones((3, 2), np.uint8).T),
        pickle.loads(pickle.dumps(a_row())),  # noqa: S301 - unpickled dtypes are new objects
        dict(reversed(a_row().items())),
    ],
)
def test_a_single_row_is_stored_like_a_list_of_one(row: dict[str, Any]) -> None:
    storage = storage_of(a_row())
    storage.put(slice(1, 2), storage.accept([row]))
    store(storage, 2, row)
    assert same(storage.take(slice(1, 2)), storage.take(slice(2, 3)))


@pytest.mark.parametrize(
    ("row", "key"),
    [
        (a_row(obs=np.zeros(3, np.float32)), "obs"),
        (a_row(obs=np.zeros(4, np.complex64)), "obs"),
        (a_row(obs={"pos": 1}), "obs"),
        (a_row(action=0.5), "action"),
        (a_row(obs=np.array([0, 0, 0, 1e39])), "obs"),
        (a_row(reward=1e39), "reward"),
        (a_row(reward="1"), "reward"),
        (a_row(nested=3), "nested"),
        (a_row(nested={"pos": np.zeros(2, np.int16)}), "nested.on"),
        (a_row(extra=1), "extra"),
        ({k: v for k, v in a_row().items() if k != "done"}, "done"),
        ({"ended" if k == "done" else k: v for k, v in a_row().items()}, "done"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_and_changes_nothing(
    row: dict[str, Any], key: str
) -> None:
    storage = storage_of(a_row())
    before = storage.take(slice(0, 1))
    assert not layout_of(storage).fits_row(row)
    with pytest.raises(SchemaMismatchError) as caught:
        storage.accept([row])
    assert caught.value.key == key
    assert storage.take(slice(0, 1)) == before


@pytest.mark.parametrize(
    ("changed", "key", "expected", "found"),
    [
        ({"obs": np.zeros(5, np.float32)}, "obs", [4], [5]),
        ({"image": np.ones((2, 3), np.float32)}, "image", "uint8", "float32"),
        ({"image": np.eye(2, 3, dtype=np.uint16) * 256}, "image", "uint8 (0 to 255)", 256),
        ({"nested": {"on": True, "pos": LOW - 1}}, "nested.pos", RANGE, -(2**15) - 1),
        ({"nested": {"on": True, "pos": HIGH + 1}}, "nested.pos", RANGE, 2**15),
        ({"obs": np.full(4, 1e39)}, "obs", "numbers of float32", "larger ones"),
        ({"nested": {"on": True}}, "nested.pos", ["on", "pos"], ["on"]),
        ({"nested": {"on": True, "pos": 1, "x": 2}}, "nested.x", ["on", "pos"], ["on", "pos", "x"]),
    ],
)
def test_a_refused_row_says_what_was_expected_and_found(
    changed: dict[str, Any], key: str, expected: Any, found: Any
) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        storage_of(a_row()).accept([a_row(**changed)])
    error = caught.value
    assert (error.key, error.expected, error.found) == (key, expected, found)
    assert str(error).startswith(f"column '{key}' ")


@pytest.mark.parametrize("pos", [LOW, HIGH])
def test_numbers_at_the_ends_of_a_range_are_converted(pos: Any) -> None:
    storage = storage_of(a_row())
    store(storage, 1, a_row(nested={"on": True, "pos": pos}))
    assert storage.take(slice(1, 2)).columns["nested"]["pos"].tolist() == [pos.tolist()]


def test_fitting_numbers_but_no_other_array_dtype_fit_as_they_are() -> None:
    layout = layout_of(storage_of(a_row()))
    assert layout.fits_row(a_row(action=np.int64(7), reward=-1, done=True))
    assert not layout.fits_row(a_row(image=np.ones((2, 3), np.int64)))


def test_rows_are_written_to_columns_that_have_gaps() -> None:
    grid = np.zeros((4, 2), np.float32)
    layout = Layout({"x": grid[:, 0], "y": np.zeros((4, 3), np.int64).T[::-1].T})
    row = {"x": 5.0, "y": np.arange(3)}
    layout.put_row(1, row)
    assert grid[:, 0].tolist() == [0.0, 5.0, 0.0, 0.0]
    assert layout.take(np.array([1]))["y"].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("dtype", ["e", "F", ">f4", ">i8", "b", "Q"])
def test_dtypes_that_memoryviews_do_not_know_are_stored_as_well(dtype: str) -> None:
    values = np.arange(3).astype(dtype)
    rows = [{"one": value, "two": np.stack([value, value])} for value in values]
    storage = ArrayStorage({}, 3)
    storage.put(slice(0, 1), storage.accept(SampleBatch.from_rows(rows[:1])))
    store(storage, 1, rows[1])
    storage.put(slice(2, 3), storage.accept(rows[2:]))
    assert same(storage.take(np.arange(3)), SampleBatch.from_rows(rows))


def test_int64_and_longlong_are_the_same_dtype() -> None:
    storage = ArrayStorage({}, 4)
    columns = {"id": np.array([1, 2], np.int64), "at": np.array([[1, 2], [3, 4]], np.int64)}
    storage.put(slice(0, 2), storage.accept(SampleBatch(columns)))
    other = {key: column.astype(np.longlong) for key, column in columns.items()}
    storage.put(slice(2, 4), storage.accept(SampleBatch(other)))
    store(storage, 1, {"id": 5, "at": other["at"][0] + 4})
    taken = storage.take(slice(0, 4)).columns
    assert taken["id"].tolist() == [1, 5, 1, 2]
    assert taken["at"].tolist() == [[1, 2], [5, 6], [1, 2], [3, 4]]


@pytest.mark.parametrize("next_of", [None, "obs"])
def test_clear_releases_the_memory_of_the_columns(next_of: str | None) -> None:
    storage = ArrayStorage({"next_of": next_of}, 8)
    columns = {"obs": np.zeros((1, 4)), "next_obs": np.ones((1, 4)), "action": np.zeros(1)}
    storage.put(slice(0, 1), storage.accept(SampleBatch(columns)))
    kept = [weakref.ref(array) for array in storage._columns.values()]
    assert all(each() is not None for each in kept)
    storage.clear()
    assert [each() for each in kept] == [None] * len(kept)


def test_following_observations_of_too_many_rows_are_refused_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dingsdk.worker.replay_buffer.storage.next_of.MOST_ROWS", 7)
    rows = SampleBatch({"obs": np.arange(4.0), "next_obs": np.arange(4.0) + 10})
    storage = ArrayStorage({"next_of": "obs"}, 8)
    for _ in range(2):
        with pytest.raises(ConfigError, match="serves up to 7 rows, not 8"):
            storage.accept(rows)
    monkeypatch.undo()
    storage.put(slice(0, 4), storage.accept(rows))
    assert storage.take(slice(0, 4)) == rows


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"x": np.zeros(9)}, True),  # shapes are compared without the length
        ({"x": np.zeros(5, np.float32)}, False),
        ({"x": np.zeros((5, 1))}, False),
        ({"obs": np.zeros((9, 2))}, True),
        ({"obs": np.zeros((5, 3))}, False),
        ({"obs": np.zeros((5, 2), np.float32)}, False),
        ({"info": {"n": np.zeros(5, bool)}}, False),
        ({"info": np.zeros(5)}, False),
        ({"more": np.zeros(5)}, False),
    ],
)
def test_layout_fits_only_columns_of_its_names_dtypes_and_shapes(
    change: dict[str, Any], fits: bool
) -> None:
    layout = Layout({"x": np.zeros(4), "obs": np.zeros((4, 2)), "info": {"n": np.zeros(4, int)}})
    columns = {"x": np.zeros(5), "obs": np.zeros((5, 2)), "info": {"n": np.zeros(5, int)}}
    assert layout.fits(columns | change) is fits
