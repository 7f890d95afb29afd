from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dingsdk.policy.returns import gae


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.7, 1.0]),
    seed=st.integers(0, 100),
)
def test_advantages_equal_a_plain_loop(
    lengths: list[int], gamma: float, gae_lambda: float, seed: int
) -> None:
    """Equation 16 of the paper: the exponentially weighted sum of n-step estimators."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(lengths)
    reward = rng.normal(size=ends[-1]).astype(np.float32)
    value = rng.normal(size=ends[-1]).astype(np.float32)
    bootstrap = rng.normal(size=len(ends)).astype(np.float32)

    advantage = gae(reward, value, bootstrap, ends, gamma=gamma, gae_lambda=gae_lambda)

    for piece, (start, stop) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        values = [*value[start:stop], bootstrap[piece]]
        for first in range(stop - start):
            total = 0.0
            for ahead in range(stop - start - first):
                now = first + ahead
                delta = reward[start + now] + gamma * values[now + 1] - values[now]
                total += (gamma * gae_lambda) ** ahead * delta
            assert advantage[start + first] == pytest.approx(total, abs=1e-5)
