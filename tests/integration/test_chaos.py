"""A minute of a real run under faults, and how growth is read from measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.chaos.__main__ import run
from tools.chaos.soak import growth_a_minute


@pytest.mark.slow
def test_run_under_faults_loses_nothing(tmp_path: Path) -> None:
    arm = run(tmp_path, seconds=60.0, faults=12, seed=0)

    assert arm.problems == []
    assert sum(arm.faults.values()) == 12
    assert arm.acknowledged_rows > 2_000


def test_growth_is_that_of_the_line_through_the_measurements() -> None:
    points = [(60.0 + 10 * k, 1_000_000 + 2_000 * k, 20) for k in range(5)]

    size, files = growth_a_minute(points)

    assert size == pytest.approx(12_000)
    assert files == pytest.approx(0, abs=1e-9)
