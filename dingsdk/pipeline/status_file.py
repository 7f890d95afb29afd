"""``status.json`` in the run folder: how a run is doing, for programs beside it.

The run writes it every ``INTERVAL_S`` and once at its end; readers see the old content or the new.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dingsdk.data.files import atomic_write_json
from dingsdk.errors import RunFolderError
from dingsdk.pipeline.context import Mode, RunContext
from dingsdk.pipeline.run_folder import STATUS_NAME, finite

INTERVAL_S = 2.0
STATUS_FORMAT = 1
_log = logging.getLogger(__name__)


class StatusFile:
    """Writes the status of a run, from a thread of its own that ``__exit__`` joins.

    A file that cannot be written is named once in the log; the run goes on.

    Args:
        context: The run.
        mode: Its mode.
        clock: Seconds since 1970.
    """

    def __init__(
        self, context: RunContext, mode: Mode, clock: Callable[[], float] = time.time
    ) -> None:
        self._context = context
        self._mode = mode
        self._clock = clock
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._has_failed = False
        self.reason: str | None = None
        """How the run ended; None while it goes on."""

    def __enter__(self) -> StatusFile:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._done.set()
        self._thread.join(timeout=5)
        if self._context.has_begun:
            self.write()

    def write(self) -> None:
        """Write the file now."""
        context = self._context
        record = dataclasses.asdict(context.status()) | {
            "format": STATUS_FORMAT,
            "mode": self._mode,
            "reason": self.reason,
            "written_at": self._clock(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "evaluations": [dataclasses.asdict(each) for each in context.recorder.evaluations],
        }
        try:
            atomic_write_json(context.run_dir / STATUS_NAME, finite(record))
        except RunFolderError as error:
            if not self._has_failed:
                _log.warning("the status of the run cannot be written: %s", error)
            self._has_failed = True
        else:
            self._has_failed = False

    def _run(self) -> None:
        while not self._done.wait(INTERVAL_S):
            if self._context.has_begun:
                self.write()


def read_status(run: Path) -> dict[str, Any]:
    """Return what a run, under way or over, wrote last.

    Raises:
        RunFolderError: the folder holds no status, or one of another format.
    """
    path = run / STATUS_NAME
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunFolderError(
            f"{run} holds no {STATUS_NAME}: it is no run folder, or the run has not begun",
            path=str(path),
        ) from None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}", path=str(path)) from error
    version = found.get("format") if isinstance(found, dict) else None
    if version != STATUS_FORMAT:
        raise RunFolderError(
            f"{path} is of format {version!r}; this version of dingsdk reads {STATUS_FORMAT}",
            path=str(path),
        )
    return dict(found)
