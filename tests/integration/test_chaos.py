"""Short real runs with injected faults, and the functions that evaluate their measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tools.chaos.__main__ import MAX_USE, run
from tools.chaos.counting import episode_lengths
from tools.chaos.lengths import SETS, distance
from tools.chaos.soak import growth_a_minute


@pytest.mark.slow
def test_run_under_faults_loses_no_rows_and_no_long_episodes(tmp_path: Path) -> None:
    arm = run(tmp_path, seconds=60.0, kills=10, seed=0, sets=SETS)

    assert arm.problems == []
    assert sum(count for kind, count in arm.faults.items() if kind.endswith("killed")) == 10
    assert arm.acknowledged_rows > 2_000
    assert 0 < arm.most_uses <= MAX_USE
    lengths = episode_lengths(tmp_path)
    # Quantiles of the episode lengths that ``HeavyTailed`` draws, which are at most 1000.
    shares = np.arange(1, 10_001) / 10_001
    expected = np.minimum(1000, (5 * shares ** (-1 / 1.2)).astype(int)).tolist()
    assert distance(lengths, expected) < 0.05 + 1 / len(lengths) ** 0.5


def test_distance_is_the_largest_gap_between_distribution_functions() -> None:
    # The largest gap is at 2: the functions are 2/4 and 0 there.
    assert distance([1, 2, 3, 5], [3, 5]) == 0.5
    assert distance([1, 2], [2, 1, 1, 2]) == 0.0


@pytest.mark.slow
def test_shared_memory_run_under_faults_loses_no_rows_and_leaves_no_files(tmp_path: Path) -> None:
    run_memory = pytest.importorskip("dingsdk_shared_memory.run_memory")
    sets = ["system.transport.type=shared_memory"]
    arm = run(tmp_path, seconds=15.0, kills=4, seed=1, sets=sets)

    assert arm.problems == []
    assert sum(count for kind, count in arm.faults.items() if kind.endswith("killed")) == 4
    assert {"learner killed", "coordinator killed"} <= arm.faults.keys()
    assert arm.acknowledged_rows > 300
    assert not run_memory.folder_of(tmp_path / "disk" / "run").exists()


def test_growth_is_the_slope_of_a_line_fitted_to_the_measurements() -> None:
    points = [(60.0 + 10 * k, 1_000_000 + 2_000 * k, 20) for k in range(5)]

    size, files = growth_a_minute(points)

    assert size == pytest.approx(12_000)
    assert files == pytest.approx(0, abs=1e-9)
