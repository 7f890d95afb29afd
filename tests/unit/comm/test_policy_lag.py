"""How old trained rows were, in versions of the acting policy."""

from __future__ import annotations

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.data.collected import NO_VERSION
from dingsdk.worker.policy_lag import LagCounter, PolicyLag


@pytest.mark.parametrize("versions", [10, [0, 7, 31]])
def test_lag_is_counted_in_versions_for_some_of_the_batches(versions: int | list[int]) -> None:
    counter = LagCounter(versions, every=2)
    assert counter.lag is None
    old, new = (0, 20) if isinstance(versions, int) else (0, 31)
    for train_iter in (33, 39, 33):
        rows = [old] * 4 + [new] * 91 + [NO_VERSION] * 5
        counter.count(SampleBatch({"collect_iter": np.array(rows)}), train_iter)
    lag = counter.lag
    assert lag is not None
    expected = PolicyLag((4 * 3 + 91 * 1) / 95, 3, 3)
    if not isinstance(versions, int):
        expected = PolicyLag(4 * 2 / 95, 2, 2)
    assert lag == pytest.approx(expected)
