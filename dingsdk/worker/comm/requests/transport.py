"""A transport whose ends talk in requests: what it gives out, and how that is closed."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from dingsdk.worker.comm.requests.master_end import RequestMasterEnd
from dingsdk.worker.comm.requests.slave_end import RequestSlaveEnd
from dingsdk.worker.comm.scheduler import Scheduler, ThreadScheduler
from dingsdk.worker.comm.transport import MasterEnd, Place, SlaveEnd, Transport


class RequestTransport(Transport):
    """Keeps the ends that it gives out; a subclass makes them, and the stores.

    Args: as ``Transport``.
    """

    places: ClassVar[tuple[Place, ...]] = ("processes", "threads")

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        super().__init__(cfg, run_dir)
        self._lock = threading.RLock()
        """Guards what is made when it is first asked for."""
        self._masters: list[RequestMasterEnd] = []
        self._slaves: list[RequestSlaveEnd[Any]] = []
        self._scheduler = ThreadScheduler()

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    @abstractmethod
    def make_master_end(self) -> RequestMasterEnd:
        """Return a master's end, which is not open yet; the lock is held."""

    @abstractmethod
    def make_slave_end(self, address: str) -> RequestSlaveEnd[Any]:
        """Return an unjoined slave's end that dials ``address``; the lock is held.

        Raises:
            ConfigError: it is no address of this transport.
        """

    @abstractmethod
    def release(self) -> None:
        """Close the stores, and what else was made; all ends are closed, and the lock is held."""

    def master_end(self) -> MasterEnd:
        with self._lock:
            self._masters.append(self.make_master_end())
            return self._masters[-1]

    def slave_end(self, address: str) -> SlaveEnd:
        with self._lock:
            self._slaves.append(self.make_slave_end(address))
            return self._slaves[-1]

    def abandon_worker(self, worker_id: str) -> None:
        """Cut a worker off from this process's master as if its host had died."""
        for end in self._masters:
            end.abandon_worker(worker_id)

    def close(self, timeout_s: float = 5.0) -> None:
        with self._lock:
            slaves, self._slaves = self._slaves, []
            masters, self._masters = self._masters, []
        for slave in slaves:
            slave.close(timeout_s)
        for master in masters:
            master.close(timeout_s)
        self._scheduler.close(timeout_s)
        with self._lock:
            self.release()
