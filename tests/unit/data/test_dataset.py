"""A data set completes and checks its columns; all numbers are computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dingsdk.data import Dataset
from dingsdk.errors import DatasetError


def columns(**changes: Any) -> dict[str, Any]:
    """Return an episode of 3 steps that terminates, and one of 3 that is truncated."""
    made: dict[str, Any] = {
        "obs": np.arange(12, dtype=np.float32).reshape(6, 2),
        "action": np.array([0, 1, 0, 1, 0, 1]),
        "reward": np.arange(6.0),
        "next_obs": np.arange(12, dtype=np.float32).reshape(6, 2) + 2,
        "terminated": np.array([0, 0, 1, 0, 0, 0]),
        "truncated": np.array([0, 0, 0, 0, 0, 1]),
    }
    return {name: each for name, each in {**made, **changes}.items() if each is not None}


def test_pieces_end_where_rows_are_terminated_truncated_or_marked() -> None:
    found = Dataset(columns(truncated=np.zeros(6)), ends=[2])

    assert found.ends.tolist() == [2, 3, 6]
    # A piece that was cut counts as truncated.
    assert found.columns["truncated"].tolist() == [False, True, False, False, False, True]
    assert found.returns().tolist() == [0 + 1, 2, 3 + 4 + 5]


def test_next_obs_is_the_next_row_of_the_piece() -> None:
    found = Dataset(columns(next_obs=None))

    # Row 5 is truncated, and what it led to was not recorded.
    assert found.columns["next_obs"][:, 0].tolist() == [2, 4, 4, 8, 10]
    assert found.columns["terminated"].tolist() == [False, False, True, False, False]
    assert found.columns["truncated"].tolist() == [False, False, False, False, True]
    assert found.ends.tolist() == [3, 5]


def test_piece_of_one_row_without_next_obs_is_left_out() -> None:
    found = Dataset(columns(next_obs=None), ends=[1])

    assert found.columns["obs"][:, 0].tolist() == [2, 4, 6, 8]
    assert found.ends.tolist() == [2, 4]


def test_pieces_without_truncated_end_where_the_next_row_begins_elsewhere() -> None:
    obs = columns()["obs"].copy()
    obs[4:] += 100

    found = Dataset(columns(obs=obs, truncated=None))

    assert found.ends.tolist() == [3, 4, 5, 6]


def test_observations_may_be_dicts() -> None:
    obs = {"image": np.zeros((6, 2, 2), np.uint8), "speed": np.arange(6.0)}

    found = Dataset(columns(obs=obs, next_obs=None))

    assert found.columns["next_obs"]["speed"].tolist() == [1, 2, 2, 4, 5]
    assert found.columns["next_obs"]["image"].shape == (5, 2, 2)


def test_given_arrays_are_not_written_to() -> None:
    given = columns()
    for column in given.values():
        column.flags.writeable = False

    Dataset(given, ends=[1])


@pytest.mark.parametrize(
    ("changes", "column", "text"),
    [
        ({"terminated": None}, "terminated", "is missing; there are action, next_obs, obs"),
        ({"terminated": None, "terminate": np.zeros(6)}, "terminated", "the column 'terminate'"),
        ({"next_obs": None, "truncated": None}, "truncated", "is missing"),
        ({"rewards": np.zeros(6)}, "rewards", "did you mean 'reward'"),
        ({"reward": np.zeros(5)}, "reward", "has 5 rows"),
        ({"reward": np.zeros((6, 1))}, "reward", r"\[6, 1\], not \[6\]"),
        ({"reward": np.array([0, 0, np.nan, 0, 0, 0])}, "reward", "NaN or infinity.* row 2"),
        ({"obs": np.full((6, 2), np.inf, np.float32)}, "obs", "NaN or infinity.* row 0"),
        ({"terminated": np.array([0, 0, 0.5, 0, 0, 0])}, "terminated", "0.5 in row 2"),
        ({"next_obs": np.zeros((6, 3), np.float32)}, "next_obs", r"float32\[3\]"),
        ({"next_obs": np.zeros((6, 2))}, "next_obs", r"float64\[2\]"),
        ({"next_obs": {"x": np.zeros((6, 2), np.float32)}}, "next_obs", "same parts"),
        ({"action": np.array(list("abcdef"))}, "action", "a numeric array"),
        ({"action": {"x": np.zeros(6)}}, "action", "is a dict"),
        ({"obs": np.zeros((6, 2), complex), "next_obs": None}, "obs", "complex"),
    ],
)
def test_wrong_column_is_one_line_with_source_and_column(
    changes: dict[str, Any], column: str, text: str
) -> None:
    with pytest.raises(DatasetError, match=text) as caught:
        Dataset(columns(**changes), source="data.npz")

    assert str(caught.value).startswith(f"data.npz: column '{column}")
    assert "\n" not in str(caught.value)
    assert caught.value.column.startswith(column)


@pytest.mark.parametrize("ends", [[0], [7], [1.5], [[1]]])
def test_wrong_ends_are_refused(ends: Any) -> None:
    with pytest.raises(DatasetError, match="numbers from 1 to 6"):
        Dataset(columns(), ends)
