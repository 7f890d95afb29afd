"""Priority samplers: how often rows are drawn, importance weights, ranks, and states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dingsdk.errors import CheckpointCorruptError, CheckpointVersionError, ConfigError
from dingsdk.worker.replay_buffer.sampler.priority import (
    PrioritySampler,
    ProportionalSampler,
    RankSampler,
)

KINDS = [ProportionalSampler, RankSampler]


def sampler_of(
    priorities: NDArray[np.float64] | list[float],
    kind: type[PrioritySampler] = ProportionalSampler,
    seed: int = 0,
    **cfg: Any,
) -> PrioritySampler:
    sampler = kind({**kind.default_config(), **cfg}, len(priorities), seed)
    sampler.assign(np.arange(len(priorities)), np.array(priorities, np.float64))
    return sampler


def state_of(sampler: PrioritySampler) -> dict[str, Any]:
    """Return the state with columns, as a buffer saves it."""
    columns = {name: column.copy() for name, column in sampler.columns().items()}
    return {**sampler.state_dict(), **columns}


def chi_square_limit(degrees: int, z: float = 4.0) -> float:
    """Return the value that a chi-square variable exceeds once in 30,000 (Wilson-Hilferty)."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + z * spread**0.5) ** 3)


def chi_square(counts: NDArray[np.int64], shares: NDArray[np.float64]) -> float:
    expected = counts.sum() * shares / shares.sum()
    assert expected.min() > 5, "too few draws for a meaningful test"
    return float(np.sum((counts - expected) ** 2 / expected))


def counts_of(sampler: PrioritySampler, size: int, batch: int, draws: int) -> NDArray[np.int64]:
    counts = np.zeros(size, np.int64)
    for _ in range(draws // batch):
        counts += np.bincount(sampler.draw(batch), minlength=size)
    return counts


# Draws ----------------------------------------------------------------------------------------


def test_a_draw_takes_one_row_from_each_share_of_the_weight() -> None:
    drawn = sampler_of(np.ones(64)).draw(64)
    assert drawn.tolist() == list(range(64))


@pytest.mark.parametrize("kind", KINDS)
def test_draws_among_given_positions_return_only_these(kind: type[PrioritySampler]) -> None:
    sampler = sampler_of(np.arange(1.0, 21.0), kind, alpha=1.0)
    sampler.on_remove(np.array([12, 14]))
    among = np.array([14, 3, 12, 17, 0])
    drawn = sampler.draw(4000, among)
    counts = np.bincount(drawn, minlength=20)[[3, 17, 0]]
    shares = sampler._tree.weights[[3, 17, 0]]
    assert counts.sum() == 4000
    assert chi_square(counts, shares) < chi_square_limit(2)
    assert sampler.draw(4, np.array([14, 12])).tolist() == []


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan"), "1", True])
def test_alpha_outside_of_0_to_1_is_refused(alpha: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        ProportionalSampler({"alpha": alpha}, 4)
    assert caught.value.path == "sampler.alpha"


# Ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_rows_are_drawn_by_rank(alpha: float) -> None:
    priorities = np.random.default_rng(5).permutation(10.0 ** np.arange(-20, 20))
    sampler = sampler_of(priorities, RankSampler, alpha=alpha)
    ranks = 40 - np.argsort(np.argsort(priorities))
    counts = counts_of(sampler, 40, 50, 100_000)
    assert chi_square(counts, (1 / ranks) ** alpha) < chi_square_limit(39)


def test_ranks_stay_until_enough_priorities_were_assigned() -> None:
    sampler = sampler_of([4.0, 3.0, 2.0, 1.0], RankSampler, alpha=1.0, sort_after=0.75)
    sampler.draw(1)
    before = sampler._tree.weights.tolist()
    assert before == [1.0, 1 / 2, 1 / 3, 1 / 4]
    sampler.assign(np.array([3, 2]), np.array([9.0, 8.0]))
    sampler.draw(1)
    assert sampler._tree.weights.tolist() == before
    sampler.assign(np.array([1]), np.array([0.5]))
    sampler.draw(1)
    assert sampler._tree.weights.tolist() == [1 / 3, 1 / 4, 1 / 2, 1.0]


def test_new_rows_are_ranked_among_the_sorted_rows() -> None:
    sampler = RankSampler({"alpha": 1.0, "sort_after": 10.0}, 6, 0)
    sampler.assign(slice(0, 3), np.array([5.0, 3.0, 1.0]))
    sampler._sort()
    sampler.assign(slice(3, 5), np.array([3.0, 4.0]))
    # 3.0 ranks after 5.0 and the equal 3.0; 4.0 ranks after 5.0 and the new 3.0.
    assert sampler._tree.weights[3:5].tolist() == [1 / 3, 1 / 3]
    sampler.on_remove(slice(0, 1))
    sampler.assign(slice(0, 1), 1.0)
    assert sampler._tree.weights[0] == 1 / 6


@pytest.mark.parametrize("where", [slice(0, 2), np.array([0, 1])])
def test_one_priority_is_assigned_to_all_given_rows(where: Any) -> None:
    sampler = sampler_of([9.0, 9.0, 1.0], alpha=0.5)
    sampler.assign(where, 16.0)
    assert sampler._tree.weights.tolist() == [4.0, 4.0, 1.0]
    assert sampler.priorities(np.arange(3)).tolist() == [16.0, 16.0, 1.0]


def test_a_row_that_replaces_another_gets_its_own_rank() -> None:
    sampler = RankSampler({"alpha": 1.0, "sort_after": 10.0}, 3, 0)
    sampler.assign(slice(0, 3), np.array([5.0, 3.0, 1.0]))
    sampler._sort()
    assert sampler._tree.weights.tolist() == [1, 1 / 2, 1 / 3]
    sampler.on_insert(slice(0, 1), [{}], np.array([0.5]))
    # After the three ranked rows, including the one that left.
    assert sampler._tree.weights.tolist() == [1 / 4, 1 / 2, 1 / 3]


# State ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"alpha": 0.5}, CheckpointVersionError),
        ({"alpha": None}, CheckpointVersionError),
        ({"max_priority": float("inf")}, CheckpointCorruptError),
        ({"max_priority": 0.0}, CheckpointCorruptError),
        ({"max_priority": "1"}, CheckpointCorruptError),
        ({"weights": [1.0, float("nan")]}, CheckpointCorruptError),
        ({"weights": [-1.0, 1.0]}, CheckpointCorruptError),
        ({"weights": [1.0]}, CheckpointCorruptError),
        ({"weights": [1.0] * 5}, CheckpointCorruptError),
        ({"weights": [1e308, 1e308]}, CheckpointCorruptError),
        ({"priorities": [0.0, 1.0]}, CheckpointCorruptError),
        ({"priorities": "ab"}, CheckpointCorruptError),
        ({"priorities": [[1.0], [2.0]], "weights": [[1.0], [2.0]]}, CheckpointCorruptError),
        ({"priorities": [1.0] * 3, "weights": [1.0] * 3}, CheckpointCorruptError),
        ({"state": "zz"}, CheckpointCorruptError),
    ],
)
def test_a_wrong_state_changes_nothing(
    kind: type[PrioritySampler], change: dict[str, Any], error: type[Exception]
) -> None:
    sampler, twin = sampler_of([1.0, 2.0], kind), sampler_of([1.0, 2.0], kind)
    wrong = {**state_of(sampler), **change}
    with pytest.raises(error):
        sampler.load_state_dict(wrong)
    assert sampler.draw(20).tolist() == twin.draw(20).tolist()
    assert sampler.max_priority == 2.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_with_the_largest_weight_is_accepted(kind: type[PrioritySampler]) -> None:
    sampler = sampler_of([1.0, 2.0], kind)
    largest = sampler._tree.largest_weight
    sampler.load_state_dict({**state_of(sampler), "weights": [largest, 1.0]})
    assert state_of(sampler)["weights"].tolist() == [largest, 1.0]


@pytest.mark.parametrize(
    "change",
    [{"sorted": [2.0, 1.0]}, {"sorted": [1.0, float("nan")]}, {"new": -1}, {"assigned": 1.5}],
)
def test_a_state_with_wrong_ranks_is_refused(change: dict[str, Any]) -> None:
    sampler = sampler_of([1.0, 2.0], RankSampler)
    with pytest.raises(CheckpointCorruptError):
        sampler.load_state_dict({**state_of(sampler), **change})
