"""Statistics of sampled rows: which samples are recorded, and what is reported."""

from __future__ import annotations

import numpy as np
import pytest

from dingsdk.worker.replay_buffer.metrics import SampleMonitor
from tests.fakes import Clock


def is_next(monitor: SampleMonitor) -> bool:
    """Count a sample as a buffer does; return whether it must be recorded."""
    monitor.skip -= 1
    return monitor.skip == 0


@pytest.mark.parametrize(
    ("average_range", "print_freq", "apart", "reports", "first"),
    [
        (5, 200, 40, 5, 160),
        (5, 5, 1, 200, 4),
        (10, 3, 1, 333, 2),
        (1, 100, 100, 10, 0),
        (3, 100, 33, 10, 66),
    ],
)
def test_some_samples_are_recorded_and_reports_are_regular(
    average_range: int, print_freq: int, apart: int, reports: int, first: int
) -> None:
    clock = Clock()
    monitor = SampleMonitor("buffer", average_range, print_freq, clock=clock)
    looked, due = [], []
    for number in range(1000):
        clock.now += 10.0  # a faster buffer reports less often after 200 times
        if is_next(monitor):
            looked.append(number)
            monitor.record({})
            if monitor.report_due:
                due.append(number)
                monitor.report(monitor.stats(), 0)
    assert looked == list(range(0, 1000, apart))
    assert (len(due), due[0]) == (reports, first)


def test_unknown_staleness_is_left_out() -> None:
    monitor = SampleMonitor("buffer", 2, 2)
    monitor.record({"staleness": np.array([-1, 4, -1, 2])})
    monitor.record({"staleness": np.array([-1, -1])})
    names = ("staleness_mean", "staleness_min", "staleness_max")
    assert monitor.stats() == dict(zip(names, (3.0, 2.0, 4.0), strict=True))
