"""Watches the memory of a worker's process."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Interval at which a worker measures its memory."""
SETTLED_S = 60.0
"""Time that a worker needs to import and build its parts; growth is measured from then on."""
GROWTH, GROWTH_BYTES = 2.0, 256 << 20
"""A warning is logged if a worker's memory grew by this factor and by this many bytes."""


class MemoryWatch:
    """Measures the memory of the current process and its children, and warns if it grows."""

    def __init__(
        self,
        worker_id: str,
        limit_bytes: int | None,
        clock: Callable[[], float] = time.monotonic,
        read: Callable[[], int] | None = None,
    ) -> None:
        self._worker_id = worker_id
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._read = resident_bytes if read is None else read
        self._began_at = self._looked_at = clock()
        self._settled_bytes: int | None = None
        self._is_over = False

    def is_over_limit(self) -> bool:
        """Whether the memory is above the limit; it is measured only every ``LOOK_S`` seconds."""
        now = self._clock()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._look(now)
        return self._is_over

    def _look(self, now: float) -> None:
        used = self._read()
        self._is_over = self._limit_bytes is not None and used > self._limit_bytes
        if now - self._began_at < SETTLED_S:
            return
        before = self._settled_bytes
        if before is None:
            self._settled_bytes = used
        elif used >= before * GROWTH and used - before >= GROWTH_BYTES:
            _log.warning(
                "worker %s grew from %s to %s MB; if it grows without end, its envs or its policy "
                "keep what they no longer need (system.worker_memory_limit restarts it in time)",
                self._worker_id,
                f"{before / 1e6:,.0f}",
                f"{used / 1e6:,.0f}",
            )
            self._settled_bytes = used


def resident_bytes() -> int:
    """Return the resident bytes of this process and its children; 0 if there is no ``/proc``."""
    page = os.sysconf("SC_PAGE_SIZE")
    total, rest = 0, [os.getpid()]
    while rest:
        process = Path("/proc", str(rest.pop()))
        with contextlib.suppress(OSError):  # the process has ended
            total += int((process / "statm").read_text().split()[1]) * page
            for children in process.glob("task/*/children"):
                rest += map(int, children.read_text().split())
    return total
