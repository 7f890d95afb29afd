"""One worker of a parallel run in this process, and which workers a run has."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dingsdk.errors import ClosedError, ConfigError
from dingsdk.pipeline.context import torch_threads
from dingsdk.pipeline.run_folder import private_files
from dingsdk.plugins import default_manager
from dingsdk.worker.comm.transport import Place, Transport
from dingsdk.worker.coordinator.roles import create_role, create_roles

POLL_S = 0.2


def make_transport(cfg: Any, run_dir: Path) -> Transport:
    """Return the transport of this process, as section ``system.transport`` names it."""
    transport: Transport = default_manager().create(
        "transports", cfg.system.transport, run_dir, config_path="system.transport"
    )
    return transport


def worker_ids(cfg: Any) -> list[tuple[str, str]]:
    """Return role and id of every worker that a run starts by itself; learners first."""
    return [
        (name, f"{name}-{index}")
        for name, role in create_roles(cfg).items()
        for index in range(role.worker_num)
    ]


def place_of(
    transport_cls: type[Transport], section: Mapping[str, Any], *, is_elsewhere: bool = False
) -> Place:
    """Return where the workers run: what the config says, else the transport's first choice.

    Args:
        transport_cls: Class of the run's transport.
        section: ``system.transport``.
        is_elsewhere: Whether the user starts the workers, which makes them processes.

    Raises:
        ConfigError: the transport does not reach workers there.
    """
    places = transport_cls.places
    asked = "processes" if is_elsewhere else section.get("workers") or places[0]
    for place in places:
        if place == asked:
            return place
    raise ConfigError(
        f"the transport {section['type']!r} runs workers as {' or '.join(places)}, not as {asked}; "
        "for workers in processes of their own choose another one, such as flask_fs",
        path="system.transport.type" if is_elsewhere else "system.transport.workers",
    )


def check_reach(cfg: Any) -> None:
    """Raise ConfigError unless the config's transport reaches other processes."""
    section = cfg.system.transport
    cls = default_manager().get("transports", section.type, section.get("import_names") or ())
    place_of(cls, section, is_elsewhere=True)


def run_worker(
    role: str,
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
        role: Name of its role.
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
    with private_files(), ExitStack() as stack:
        stack.callback(manager.unconfigure)
        stack.enter_context(torch_threads(cfg.system.torch_threads))
        transport = make_transport(cfg, run_dir)
        stack.callback(transport.close)
        worker = create_role(role, cfg).create_worker(transport, worker_id)
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
