"""A replay server as the child process of a run."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dingsdk.errors import DingError


@dataclass(frozen=True)
class ReplayServerSpec:
    """What the process is told.

    Attributes:
        cfg: Section of the server.
        buffer_cfg: Config of the replay buffer.
        path: Folder of the server.
        snapshot: Of the plugins that are registered.
    """

    cfg: Mapping[str, Any]
    buffer_cfg: Mapping[str, Any]
    path: Path
    snapshot: Any


def serve_replay(spec: ReplayServerSpec, link: Connection) -> None:
    """Serve until the parent says so, or is gone; tells it the address, or an error."""
    from dingsdk.plugins import default_manager
    from dingsdk.worker.replay_server.server import ReplayServer

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us last
    default_manager().restore(spec.snapshot)
    try:
        server = ReplayServer(spec.cfg, spec.buffer_cfg, spec.path)
    except DingError as error:
        link.send(error)
        return
    with suppress(EOFError, OSError):
        link.send(server.address)
        link.recv()
    server.close(has_checkpoint=False)  # the rows are of no use after the run
