"""Refused columns and rows: the error names the key, the expected value and the found one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch
from dingsdk.data.columns import column_equal
from dingsdk.errors import SchemaMismatchError

LARGEST = float(np.finfo(np.float32).max)
IN_RANGE = "integers of 64 bits, and floats in the range of float32"


@pytest.mark.parametrize(
    ("columns", "what", "key", "expected", "found"),
    [
        ({}, "the batch", "", "at least one column", "{}"),
        ({"a": {}}, "column 'a'", "a", "at least one column", "{}"),
        ([1], "the batch", "", "a mapping of names to arrays", "list"),
        ({1: [1]}, "column 1", 1, "a name of type str", "int"),
        ({"o": {"a": 3}}, "column 'o.a'", "o.a", "a numeric array", "int"),
        ({"a": np.array(["x"])}, "column 'a'", "a", "a numeric array", "dtype <U1"),
        ({"a": np.array(1.0)}, "column 'a'", "a", "[batch, ...]", "[]"),
        ({"a": [0], "b": [0, 1]}, "batch dimension of column 'b'", "b", 1, 2),
        (
            {"a": torch.zeros(2, dtype=torch.bfloat16)},
            "column 'a'",
            "a",
            "a dtype that numpy has",
            "torch.bfloat16",
        ),
    ],
    ids=str,
)
def test_refused_columns_say_what_was_expected_and_found(
    columns: Any, what: str, key: Any, expected: Any, found: Any
) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        SampleBatch(columns)
    error = caught.value
    assert (error.key, error.expected, error.found) == (key, expected, found)
    assert str(error).startswith(f"{what}: expected {expected}, found {found}")


@pytest.mark.parametrize(
    ("rows", "key", "row", "expected", "found"),
    [
        ([{"a": 1}, 5], "", 1, "dict", "int"),
        ([{"a": 1}, {"a": 1, "b": 2}], "b", 1, ["a"], ["a", "b"]),
        ([{"a": 1, "b": 2}, {"a": 1}], "b", 1, ["a", "b"], ["a"]),
        ([{"o": {"x": 1}}, {"o": {"y": 1}}], "o.x", 1, ["x"], ["y"]),
        ([{"o": {"x": 1}}, {"o": 1}], "o", 1, "dict", "int"),
        ([{}], "", 0, "keys", "{}"),
        ([{"o": {2: 1}}], "o", 0, "keys of type str", "2"),
        ([{"a": [[1], [1, 2]]}], "a", None, "a regular array", "list"),
        ([{"a": 1}, {"a": "text"}], "a", 1, "a number or an array", "str"),
        ([{"a": 1}, {"a": None}], "a", 1, "a number or an array", "NoneType"),
        ([{"a": 1}, {"a": np.array(["x"])}], "a", 1, "a numeric dtype", "<U1"),
        ([{"a": np.zeros(2)}] * 2 + [{"a": np.zeros(3)}], "a", 2, [2], [3]),
        ([{"a": np.zeros(2)}, {"a": np.zeros(2, np.int8)}], "a", 1, "float64", "int8"),
        *(
            ([{"a": one}, {"a": large}], "a", None, IN_RANGE, "a larger one")
            for one, large in (
                (LARGEST, 1e300),
                (torch.ones((), requires_grad=True), 1e300),
                (np.float64(1), np.float64(-1e300)),
                (-(2**63), 2**63),
                (0, -(2**63) - 1),
            )
        ),
    ],
    ids=str,
)
def test_refused_rows_say_what_was_expected_and_found(
    rows: Any, key: str, row: int | None, expected: Any, found: Any
) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        SampleBatch.from_rows(rows)
    error = caught.value
    assert (error.key, error.facts.get("row"), error.expected) == (key, row, expected)
    assert found is None or error.found == found


def test_list_without_numbers_is_a_column_of_no_rows() -> None:
    batch = SampleBatch({"a": []})
    assert len(batch) == 0
    assert batch.columns["a"].dtype == np.float32


def test_nan_has_the_same_content_as_nan() -> None:
    batch = SampleBatch({"a": np.array([1.0, np.nan])})
    assert batch == batch.copy()
    assert batch != SampleBatch({"a": np.array([1.0, 2.0])})


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"x": np.zeros(1)}, np.zeros(1)),
        (np.zeros(1), {"x": np.zeros(1)}),
        ({"x": np.zeros(1), "y": np.zeros(1)}, {"x": np.zeros(1), "y": np.ones(1)}),
        ({"x": np.zeros(1)}, {"x": np.zeros(1), "y": np.ones(1)}),
        (0.5, "text"),
        ("text", 0.5),
    ],
)
def test_columns_of_different_content_or_type_are_unequal(left: Any, right: Any) -> None:
    assert not column_equal(left, right)
