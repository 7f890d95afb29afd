from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dingsdk.policy.returns import gae


def test_advantages_of_a_cut_piece_equal_a_hand_calculation() -> None:
    # gamma 0.5, lambda 0.5; deltas: 1 + 0.5 * 3 - 2 = 0.5; 2 + 0.5 * 4 - 3 = 1.
    advantage = gae(
        np.array([1, 2], np.float32),
        np.array([2, 3], np.float32),
        np.array([4], np.float32),
        np.array([2]),
        gamma=0.5,
        gae_lambda=0.5,
    )

    assert advantage.tolist() == [0.5 + 0.25 * 1.0, 1.0]
    assert advantage.dtype == np.float32


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
