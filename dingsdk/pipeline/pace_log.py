"""The pace of each worker of a parallel run, in tensorboard."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dingsdk.worker.coordinator import CoordinatorStatus
from dingsdk.worker.run_logger import build_tb_logger

EVERY_S = 5.0


class PaceLog:
    """Writes ``pace/<worker>`` and ``relative_pace/<worker>`` over the env steps of the run.

    Args:
        run_dir: The run folder; the events are in ``log/coordinator_tb_logger``.
        clock: Monotonic seconds.
    """

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._tb_logger = build_tb_logger(run_dir / "log", "coordinator")
        self._clock = clock
        self._next = clock() + EVERY_S

    def write(self, status: CoordinatorStatus) -> None:
        """Write the paces of a snapshot, if it is time to."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + EVERY_S
        for worker_id, pace in status.paces.items():
            self._tb_logger.add_scalar(f"pace/{worker_id}", pace.per_s, status.env_steps)
            if pace.relative is not None:
                name = f"relative_pace/{worker_id}"
                self._tb_logger.add_scalar(name, pace.relative, status.env_steps)

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._tb_logger.close()
