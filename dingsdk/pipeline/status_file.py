"""Reports the status of a run in files of its folder and on the console, and reads the files.

``status.json`` is written every ``INTERVAL_S``, more often in the first seconds, and once at the
end. It is replaced in one step, so readers never see a partial file. Some values of it are also
appended to ``progress.jsonl`` as a line, for curves; the interval of these lines is at least
``1 / LINES`` of the run's time. A resumed run first removes the lines that are later than its save,
and so does a run whose learner goes back to its checkpoint: in the file no count ever falls.

Readers check what they find: another program may have written or damaged a file.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dingsdk.config.section import Number
from dingsdk.errors import DataCorruptError, DataMissingError, DingError, RunFolderError
from dingsdk.pipeline.context import RATE_S, Mode, RunContext, RunStatus
from dingsdk.pipeline.run_folder import (
    PROGRESS_NAME,
    RESULT_NAME,
    STATUS_NAME,
    finite,
    no_run_text,
)
from dingsdk.plugins import ask
from dingsdk.runtime.files import Folder, atomic_write_json, folder_error, keep_lines, open_private

if TYPE_CHECKING:
    from dingsdk.pipeline.console import ConsoleProgress

INTERVAL_S = 2.0
"""Longest time between two reports of a run's status."""
FIRST_INTERVAL_S = 0.25
"""Shortest time between two reports of a run's status, used at its start."""
LEAST_S = 0.05
"""Shortest time between two snapshots from which a rate is computed."""
LINES = 500
"""A line of the progress file is due after this fraction (1 / LINES) of the run's time."""
CURVES = (
    "elapsed_s",
    "env_steps",
    "train_iter",
    "env_steps_per_s",
    "updates_per_s",
    "loss",
    "buffer_fill",
    "workers",
    "policy_lag",
    "exploration",
    "numbers",
    "training_numbers",
    "columns",
)
"""The fields of the status that are in a line of ``progress.jsonl``."""
STATUS_FORMAT = 1
"""Version of the file that holds a run's status."""
MAX_BYTES = 64 << 20
"""Largest file about a run that is read."""
Scalar = bool | int | float | str | None
_log = logging.getLogger(__name__)


class RateMeter:
    """Measures the rates of a run, from one snapshot to the next. Not thread-safe."""

    def __init__(self) -> None:
        self._seen = deque([(0.0, 0, 0)])

    def measured(self, status: RunStatus) -> RunStatus:
        """Return the newest snapshot with its rates and the time left."""
        seen, elapsed_s = self._seen, status.elapsed_s
        if elapsed_s - seen[-1][0] >= LEAST_S:
            env_steps = status.env_steps - status.loaded_env_steps
            # A learner that has not loaded its checkpoint yet reports no iterations.
            train_iter = max(0, status.train_iter - status.loaded_train_iter)
            seen.append((elapsed_s, env_steps, train_iter))
        while len(seen) > 2 and seen[1][0] <= elapsed_s - RATE_S:
            seen.popleft()
        (start_s, *before), (end_s, *after) = seen[0], seen[-1]
        # Counts fall when a learner continues from its checkpoint.
        steps_per_s, updates_per_s = (
            max(0, new - old) / (end_s - start_s) if end_s > start_s else 0.0
            for old, new in zip(before, after, strict=True)
        )
        limits = (
            (status.max_env_steps, status.env_steps, steps_per_s),
            (status.max_train_iter, status.train_iter, updates_per_s),
        )
        left = (
            max(0, most - now) / rate for most, now, rate in limits if most is not None and rate
        )
        return dataclasses.replace(
            status,
            env_steps_per_s=steps_per_s,
            updates_per_s=updates_per_s,
            left_s=min(left, default=None),
        )


class Reporter:
    """Reports the status of a run in its files and on a console, from a thread.

    ``__exit__`` joins the thread, and makes the last report. If a file cannot be written, a warning
    is logged once, and the run continues.

    Args:
        context: The run.
        mode: The mode of the run.
        shown: What shows the status on a console; None for nothing.
        clock: Returns the seconds since 1970.
    """

    def __init__(
        self,
        context: RunContext,
        mode: Mode,
        shown: ConsoleProgress | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._context = context
        self._mode = mode
        self._shown = shown
        self._clock = clock
        self._done = threading.Event()
        run = partial(copy_context().run, self._run)  # the context knows the run
        self._thread = threading.Thread(target=run, name="status", daemon=True)
        self._has_failed = False
        self._rates = RateMeter()
        self._line_at_s = -math.inf
        self._repeats = context.resumed is not None
        self._line_iter = 0
        self.reason: str | None = None
        """How the run ended; None while it is running."""

    def __enter__(self) -> Reporter:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._done.set()
        self._thread.join(timeout=5)
        self.report(is_over=True)

    def report(self, *, is_over: bool = False) -> None:
        """Show the status now; if the run has begun, write it too."""
        status = self._rates.measured(self._context.status())
        columns = _plain(ask().progress_columns(run_dir=self._context.run_dir))
        if self._shown is not None:
            self._shown.show(status, columns, is_over=is_over)
        if self._context.has_begun:
            self._write(status, columns)

    def _write(self, status: RunStatus, columns: Mapping[str, Any]) -> None:
        context = self._context
        record = finite(
            dataclasses.asdict(status)
            | {
                "columns": columns,
                "format": STATUS_FORMAT,
                "mode": self._mode,
                "reason": self.reason,
                "written_at": self._clock(),
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "evaluations": [dataclasses.asdict(each) for each in context.recorder.evaluations],
            }
        )
        try:
            atomic_write_json(context.run_dir / STATUS_NAME, record)
            self._add_line(record)
        except DingError as error:
            if not self._has_failed:
                _log.warning("the status of the run cannot be written: %s", error)
            self._has_failed = True
        else:
            self._has_failed = False

    def _add_line(self, record: Mapping[str, Any]) -> None:
        elapsed_s = record["elapsed_s"]
        is_due = elapsed_s - self._line_at_s >= max(FIRST_INTERVAL_S / 2, elapsed_s / LINES)
        is_last = self.reason is not None and elapsed_s > self._line_at_s
        if not is_due and not is_last:
            return
        # If a player of several begins another training task, it counts from 0 at first.
        if record["train_iter"] < self._line_iter and not record["players"]:
            self._repeats = True
        path = self._context.run_dir / PROGRESS_NAME
        line = json.dumps({name: record[name] for name in CURVES}) + "\n"
        try:
            if self._repeats:
                # A line that was not written completely is removed too.
                keep_lines(path, lambda line: _is_before(line, record))
                self._repeats = False
            with open(path, "a", encoding="utf-8", opener=open_private) as file:
                file.write(line)
        except OSError as error:
            raise folder_error("write", path, error) from error
        self._line_at_s, self._line_iter = elapsed_s, record["train_iter"]

    def _run(self) -> None:
        # People watch the first seconds: the interval is a twentieth of the elapsed time.
        recorder = self._context.recorder
        while not self._done.wait(min(INTERVAL_S, max(FIRST_INTERVAL_S, recorder.elapsed_s / 20))):
            self.report()


def _is_before(line: str, record: Mapping[str, Any]) -> bool:
    """Whether a line of ``progress.jsonl`` is complete, with no count above the record's."""
    try:
        found = json.loads(line)
        return bool(
            found["elapsed_s"] < record["elapsed_s"]
            and found["env_steps"] <= record["env_steps"]
            and found["train_iter"] <= record["train_iter"]
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _plain(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of plugins in a form that JSON can store."""
    kept = (bool, int, float, str, type(None))
    return {name: each if isinstance(each, kept) else str(each) for name, each in columns.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRecord(RunStatus):
    """What ``status.json`` contains; None in place of a number that is not finite."""

    format: Literal[1]
    mode: str
    reason: str | None
    written_at: float
    pid: Number
    host: str
    columns: dict[str, Scalar]
    evaluations: list[dict[str, Scalar | dict[str, dict[str, Scalar]]]]


def read_record(folder: Folder) -> dict[str, Any]:
    """Return the content of ``status.json`` in a run folder.

    Raises:
        DataMissingError: there is no such file.
        DataCorruptError: it is no regular file, too large, in another format, or lacks a field.
    """
    content = folder.read(STATUS_NAME, MAX_BYTES)
    try:
        return dict(msgspec.to_builtins(msgspec.json.decode(content, type=StatusRecord)))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DataCorruptError(
            f"{folder.path / STATUS_NAME} cannot be read, or another version of dingsdk wrote it: "
            f"{error}",
            where=STATUS_NAME,
        ) from error


def read_status(run: Path) -> dict[str, Any]:
    """Return the newest status of a run, which may be running or have ended.

    Raises:
        RunFolderError: the folder has no status, or one that cannot be read.
    """
    path = run / STATUS_NAME
    try:
        if not os.path.isdir(run):
            raise DataMissingError("no folder")
        with Folder(run, create=False) as folder:
            return read_record(folder)
    except DataMissingError:
        text = no_run_text(run)
        if text is None and os.path.isfile(run / RESULT_NAME):
            text = f"{path} was removed; {run / RESULT_NAME} says how the run ended"
        text = text or f"{run} has no {STATUS_NAME}: the run has not begun"
        raise RunFolderError(text, path=str(path)) from None
    except DataCorruptError as error:
        raise RunFolderError(str(error), path=str(path)) from error
