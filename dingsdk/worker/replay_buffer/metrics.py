"""Throughput of a buffer, and statistics of sampled rows. No threads.

Monitors take the buffer's name for the log, and ``tb_logger``, a writer with ``add_scalar(tag,
value, step)`` or None; ``clock`` returns monotonic seconds.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.interface import BufferStats
from dingsdk.worker.run_logger import LogPace

_log = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, least and greatest value of a fact over the rows of some samples."""

    mean: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class SampledStats:
    """Statistics of the rows of the latest samples.

    Attributes:
        facts: By name: ``age`` (rows pushed after it), ``use`` (times sampled), ``priority``,
            ``staleness`` (learner iterations; rows with unknown staleness are left out). Only
            the facts that the kind of buffer records.
        samples: How many samples they were taken from.
        pushed_per_s: Rows pushed per second since the oldest of these samples.
        sampled_per_s: Rows sampled per second since then.
    """

    facts: Mapping[str, Spread]
    samples: int
    pushed_per_s: float
    sampled_per_s: float


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
        self._clock = clock
        self._pace = LogPace(clock)
        self._stride = max(print_freq // average_range, 1)
        self._records_a_report = max(print_freq // self._stride, 1)
        self.skip = 1
        self.report_due = False
        self._records = 0
        self._facts: deque[dict[str, Spread]] = deque(maxlen=average_range)
        # One mark more than samples, so that there are as many intervals as samples.
        self._marks: deque[tuple[float, int, int]] = deque(maxlen=average_range + 1)
        self._marks.append((clock(), 0, 0))

    def record(self, facts: Mapping[str, NDArray[Any]], pushed: int, sampled: int) -> None:
        """Record a sample.

        Args:
            facts: One number a row, by name; not kept. A staleness below 0 means unknown.
            pushed: Rows pushed so far.
            sampled: Rows sampled so far, this sample included.
        """
        self.skip = self._stride
        self._records += 1
        spreads = {name: _spread(name, values) for name, values in facts.items()}
        self._facts.append({name: each for name, each in spreads.items() if each is not None})
        self._marks.append((self._clock(), pushed, sampled))
        if self._records % self._records_a_report == 0 and self._pace.is_due():
            self.report_due = True

    def stats(self, pushed: int, sampled: int) -> SampledStats:
        """Return statistics of the recorded samples; the arguments are the current counts."""
        since_s, pushed_before, sampled_before = self._marks[0]
        elapsed_s = self._clock() - since_s
        names = dict.fromkeys(name for facts in self._facts for name in facts)
        facts = {}
        for name in names:
            seen = [recorded[name] for recorded in self._facts if name in recorded]
            facts[name] = Spread(
                mean=sum(each.mean for each in seen) / len(seen),
                least=min(each.least for each in seen),
                most=max(each.most for each in seen),
            )
        return SampledStats(
            facts=facts,
            samples=len(self._facts),
            pushed_per_s=(pushed - pushed_before) / elapsed_s if elapsed_s > 0 else 0.0,
            sampled_per_s=(sampled - sampled_before) / elapsed_s if elapsed_s > 0 else 0.0,
        )

    def report(self, stats: SampledStats, pushed: int) -> None:
        """Log statistics; ``pushed`` is the step for ``tb_logger``."""
        self.report_due = False
        values = {"pushed_per_s": stats.pushed_per_s, "sampled_per_s": stats.sampled_per_s}
        for name, spread in stats.facts.items():
            values[f"{name}_mean"] = spread.mean
            values[f"{name}_min"] = spread.least
            values[f"{name}_max"] = spread.most
        text = ", ".join(f"{name} {value:g}" for name, value in values.items())
        _log.info("%s, the last %d samples: %s", self._instance_name, stats.samples, text)
        _draw(self._tb_logger, f"{self._instance_name}_sampled", values, pushed)


def _draw(tb_logger: Any, prefix: str, values: Mapping[str, float], step: int) -> None:
    if tb_logger is not None:
        for name, value in values.items():
            tb_logger.add_scalar(f"{prefix}/{name}", value, step)


def _spread(name: str, values: NDArray[Any]) -> Spread | None:
    if name == "staleness":
        values = values[values >= 0]
    if not values.size:
        return None
    # The array methods (mean, min, max) call these through Python code, which doubles the time.
    mean = float(np.add.reduce(values)) / values.size
    return Spread(mean, float(np.minimum.reduce(values)), float(np.maximum.reduce(values)))
