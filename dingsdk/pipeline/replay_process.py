"""The replay server of a run whose workers are processes: started, and started again."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from dingsdk.errors import DingError, WorkerCrashedError
from dingsdk.pipeline.process_group import KILL_S, Deaths, how_it_ended, spawn_linked
from dingsdk.plugins import default_manager
from dingsdk.worker.replay_server.process import ReplayServerSpec, serve_replay

_log = logging.getLogger(__name__)

START_S = 60.0
CLOSE_S = 10.0


class ReplayProcess:
    """A replay server as a child process, which is started again where it dies.

    Args:
        buffer_cfg: Config of the replay buffer.
        path: Folder of the server.
        restarts: How often it may die within ten minutes.

    Attributes:
        address: The server's; one that is started again has the same.

    Raises:
        WorkerCrashedError: it cannot start.
        DingError: its own reason not to.
    """

    def __init__(self, buffer_cfg: Mapping[str, Any], path: Path, restarts: int) -> None:
        self._buffer_cfg = buffer_cfg
        self._path = path
        self._restarts = restarts
        self._deaths = Deaths()
        self._process: Any = None
        self._link: Connection
        self.address = self._start(0)

    def poll(self) -> None:
        """Start it again if it has died.

        Raises:
            WorkerCrashedError: it died too often, or cannot start again.
        """
        code = self._process.exitcode
        if code is None:
            return
        reason, now = how_it_ended(code), time.monotonic()
        self._release()
        deaths = self._deaths.add(now, now - self._started_at)
        if deaths > self._restarts:
            raise WorkerCrashedError(
                self._deaths.text("the replay server", reason, self._restarts),
                worker_id="replay",
                exit_code=code,
                traceback="",
            )
        _log.warning("the replay server died: %s; another one goes on", reason)
        self._start(int(self.address.rpartition(":")[2]))

    def close(self) -> None:
        """End it; idempotent."""
        if self._process is None:
            return
        self._link.close()
        self._process.join(CLOSE_S)
        if self._process.exitcode is None:
            _log.warning("the replay server did not end within %.0f s", CLOSE_S)
            self._process.kill()
            self._process.join(KILL_S)
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self, port: int) -> str:
        spec = ReplayServerSpec(
            {"port": port}, self._buffer_cfg, self._path, default_manager().snapshot()
        )
        self._process, self._link = spawn_linked(serve_replay, spec, "replay-server")
        self._started_at = time.monotonic()
        answer: Any = None
        with suppress(EOFError, OSError):
            if self._link.poll(START_S):
                answer = self._link.recv()
        if isinstance(answer, str):
            return answer
        self.close()
        if isinstance(answer, DingError):
            raise answer
        raise WorkerCrashedError(
            f"the replay server did not start within {START_S:.0f} s",
            worker_id="replay",
            exit_code=None,
            traceback="",
        )

    def _release(self) -> None:
        process, self._process = self._process, None
        self._link.close()
        if process.exitcode is not None:
            process.close()
