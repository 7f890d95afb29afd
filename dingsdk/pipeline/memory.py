"""How much memory a worker's process takes: its limit, and growth without end."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger(__name__)

LOOK_S = 5.0
SETTLED_S = 60.0
"""How long a worker imports and builds what it keeps; growth is measured from then on."""
GROWTH, GROWTH_BYTES = 2.0, 256 << 20
"""A worker that grew by both is named: by this factor, and by so many bytes."""


class MemoryWatch:
    """Watches the process that it is made in, and its children, in bytes of memory."""

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
        """Whether the process takes more than the limit; looks every few seconds only."""
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
    """Return what this process and its children have in memory; 0 where no ``/proc`` tells it."""
    page = os.sysconf("SC_PAGE_SIZE")
    total, rest = 0, [os.getpid()]
    while rest:
        process = Path("/proc", str(rest.pop()))
        try:
            total += int((process / "statm").read_text().split()[1]) * page
            for children in process.glob("task/*/children"):
                rest += map(int, children.read_text().split())
        except OSError:  # it ended meanwhile
            continue
    return total
