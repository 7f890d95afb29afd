"""The versions of the policies that collected the samples of a payload."""

from __future__ import annotations

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.data.collected import counted, versions_of


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
