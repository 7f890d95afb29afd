"""One role of a parallel run in this process: a worker, or the coordinator without workers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dingsdk.errors import ClosedError
from dingsdk.pipeline.context import RunContext, RunResult
from dingsdk.pipeline.run_folder import claim_run_folder
from dingsdk.pipeline.threads import torch_threads
from dingsdk.pipeline.train import ProgressFactory, run_pipeline
from dingsdk.pipeline.workers import make_transport, make_worker, place_of
from dingsdk.plugins import default_manager
from dingsdk.worker.comm.transport import Role

POLL_S = 0.2


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


def run_coordinator(
    cfg: Any,
    run_dir: Path,
    on_address: Callable[[str, str], None],
    progress: ProgressFactory | None = None,
    announce: Callable[[str], None] | None = None,
) -> RunResult:
    """Train with workers that come by themselves; returns as ``train`` does.

    Args:
        cfg: The compiled config.
        run_dir: Folder of the run, a new one, that all workers share.
        on_address: Called with the address that workers dial, and what else they need.
        progress: As for ``train``.
        announce: As for ``train``.

    Raises:
        ConfigError: the transport reaches no workers outside this process.
        RunFolderError: the folder holds a run already, or cannot be written to.
        DingError: a part failed during the run.
    """
    check_reach(cfg)
    context = RunContext(cfg=cfg, run_dir=claim_run_folder(run_dir), on_address=on_address)
    return run_pipeline(context, "parallel", progress, announce)


def check_reach(cfg: Any) -> None:
    """Raise ConfigError unless the config's transport reaches other processes."""
    section = cfg.system.transport
    cls = default_manager().get("transports", section.type, section.get("import_names") or ())
    place_of(cls, section, is_elsewhere=True)
