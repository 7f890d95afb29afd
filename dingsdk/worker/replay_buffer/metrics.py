"""Throughput of a buffer, and statistics of sampled rows. No threads.

Monitors take the buffer's name for the log, and ``tb_logger``, a writer with ``add_scalar(tag,
value, step)`` or None; ``clock`` returns monotonic seconds.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.interface import BufferStats
from dingsdk.worker.run_logger import LogPace

_log = logging.getLogger(__name__)
_JOINED: Mapping[str, Callable[[list[float]], float]] = {"mean": fmean, "min": min, "max": max}
"""How the values of several samples are joined, by the end of their name."""


class ThroughputMonitor:
    """Logs how many rows were pushed, sampled and removed, once in ``period_s`` seconds.

    Attributes:
        next_report_s: When the next report is due, by the clock. A plain attribute, because every
            push and sample reads it, and a call would take a twentieth of a small push.
    """

    def __init__(
        self,
        instance_name: str,
        period_s: float,
        tb_logger: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._instance_name = instance_name
        self._period_s = period_s
        self._tb_logger = tb_logger
        self._clock = clock
        self.next_report_s = clock() + period_s
        self._before = BufferStats(0, 0, 0, 0, 0, 0)

    def report(self, stats: BufferStats) -> None:
        """Log the changes since the last report."""
        self.next_report_s = self._clock() + self._period_s
        before, self._before = self._before, stats
        facts = {
            "pushed_in": stats.pushed - before.pushed,
            "sampled_out": stats.sampled - before.sampled,
            "removed": stats.left - before.left,
            "current_have": stats.count,
        }
        text = ", ".join(f"{name} {value}" for name, value in facts.items())
        _log.info("%s in %g s: %s", self._instance_name, self._period_s, text)
        _draw(self._tb_logger, f"{self._instance_name}_sec", facts, stats.pushed)


class SampleMonitor:
    """Records some of the samples, and logs statistics once in ``print_freq`` samples.

    ``average_range`` of every ``print_freq`` samples are recorded, at even distances, because
    recording a sample takes as long as drawing it; the others are only counted. :meth:`record`
    and :meth:`stats` are called under the buffer's lock, :meth:`report` without it.

    Attributes:
        skip: Samples until the next recorded sample, which is included. The buffer decrements the
            number directly, because calling a method for each sample would take longer.
        report_due: Whether enough samples were recorded since the last report.
    """

    def __init__(
        self,
        instance_name: str,
        average_range: int = 5,
        print_freq: int = 200,
        tb_logger: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._instance_name = instance_name
        self._tb_logger = tb_logger
        self._pace = LogPace(clock)
        self._stride = max(print_freq // average_range, 1)
        self._records_a_report = max(print_freq // self._stride, 1)
        self.skip = 1
        self.report_due = False
        self._records = 0
        self._recent: deque[dict[str, float]] = deque(maxlen=average_range)

    def record(self, facts: Mapping[str, NDArray[Any]]) -> None:
        """Record a sample.

        Args:
            facts: One number a row, by name; not kept. A staleness below 0 means unknown.
        """
        self.skip = self._stride
        self._records += 1
        found: dict[str, float] = {}
        for name, values in facts.items():
            if name == "staleness":
                values = values[values >= 0]
            if values.size:
                # The methods of arrays (mean, min, max) call these through Python code, which
                # doubles the time.
                found[f"{name}_mean"] = float(np.add.reduce(values)) / values.size
                found[f"{name}_min"] = float(np.minimum.reduce(values))
                found[f"{name}_max"] = float(np.maximum.reduce(values))
        self._recent.append(found)
        if self._records % self._records_a_report == 0 and self._pace.is_due():
            self.report_due = True

    def stats(self) -> dict[str, float]:
        """Return mean, least and greatest value of each fact over the recorded samples."""
        seen: dict[str, list[float]] = {}
        for facts in self._recent:
            for name, value in facts.items():
                seen.setdefault(name, []).append(value)
        return {name: _JOINED[name.rpartition("_")[2]](each) for name, each in seen.items()}

    def report(self, stats: Mapping[str, float], pushed: int) -> None:
        """Log statistics; ``pushed`` is the step for ``tb_logger``."""
        self.report_due = False
        text = ", ".join(f"{name} {value:g}" for name, value in stats.items())
        _log.info("%s, the last %d samples: %s", self._instance_name, len(self._recent), text)
        _draw(self._tb_logger, f"{self._instance_name}_sampled", stats, pushed)


def _draw(tb_logger: Any, prefix: str, values: Mapping[str, float], step: int) -> None:
    if tb_logger is not None:
        for name, value in values.items():
            tb_logger.add_scalar(f"{prefix}/{name}", value, step)
