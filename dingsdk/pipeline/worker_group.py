"""The workers of a run, wherever they are: started, watched and ended alike."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from typing import Any

from dingsdk.errors import TaskTimeoutError
from dingsdk.pipeline.worker import worker_ids
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.comm.worker import CommWorker
from dingsdk.worker.coordinator.roles import create_role

_log = logging.getLogger(__name__)

STALL_LIMIT_S = 60.0
"""How long one job may keep all others of a cooperative transport waiting."""
POLL_S = 0.1


class WorkerGroup(ABC):
    """The workers of one run."""

    @abstractmethod
    def start(self, address: str) -> None:
        """Start all workers; they dial ``address``."""

    @abstractmethod
    def poll(self) -> None:
        """Watch them; called several times a second while the run goes on.

        Raises:
            DingError: the run cannot go on with them.
        """

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """End all, by force those that have not ended in time; idempotent."""

    def crash_report(self, worker_id: str) -> str:
        """Return the crash output of a dead worker, ``""`` without one."""
        return ""


class ThreadWorkers(WorkerGroup):
    """Workers in this process, on the transport's scheduler."""

    def __init__(self, cfg: Any, transport: Transport) -> None:
        self._cfg = cfg
        self._transport = transport
        self._workers: list[CommWorker] = []

    def start(self, address: str) -> None:
        for role, worker_id in worker_ids(self._cfg):
            worker = create_role(role, self._cfg).create_worker(self._transport, worker_id)
            self._workers.append(worker)
            worker.start(address)

    def poll(self) -> None:
        stalled = self._transport.scheduler.stalled_job(STALL_LIMIT_S)
        if stalled is not None:
            raise TaskTimeoutError(
                f"one job has kept all others waiting for over {STALL_LIMIT_S:.0f} s; find out "
                f"why it hangs, or use a transport that runs workers as processes: {stalled}",
                task=stalled,
                timeout_s=STALL_LIMIT_S,
            )

    def close(self, timeout_s: float) -> None:
        # Side by side: where one job keeps all others waiting, each close takes its full time.
        closers = [
            threading.Thread(target=worker.close, name="close", daemon=True)
            for worker in self._workers
        ]
        self._workers.clear()
        deadline = time.monotonic() + timeout_s
        for closer in closers:
            closer.start()
        for closer in closers:
            while closer.is_alive() and time.monotonic() < deadline:
                # It may have had the time before: its tasks were told to end first.
                stalled = self._transport.scheduler.stalled_job(timeout_s)
                if stalled is not None:
                    text = "this job does not end, and no other could save anything meanwhile: %s"
                    _log.warning(text, stalled)
                    return
                closer.join(POLL_S)


class ExternalWorkers(WorkerGroup):
    """Workers that others start and watch, on this host or elsewhere."""

    def start(self, address: str) -> None:
        pass

    def poll(self) -> None:
        pass

    def close(self, timeout_s: float) -> None:
        pass
