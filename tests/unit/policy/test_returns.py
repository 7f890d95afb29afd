from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dingsdk.policy.returns import nstep_returns


def naive(reward, terminated, ends, gamma, nstep):
    rows = []
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        for row in range(begin, end):
            last = min(row + nstep, end) - 1
            total = sum(gamma ** (k - row) * float(reward[k]) for k in range(row, last + 1))
            rows.append((total, 0.0 if terminated[last] else gamma ** (last - row + 1), last))
    return rows


@st.composite
def pieces(draw):
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=6))
    ends = np.cumsum(lengths)
    terminated = np.zeros(int(ends[-1]), dtype=bool)
    for length, end in zip(lengths, ends, strict=True):
        if length:
            terminated[end - 1] = draw(st.booleans())
    reward = draw(
        st.lists(st.floats(-100, 100, width=32), min_size=len(terminated), max_size=len(terminated))
    )
    return np.array(reward, dtype=np.float32), terminated, ends


@given(pieces(), st.sampled_from([0.0, 0.5, 0.99, 1.0]), st.integers(1, 9))
def test_returns_equal_a_plain_loop(data, gamma, nstep):
    reward, terminated, ends = data

    made = nstep_returns(reward, terminated, ends, gamma=gamma, nstep=nstep)

    expected = naive(reward, terminated, ends, gamma, nstep)
    last = np.arange(len(reward)) if made.last is None else made.last
    assert made.reward.dtype == made.discount.dtype == np.float32
    assert last.tolist() == [row[2] for row in expected]
    np.testing.assert_allclose(made.reward, [row[0] for row in expected], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(made.discount, [row[1] for row in expected], rtol=1e-6)


def test_a_single_step_keeps_its_reward_exactly():
    reward = np.array([0.1, 0.2, 0.3], dtype=np.float32)

    made = nstep_returns(
        reward, np.array([False, True, False]), np.array([2, 3]), gamma=0.9, nstep=1
    )

    assert made.reward is reward
    assert made.last is None
    assert made.discount.tolist() == pytest.approx([0.9, 0.0, 0.9])
