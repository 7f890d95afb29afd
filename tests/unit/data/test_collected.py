"""The columns that collectors add to samples, and the versions of policies among them."""

from __future__ import annotations

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.data.collected import counted, versions_of, with_collected


@pytest.mark.parametrize(
    ("column", "versions", "counts"),
    [
        (np.array([5, 4, 5], np.int32), [5, 4, 5], [(4, 1), (5, 2)]),
        (np.array([[4, 5], [6, 5], [4, 9]]), [4, 5, 4], [(4, 2), (5, 1)]),  # of the oldest step
    ],
)
def test_samples_are_counted_by_the_version_of_their_oldest_step(
    column: np.ndarray, versions: list[int], counts: list[tuple[int, int]]
) -> None:
    found = versions_of(SampleBatch({"collect_iter": column}))
    assert found is not None
    assert found.tolist() == versions
    assert counted(found) == counts


def test_samples_in_lists_have_the_versions_of_all_their_rows() -> None:
    episodes = [SampleBatch({"collect_iter": np.array(each)}) for each in ([3, 4], [5])]
    rows = [{"collect_iter": np.int64(7)}, {"collect_iter": np.array([9, 8])}, {"obs": 1.0}]
    assert [each.tolist() for each in map(versions_of, (episodes, rows, [rows]))] == [
        [3, 4, 5],
        [7, 8],
        [7, 8],
    ]
    assert versions_of([object()]) is None


@pytest.mark.parametrize(
    "columns",
    [
        {"x": np.zeros(2)},
        {"collect_iter": np.zeros(2, np.float32)},
        {"collect_iter": {"x": np.zeros(2, np.int64)}},
    ],
)
def test_samples_without_a_column_of_versions_have_none(columns: dict) -> None:
    assert versions_of(SampleBatch(columns)) is None


def test_samples_get_the_columns_of_their_steps_or_of_the_first_step_of_their_piece() -> None:
    ends = np.array([2, 5])
    columns = {"collect_iter": np.array([7, 8, 3, 4, 5]), "env_id": np.array([0, 0, 1, 1, 1])}
    found = {n: with_collected(SampleBatch({"obs": np.zeros(n)}), columns, ends) for n in (5, 2, 3)}
    assert found[5].columns["collect_iter"].tolist() == [7, 8, 3, 4, 5]
    assert found[2].columns["collect_iter"].tolist() == [7, 3]
    assert found[2].columns["env_id"].tolist() == [0, 1]
    assert found[3].columns["collect_iter"].tolist() == [3, 3, 3]
    assert "env_id" not in found[3].columns
    own = SampleBatch({"collect_iter": np.array([1, 1])})
    assert with_collected(own, columns, ends).columns["collect_iter"].tolist() == [1, 1]
