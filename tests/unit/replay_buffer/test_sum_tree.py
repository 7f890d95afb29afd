"""The sum tree: sums, the smallest weight, and draws that never return an empty leaf."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.kernels import compiled
from dingsdk.worker.replay_buffer.sampler.sum_tree import SumTree

ALMOST_ONE = 1 - 2**-53


def tree_of(weights: NDArray[np.float64] | list[float]) -> SumTree:
    tree = SumTree(len(weights))
    tree.assign(np.arange(len(weights)), np.array(weights, np.float64))
    return tree


def test_the_only_leaf_with_a_weight_is_always_drawn() -> None:
    weights = np.zeros(1000)
    weights[777] = 5e-324
    tree = tree_of(weights)
    assert set(tree.draw(np.full(64, ALMOST_ONE)).tolist()) == {777}


def test_largest_weights_have_a_finite_sum() -> None:
    tree = SumTree(4097)
    tree.fill(slice(0, 4097), tree.largest_weight)
    assert math.isfinite(tree._sums[0])
    assert len(set(tree.draw(np.full(256, 0.5)).tolist())) == 256
    # The largest float has the exponent 1023.
    assert SumTree(4096).largest_weight == float.fromhex("0x1.fffffffffffffp1010")


@pytest.mark.parametrize("size", [5, 8, 60, 500])
def test_largest_targets_get_a_leaf_that_has_a_weight(size: int) -> None:
    # Sums in another order differ in their last bits, so a target may lie past all leaves.
    for seed in range(40):
        rng = np.random.default_rng(seed)
        weights = 10.0 ** rng.uniform(-8, 8, size)
        weights[size // 2 :] *= rng.random(size - size // 2) < 0.5
        tree = SumTree(size)
        tree.assign(np.arange(size), weights)
        for count in (1, 7, size, 4 * size):
            drawn = tree.draw(np.full(count, np.nextafter(1.0, 0.0)))
            assert (drawn >= 0).all()
            assert (drawn < size).all()
            assert (weights[drawn] > 0).all()


def test_importance_is_relative_to_the_smallest_weight() -> None:
    tree = tree_of([0.0, 4.0, 1.0, 16.0])
    weights = tree.importance(np.array([1, 2, 3, 3]), 0.5)
    assert weights.dtype == np.float32
    assert weights.tolist() == [0.5, 1.0, 0.25, 0.25]


def test_importance_is_never_zero() -> None:
    tree = tree_of([1e-200, 1e200])
    assert 0 < tree.importance(np.array([1]), 1.0)[0] < 1e-37


def test_kernels_run_if_their_code_cannot_be_cached() -> None:
    # numba cannot cache the code of a function that is not in a file.
    namespace: dict[str, Any] = {}
    exec(compile("def twice(x):\n    return 2 * x", "<nowhere>", "exec"), namespace)
    assert compiled("int64(int64)")(namespace["twice"])(21) == 42


@pytest.mark.parametrize(("size", "count"), [(5, 3), (300, 7), (5_000, 200)])
def test_draws_are_those_of_the_cumulative_sum(size: int, count: int) -> None:
    rng = np.random.default_rng(0)
    weights, uniforms = rng.random(size), rng.random(count)
    tree = SumTree(size)
    tree.assign(np.arange(size), weights)
    targets = (np.arange(count) + uniforms) * (weights.sum() / count)
    expected = np.searchsorted(np.cumsum(weights), targets, side="right")
    assert tree.draw(uniforms).tolist() == expected.tolist()
