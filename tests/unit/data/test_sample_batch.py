"""SampleBatch: construction, rows, sharing, freezing, tensors."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch, collate
from dingsdk.errors import (
    BatchIndexError,
    ConfigTypeError,
    FrozenBatchError,
    SchemaMismatchError,
)


def make_batch() -> SampleBatch:
    return SampleBatch(
        {
            "obs": {"pos": np.arange(6, dtype=np.float32).reshape(3, 2)},
            "action": np.array([0, 1, 0]),
            "done": np.array([False, False, True]),
        }
    )


def test_arrays_and_tensors_are_shared_not_copied() -> None:
    array, tensor = np.zeros(3, np.float32), torch.zeros(3, requires_grad=True)
    batch = SampleBatch({"a": array, "t": tensor})
    batch.columns["a"][1] = 5.0
    batch.columns["t"][1] = 6.0
    assert array.tolist() == [0, 5, 0]
    assert tensor.tolist() == [0, 6, 0]


def test_columns_of_different_length_are_named_with_their_shapes() -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        SampleBatch({"a": np.zeros((2, 4)), "b": {"c": np.zeros(3)}})
    assert caught.value.key == "b.c"
    assert caught.value.shapes == {"a": (2, 4), "b.c": (3,)}
    assert "a [2, 4]" in str(caught.value)
    assert "b.c [3]" in str(caught.value)


def test_a_row_is_a_dict_whose_arrays_are_views() -> None:
    batch = make_batch()
    row = batch[-1]
    assert isinstance(row, dict)
    row["obs"]["pos"][0] = 50
    assert batch.columns["obs"]["pos"][2].tolist() == [50, *make_batch()[2]["obs"]["pos"][1:]]


@pytest.mark.parametrize(
    ("write", "key"),
    [
        (lambda row: row.__setitem__("action", 1), "action"),
        (lambda row: row.__ior__({"action": 1}), ""),
        (lambda row: row["obs"].__setitem__("pos", [1.0]), "pos"),
        (lambda row: row.setdefault("new", 1), "new"),
        (lambda row: row.update(action=3), ""),
        (lambda row: row.pop("action"), "action"),
        (lambda row: row.__delitem__("action"), "action"),
        (lambda row: row.clear(), ""),
        (lambda row: row.popitem(), ""),
    ],
)
def test_keys_of_a_row_are_not_set_or_removed(write: Callable[[Any], None], key: str) -> None:
    batch = make_batch()
    row = batch[0]
    with pytest.raises(FrozenBatchError, match=r"write to batch\.columns") as caught:
        write(row)
    assert caught.value.key == key
    assert batch == make_batch()
    assert row == make_batch()[0]


def test_rows_are_compared_with_dicts_by_content() -> None:
    row = SampleBatch({"a": np.array([4, 5]), "o": {"x": np.zeros(2)}})[1]
    assert row == {"a": 5, "o": {"x": 0.0}}
    assert not row != {"a": 5, "o": {"x": 0.0}}  # noqa: SIM202 - `==` and `!=` are separate methods
    assert row != {"a": 4, "o": {"x": 0.0}}
    assert (row == 5) is False


def test_copies_of_a_row_are_plain_dicts() -> None:
    batch = make_batch()
    pickled = pickle.loads(pickle.dumps(batch[0]))  # noqa: S301 - as multiprocessing does
    copies = (batch[0].copy(), copy.copy(batch[0]), copy.deepcopy(batch[0]), batch[0] | {}, pickled)
    for plain in copies:
        assert type(plain) is dict
        assert type(plain["obs"]) is dict
        plain["action"] = 9
        plain["new"] = 1
    assert batch == make_batch()


def test_indices_outside_the_batch_are_named() -> None:
    batch = make_batch()
    for index in (3, -4):
        with pytest.raises(BatchIndexError) as caught:
            batch[index]
        assert (caught.value.index, caught.value.length) == (index, 3)
        with pytest.raises(BatchIndexError) as caught:
            batch.take([0, index])
        assert caught.value.index == index
    for odd in ("obs", None, True, np.arange(3), [1]):
        with pytest.raises(ConfigTypeError, match=r"int or a slice.*columns"):
            batch[odd]  # type: ignore[call-overload]
    with pytest.raises(BatchIndexError) as caught:
        batch.take([-3, 2, 4, -5])
    assert caught.value.index == 4
    with pytest.raises(SchemaMismatchError) as mismatch:
        batch.take([0.5])
    error = mismatch.value
    assert (error.key, error.expected, error.found) == ("indices", "int[n]", "float64[1]")
    assert len(batch.take([])) == 0


def test_from_rows_narrows_numbers_and_keeps_arrays() -> None:
    batch = SampleBatch.from_rows(
        [
            {"r": 0, "i": 1, "b": True, "x": np.float64(1), "obs": {"a": np.zeros(2, np.uint8)}},
            {"r": 0.5, "i": 2, "b": False, "x": 2.0, "obs": {"a": np.ones(2, np.uint8)}},
        ]
    )
    dtypes = {key: str(batch.columns[key].dtype) for key in ("r", "i", "b", "x")}
    assert dtypes == {"r": "float32", "i": "int64", "b": "bool", "x": "float32"}
    assert batch.columns["obs"]["a"].dtype == np.uint8
    assert batch.columns["r"].tolist() == [0, 0.5]


@pytest.mark.parametrize("make", [SampleBatch, lambda columns: SampleBatch.from_rows([columns])])
@pytest.mark.parametrize(
    ("value", "what"),
    [
        (np.ma.array([1.0, 2.0], mask=[False, True]), "mask"),
        ([np.ma.masked], "mask"),
        ([np.ma.array([1.0], mask=[True])], "mask"),
        (np.zeros(2, np.longdouble), "64 bits"),
        (np.zeros(2, np.clongdouble), "64 bits"),
        ([np.longdouble(1)], "64 bits"),
    ],
)
def test_masked_arrays_and_wide_floats_are_refused(make: Any, value: Any, what: str) -> None:
    if make is not SampleBatch and isinstance(value, list):
        value = value[0]
    with pytest.raises(SchemaMismatchError, match=what) as caught:
        make({"a": value})
    assert caught.value.key == "a"


@pytest.mark.parametrize("dtype", [">f4", ">i8", ">c16"])
def test_columns_of_another_byte_order_are_converted(dtype: str) -> None:
    column = np.arange(3).astype(dtype)
    expected = column.astype(column.dtype.newbyteorder("="))
    for batch in (
        SampleBatch({"a": column}),
        SampleBatch.from_rows([{"a": value} for value in column]),
        SampleBatch.from_rows([{"a": column[i : i + 1].reshape(())} for i in range(3)]),
    ):
        assert batch.columns["a"].dtype == expected.dtype
        assert batch.tensors()["a"].tolist() == expected.tolist()
    # Columns that were received keep their byte order.
    assert SampleBatch.trusted({"a": column}, 3).tensors()["a"].tolist() == expected.tolist()


@pytest.mark.parametrize("rows", [{"a": 1}, {1, 2}, np.zeros((2, 3)), "ab"])
def test_rows_that_are_no_dicts_are_refused(rows: Any) -> None:
    with pytest.raises(SchemaMismatchError, match="row 0"):
        SampleBatch.from_rows(rows)


@pytest.mark.parametrize(
    ("make", "what", "expected"),
    [
        (SampleBatch.from_rows, "a batch", ">= 1 row"),
        (SampleBatch.concat, "batches to join", ">= 1 batch"),
    ],
)
@pytest.mark.parametrize(("given", "found"), [([], 0), (None, "NoneType")])
def test_what_has_no_elements_is_refused(
    make: Callable[[Any], Any], what: str, expected: str, given: Any, found: Any
) -> None:
    with pytest.raises(SchemaMismatchError, match=f"^{what}: expected {expected}") as caught:
        make(given)
    error = caught.value
    assert (error.key, error.expected, error.found) == ("", expected, found)


FLOATS = SampleBatch({"a": np.zeros(2, np.float32)})
NESTED = SampleBatch({"a": {"x": np.zeros(2)}})


@pytest.mark.parametrize(
    ("batches", "key", "row", "expected", "found"),
    [
        ([FLOATS, SampleBatch({"a": np.zeros(2)})], "a", 1, "float32[]", "float64[]"),
        ([FLOATS, SampleBatch({"a": np.zeros((2, 1))})], "a", 1, "float32[]", "float64[1]"),
        ([FLOATS, NESTED], "a", 1, "float32[]", "dict"),
        ([NESTED, NESTED, FLOATS], "a", 2, "dict", "float32[]"),
        ([FLOATS, SampleBatch({"b": np.zeros(2)})], "a", 1, ["a"], ["b"]),
        ([FLOATS, FLOATS.with_columns(b=[0, 1])], "b", 1, ["a"], ["a", "b"]),
        ([FLOATS.with_columns(b=[0, 1]), FLOATS], "b", 1, ["a", "b"], ["a"]),
        ([NESTED, SampleBatch({"a": {"x": np.zeros(2), "y": np.zeros(2)}})], "a.y", 1,
         ["x"], ["x", "y"]),
    ],
)  # fmt: skip
def test_concat_names_the_column_that_differs(
    batches: list[SampleBatch], key: str, row: int, expected: Any, found: Any
) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        SampleBatch.concat(batches)
    error = caught.value
    assert (error.key, error.row, error.expected, error.found) == (key, row, expected, found)


def test_tensors_share_memory_and_are_made_once() -> None:
    batch = make_batch()
    tensors = batch.tensors()
    assert batch.tensors() is tensors
    tensors["obs"]["pos"][0, 0] = 9
    assert batch.columns["obs"]["pos"][0, 0] == 9


def test_a_frozen_batch_refuses_writes_and_its_tensors_are_copies() -> None:
    array = np.zeros(2, np.float32)
    batch = SampleBatch({"a": array}).freeze()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    batch.tensors()["a"][0] = 1
    assert array.tolist() == [0, 0]
    writable = batch.take([0, 1])
    writable.columns["a"][0] = 2.0
    assert writable.columns["a"].tolist() == [2, 0]


@pytest.mark.parametrize("is_plain", [False, True])
def test_tensors_are_made_anew_after_a_freeze(is_plain: bool) -> None:
    columns = {"a": np.zeros(2, np.float32), "b": np.zeros(2)}
    batch = SampleBatch.trusted(columns, 2, is_plain=is_plain)
    before = batch.tensors()
    assert list(before) == ["a", "b"]
    after = batch.freeze().tensors()
    assert after is not before
    for name in columns:
        after[name][0] = 7
        assert columns[name].tolist() == [0, 0]


def test_equality_and_repr_tell_batches_apart() -> None:
    assert make_batch() == make_batch()
    assert make_batch() != make_batch()[:2]
    assert make_batch() != [*make_batch()]
    assert (make_batch() == 3) is False
    assert make_batch().nbytes == 3 * (8 + 8 + 1)
    assert repr(make_batch()) == (
        "SampleBatch(3 rows, obs.pos: float32[2], action: int64, done: bool)"
    )


@pytest.mark.parametrize(
    ("found", "hint"), [(None, "too few rows"), ({"a": [1]}, r"SampleBatch\(columns\)")]
)
def test_collate_says_what_to_do_about_no_sample_and_about_a_dict(found: Any, hint: str) -> None:
    with pytest.raises(SchemaMismatchError, match=hint):
        collate(found)


def test_collate_stacks_lists_as_torch_does() -> None:
    rows = [{"a": 1.0, "b": {"c": np.zeros(2)}, "d": 3}, {"a": 2.0, "b": {"c": np.ones(2)}, "d": 4}]
    found, expected = collate(rows), torch.utils.data.default_collate(rows)
    assert torch.equal(found["a"], expected["a"])
    assert torch.equal(found["b"]["c"], expected["b"]["c"])
    assert found["d"].dtype == torch.int64
    assert torch.equal(
        collate([torch.zeros(2), torch.ones(2)]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    )


@pytest.mark.parametrize(
    ("rows", "expected", "found"),
    [
        ([], ">= 1 element", 0),
        ([{"a": 1}, {"b": 1}], "elements of equal keys and shapes", "dict"),
        ([np.zeros(2), np.zeros(3)], "elements of equal keys and shapes", "ndarray"),
        pytest.param([object()], "elements of equal keys and shapes", "object", id="object"),
        ([make_batch()], "a SampleBatch or a list of dicts", "a list of SampleBatch"),
    ],
    ids=str,
)
def test_collate_refuses_invalid_lists(rows: list[Any], expected: str, found: Any) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        collate(rows)
    error = caught.value
    assert (error.key, error.expected, error.found) == ("", expected, found)
    assert "collate: expected" in str(error)


def test_importing_data_and_using_batches_does_not_import_torch() -> None:
    code = (
        "import sys, numpy as np; from dingsdk.data import SampleBatch\n"
        "b = SampleBatch.from_rows([{'a': 1.0}]); dict(b[0]); b.take([0])\n"
        "from dingsdk.worker.replay_buffer import NaiveReplayBuffer\n"
        "assert not {'torch', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
