"""What went through a buffer, logged now and then by the calls themselves: no thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from dingsdk.worker.replay_buffer.interface import BufferStats

_log = logging.getLogger(__name__)


class ThroughputMonitor:
    """Logs once per period how many rows came, were sampled and left in it.

    Args:
        instance_name: The buffer's name, for the log.
        period_s: Seconds between two reports, at least.
        tb_logger: A writer with ``add_scalar(tag, value, step)``, or None.
        clock: Seconds, monotonic.

    Attributes:
        next_report_s: From when on a report is due, by the clock. A plain attribute, as every push
            and sample compares it: a call takes a twentieth of a small push.
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
        """Log what changed since the last report."""
        self.next_report_s = self._clock() + self._period_s
        before, self._before = self._before, stats
        facts = {
            "pushed_in": stats.pushed - before.pushed,
            "sampled_out": stats.sampled - before.sampled,
            "removed": stats.left - before.left,
            "current_have": stats.count,
        }
        told = ", ".join(f"{name} {value}" for name, value in facts.items())
        _log.info("%s in %g s: %s", self._instance_name, self._period_s, told)
        if self._tb_logger is not None:
            for name, value in facts.items():
                self._tb_logger.add_scalar(f"{self._instance_name}_sec/{name}", value, stats.pushed)
