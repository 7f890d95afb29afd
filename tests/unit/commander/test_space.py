from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dingsdk.worker.commander.base import LimitedSpaceContainer


@given(st.lists(st.sampled_from(["acquire", "release", "increase", "decrease"])))
def test_the_count_matches_a_simple_model(moves):
    space = LimitedSpaceContainer(0, 2)
    taken, limit = 0, 2
    for move in moves:
        result = getattr(space, f"{move}_space")()
        if move == "acquire":
            assert result == (taken < limit)
            taken += bool(result)
        elif move == "release":
            taken = max(0, taken - 1)
        else:
            limit = max(0, limit + (1 if move == "increase" else -1))
        assert space.cur == taken
        assert space.get_residual_space() == max(0, limit - taken)


def test_invalid_limits_are_refused():
    for limits in ((3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="min"):
            LimitedSpaceContainer(*limits)
