"""Workers of a parallel run: lists them, runs one in this process, or all as its threads."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

from dingsdk.envs.subprocess import SubprocessEnvManager
from dingsdk.errors import (
    ClosedError,
    DingError,
    TaskTimeoutError,
    WorkerLostError,
)
from dingsdk.pipeline.run_folder import private_files
from dingsdk.plugins import default_manager
from dingsdk.policy.threads import torch_threads
from dingsdk.runtime.files import guarded
from dingsdk.worker.comm.slave import Slave
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.coordinator.role import create_role, create_roles
from dingsdk.worker.learner.aggregator import serve_remote
from dingsdk.worker.learner.remote_ranks import RankPlace, RemoteRanks

_log = logging.getLogger(__name__)

POLL_S = 0.2
"""Interval at which a worker checks whether it has to stop."""
LEAST_WORK_S = 20.0
"""Shortest time of work before a worker above its memory limit may leave during a task."""
STALL_LIMIT_S = 60.0
"""How long one job of a cooperative transport may make all others wait."""
LOOK_S = 5.0
"""Interval at which a worker measures its memory."""
SETTLED_S = 60.0
"""Time that a worker needs to import and build its parts; growth is measured from then on."""
GROWTH, GROWTH_BYTES = 2.0, 256 << 20
"""A warning is logged if a worker's memory grew by this factor and by this many bytes."""


def make_transport(cfg: Any, run_dir: Path) -> Transport:
    """Create the transport that section ``system.transport`` names, for this process."""
    transport: Transport = default_manager().create(
        "transports", cfg.system.transport, run_dir, config_path="system.transport"
    )
    return transport


def worker_ids(cfg: Any) -> list[tuple[str, str]]:
    """Return role and id of every worker that a run starts; learners first."""
    return [
        (name, f"{name}-{index}")
        for name, role in create_roles(cfg).items()
        for index in range(role.worker_num)
    ]


def leave_data(transport: Transport, *, is_kept: bool) -> None:
    """Keep the transport's files of a run that can be resumed, or remove them."""
    try:
        (transport.keep_data if is_kept else transport.remove_data)()
    except DingError as error:
        _log.warning("files of the run remain: %s", error)


def has_processes(cfg: Any, mode: str) -> bool:
    """Whether the workers of a run are processes of their own."""
    return mode == "parallel" and transport_class(cfg).place_of(cfg.system.transport) != "threads"


def has_env_processes(cfg: Any) -> bool:
    """Whether the env manager of a run makes envs in child processes."""
    manager_cls = default_manager().class_of("env_managers", cfg.env_manager, "env_manager")
    is_async = cfg.env_manager.get("vectorization_mode") == "async"
    return is_async or issubclass(manager_cls, SubprocessEnvManager)


def check_reach(cfg: Any) -> None:
    """Raise ConfigError unless the config's transport reaches other processes."""
    transport_class(cfg).place_of(cfg.system.transport, is_elsewhere=True)


def transport_class(cfg: Any) -> type[Transport]:
    """Return the class of the transport that ``system.transport`` names."""
    found = default_manager().class_of("transports", cfg.system.transport, "system.transport")
    return cast(type[Transport], found)


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


def run_worker(
    role: str,
    cfg: Any,
    address: str,
    worker_id: str,
    run_dir: Path,
    stop: threading.Event,
    on_joined: Callable[[], None] | None = None,
    place: RankPlace | None = None,
) -> bool:
    """Run one worker until ``stop`` is set or the coordinator ends the run.

    When ``stop`` is set, the worker tells the coordinator and leaves at once; a learner saves its
    checkpoint first. A worker whose memory exceeds ``system.worker_memory_limit`` leaves between
    two tasks. It leaves during a task if another worker can continue that task.

    Args:
        run_dir: Folder for logs, checkpoints and files of the transport; all workers share it.
        on_joined: Called once the worker has joined the coordinator.
        place: Rank and address, if the user started several learners that train together. Only
            the learner of rank 0 joins the coordinator; the others train with it.

    Returns:
        Whether the worker left because of its memory, and should be started again.

    Raises:
        WorkerLostError: the coordinator cannot be reached, or gave the worker up for good.
        DingError: the worker cannot be built.
    """
    manager = default_manager()
    manager.configure(cfg)
    with private_files(), guarded(run_dir), ExitStack() as stack:
        stack.callback(manager.unconfigure)
        stack.enter_context(torch_threads(cfg.system.torch_threads))
        if place is not None and place.rank > 0:
            serve_remote(place, cfg.policy, stop)
            return False
        transport = make_transport(cfg, run_dir)
        stack.callback(transport.close)
        made_role = create_role(role, cfg)
        worker: Any = made_role.create_worker(transport, worker_id)
        worker.rejoin_s = cfg.system.rejoin_s
        worker.storage_timeout_s = cfg.system.coordinator.storage_timeout_s
        if place is not None:
            worker.remote_ranks = stack.enter_context(closing(RemoteRanks(place)))
        stack.callback(worker.close)
        # In another job: it waits for the coordinator, and this thread has to check `stop`.
        joining = transport.scheduler.spawn(lambda: worker.start(address), f"{worker_id}-joining")
        while not joining.join(POLL_S):
            if stop.is_set():
                return False
        if joining.error is not None:
            with contextlib.suppress(ClosedError):
                raise joining.error
            return False
        if on_joined is not None:
            on_joined()
        memory = MemoryWatch(worker_id, cfg.system.worker_memory_limit)
        began_at: float | None = None
        while not (stop.wait(POLL_S) or worker.is_over):
            is_over_limit = memory.is_over_limit()
            if is_over_limit and began_at is not None:
                worked_s = time.monotonic() - began_at
                if not worker.has_job or (made_role.resumes and worked_s >= LEAST_WORK_S):
                    return True
            if began_at is None and worker.tasks_done:
                began_at = time.monotonic()
        if worker.failure is not None and not stop.is_set():
            raise worker.failure
        return False


class WorkerGroup:
    """The workers of one run; this base does nothing, for workers that the user starts."""

    def start(self, address: str) -> None:
        """Start all workers; they connect to ``address``."""

    def poll(self) -> None:
        """Check the workers; called several times per second.

        Raises:
            DingError: the run cannot continue.
        """

    def close(self, timeout_s: float) -> None:
        """End all workers; kill those that do not end in time. Idempotent."""


class ThreadWorkers(WorkerGroup):
    """Runs workers in this process, as jobs of the transport's scheduler."""

    def __init__(self, cfg: Any, transport: Transport) -> None:
        self._cfg = cfg
        self._transport = transport
        self._workers: list[Slave] = []

    def start(self, address: str) -> None:
        for role, worker_id in worker_ids(self._cfg):
            worker: Any = create_role(role, self._cfg).create_worker(self._transport, worker_id)
            worker.storage_timeout_s = self._cfg.system.coordinator.storage_timeout_s
            self._workers.append(worker)
            worker.start(address)

    def poll(self) -> None:
        for worker in self._workers:
            # The coordinator handles lost workers; any other failure ends the run.
            if worker.failure is not None and not isinstance(worker.failure, WorkerLostError):
                raise worker.failure
        stalled = self._transport.scheduler.stalled_job(STALL_LIMIT_S)
        if stalled is not None:
            raise TaskTimeoutError(
                f"one job has kept all others waiting for over {STALL_LIMIT_S:.0f} s; find out "
                f"why it hangs, or use a transport that runs workers as processes: {stalled}",
                task=stalled,
                timeout_s=STALL_LIMIT_S,
            )

    def close(self, timeout_s: float) -> None:
        # All at the same time: if one job blocks all others, each close takes its full timeout.
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
                # A blocked job may have used its time already: tasks are ended before workers.
                stalled = self._transport.scheduler.stalled_job(timeout_s)
                if stalled is not None:
                    text = "this job does not end, and no other could save anything meanwhile: %s"
                    _log.warning(text, stalled)
                    return
                closer.join(POLL_S)
