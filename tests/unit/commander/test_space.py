from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dingsdk.worker.commander.base import LimitedSpaceContainer


def test_places_can_be_acquired_up_to_the_limit_and_released():
    space = LimitedSpaceContainer(0, 2)

    assert [space.acquire_space() for _ in range(3)] == [True, True, False]
    space.release_space()
    assert space.acquire_space()


def test_the_limit_can_change_while_places_are_taken():
    space = LimitedSpaceContainer(0, 1)
    space.acquire_space()
    space.increase_space()
    assert space.acquire_space()
    space.decrease_space()
    space.release_space()
    assert not space.acquire_space()


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


def test_a_space_with_equal_limits_is_full_from_the_start():
    space = LimitedSpaceContainer(2, 2)

    assert not space.acquire_space()
    space.release_space()
    assert (space.cur, space.get_residual_space()) == (2, 0)
