from __future__ import annotations

import numpy as np
import pytest

from dingsdk.policy.dqn import EpsilonGreedy

COUNTS = [1, 7, 64, 3, 1500, 8, 1024, *[300] * 8]
EPS = [0.5, 0.5, 0.1, 1.0, 0.3, 0.3, 1e-3, *[0.9] * 8]


def explored(exploration, count, eps, rng):
    """Return ``count`` actions after exploration; unexplored ones stay -1."""
    actions = np.full(count, -1)
    exploration.explore(actions, eps, rng)
    return actions.tolist()


def blocks_of(seed, counts):
    """Yield the uniform numbers of each call; they are drawn in blocks of at least 1024."""
    rng, numbers = np.random.default_rng(seed), []
    for count in counts:
        if count > len(numbers):
            numbers += rng.random(max(count, 1024)).tolist()
        yield numbers[:count]
        numbers = numbers[count:]


def test_draws_below_eps_choose_a_random_action():
    exploration, rng = EpsilonGreedy(3), np.random.default_rng(5)
    for eps, uniforms in zip(EPS, blocks_of(5, COUNTS), strict=True):
        # [0, eps) is divided into three equal parts, one for each action.
        expected = [min(int(3 * u / eps), 2) if u < eps else -1 for u in uniforms]
        assert explored(exploration, len(uniforms), eps, rng) == expected


def test_the_largest_draw_below_eps_chooses_the_last_action():
    class Drawn:
        def random(self, count):
            return np.full(count, np.nextafter(0.1, 0.0))

    # The draw divided by eps, times 5, rounds up to 5.
    assert explored(EpsilonGreedy(5), 1, 0.1, Drawn()) == [4]


@pytest.mark.parametrize("eps", [0.0, 1e-9])
def test_tiny_eps_changes_neither_actions_nor_generator(eps):
    exploration, rng = EpsilonGreedy(2), np.random.default_rng(0)
    before = rng.bit_generator.state
    assert explored(exploration, 5, eps, rng) == [-1] * 5
    assert rng.bit_generator.state == before


def test_saved_state_continues_within_its_block():
    first, rng = EpsilonGreedy(4), np.random.default_rng(1)
    explored(first, 10, 0.5, rng)
    saved, at = first.state_dict(), rng.bit_generator.state
    expected = [explored(first, 300, 0.5, rng) for _ in range(6)]

    second, other = EpsilonGreedy(4), np.random.default_rng(2)
    explored(second, 700, 0.5, other)  # another block, with the same eps
    second.load_state_dict(saved)
    other.bit_generator.state = at

    assert [explored(second, 300, 0.5, other) for _ in range(6)] == expected
