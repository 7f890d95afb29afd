"""The roles of a parallel run, each for itself: a worker, or the coordinator without workers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dingsdk.errors import ClosedError
from dingsdk.pipeline.threads import torch_threads
from dingsdk.plugins import default_manager
from dingsdk.worker import create_comm_collector, create_comm_learner
from dingsdk.worker.comm.transport import Role

POLL_S = 0.2


def make_transport(cfg: Any, run_dir: Path) -> Any:
    """Return the transport of this process, as section ``system.transport`` names it."""
    return default_manager().create(
        "transports", cfg.system.transport, run_dir, config_path="system.transport"
    )


def make_worker(role: Role, cfg: Any, transport: Any, worker_id: str) -> Any:
    """Return an unstarted comm worker; its type is the transport's unless the config names one."""
    create = create_comm_collector if role == "collector" else create_comm_learner
    section = {"type": cfg.system.transport.type, **cfg.system.get(role, {})}
    return create(section, transport=transport, worker_id=worker_id)


def run_worker(
    role: Role,
    cfg: Any,
    address: str,
    worker_id: str,
    run_dir: Path,
    stop: threading.Event,
    on_joined: Callable[[], None] | None = None,
) -> None:
    """Serve a coordinator as one worker until ``stop`` or until the coordinator ends the run.

    A stopped worker leaves at once and says so; a learner saves its checkpoint first.

    Args:
        role: What it serves as.
        cfg: The compiled config.
        address: The coordinator's.
        worker_id: Unique in the run.
        run_dir: Folder for logs and checkpoints, and what the transport keeps in files; all
            workers of a run share it.
        stop: Set to make it leave.
        on_joined: Called once the coordinator knows it.

    Raises:
        WorkerLostError: the coordinator cannot be reached, or gave it up for good.
        DingError: it cannot be built.
    """
    manager = default_manager()
    manager.configure(cfg)
    with ExitStack() as stack:
        stack.callback(manager.unconfigure)
        stack.enter_context(torch_threads(cfg.system.torch_threads))
        transport = make_transport(cfg, run_dir)
        stack.callback(transport.close)
        worker = make_worker(role, cfg, transport, worker_id)
        stack.callback(worker.close)
        # Beside this thread, because it waits for the coordinator and a stop must end that.
        joining = transport.scheduler.spawn(lambda: worker.start(address), f"{worker_id}-joining")
        while not joining.join(POLL_S):
            if stop.is_set():
                return
        if joining.error is not None:
            with contextlib.suppress(ClosedError):
                raise joining.error
            return
        if on_joined is not None:
            on_joined()
        while not (stop.wait(POLL_S) or worker.is_over):
            pass
        if worker.failure is not None and not stop.is_set():
            raise worker.failure
