"""Reads ``status.json`` and ``result.json``, which another program may have written or damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from dingsdk.config.section import Number
from dingsdk.data.files import Folder
from dingsdk.errors import DataCorruptError, DataMissingError, RunFolderError
from dingsdk.pipeline.context import PlayerStatus, TaskStatus, WorkerStatus
from dingsdk.pipeline.run_folder import RESULT_FORMAT, RESULT_NAME, STATUS_NAME, no_run_text

STATUS_FORMAT = 1
"""Version of the file that holds a run's status."""
MAX_BYTES = 64 << 20
"""Largest file about a run that is read."""

Scalar = bool | int | float | str | None
RecordT = TypeVar("RecordT", bound="StatusRecord | ResultRecord")


class Version(msgspec.Struct):
    """The format of a file; of a file in another format, nothing else is read."""

    format: int


class SamplesRecord(msgspec.Struct):
    """As ``SampleCounts``."""

    collected: Number
    acknowledged: Number
    trained: Number
    live: Number
    evicted: dict[str, Number]


class StatusRecord(msgspec.Struct, kw_only=True):
    """What ``status.json`` contains; None in place of a number that is not finite."""

    NAME: ClassVar[str] = STATUS_NAME
    FORMAT: ClassVar[int] = STATUS_FORMAT

    format: int
    mode: str
    reason: str | None
    written_at: float
    pid: Number
    host: str
    env_steps: Number
    train_iter: Number
    last_return: float | None
    best_return: float | None
    buffer_fill: Number
    buffer_capacity: Number
    workers: Number
    elapsed_s: float
    held_up_by: str
    samples: SamplesRecord
    tasks: list[TaskStatus]
    connected: list[WorkerStatus]
    policy_lag: dict[str, Scalar] | None
    loss: float | None
    exploration: dict[str, Scalar]
    max_env_steps: Number | None
    max_train_iter: Number | None
    goal: float | None
    players: dict[str, PlayerStatus] = {}
    env_steps_per_s: float | None
    updates_per_s: float | None
    left_s: float | None
    columns: dict[str, Scalar]
    evaluations: list[dict[str, Scalar]]


class ResultRecord(msgspec.Struct, omit_defaults=True):
    """What ``result.json`` contains, as far as it is shown."""

    NAME: ClassVar[str] = RESULT_NAME
    FORMAT: ClassVar[int] = RESULT_FORMAT

    reason: str | None = None
    evaluations: list[dict[str, Scalar]] = []
    env_steps: Number | None = None
    train_iter: Number | None = None
    elapsed_s: float | None = None
    last_return: float | None = None
    best_return: float | None = None
    mode: str | None = None
    samples: SamplesRecord | None = None


def read_record(folder: Folder, kind: type[RecordT]) -> RecordT:
    """Return the content of the status or the result of a run.

    Args:
        folder: The run folder.
        kind: ``StatusRecord`` or ``ResultRecord``.

    Raises:
        DataMissingError: there is no such file.
        DataCorruptError: it is no regular file, too large, in another format, or lacks a field.
    """
    content = folder.read(kind.NAME, MAX_BYTES)
    try:
        found = msgspec.json.decode(content, type=Version).format
        if found == kind.FORMAT:
            return msgspec.json.decode(content, type=kind)
        problem = f"it is of format {found}; this version of dingsdk reads {kind.FORMAT}"
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        problem = str(error)
    raise DataCorruptError(f"{folder.path / kind.NAME} cannot be read: {problem}", where=kind.NAME)


def read_status(run: Path) -> dict[str, Any]:
    """Return the newest status of a run, which may be running or have ended.

    Raises:
        RunFolderError: the folder has no status, or one that cannot be read.
    """
    path = run / STATUS_NAME
    try:
        if not run.is_dir():
            raise DataMissingError("no folder")
        with Folder(run, create=False) as folder:
            record = read_record(folder, StatusRecord)
    except DataMissingError:
        text = no_run_text(run)
        if text is None and (run / RESULT_NAME).is_file():
            text = f"{path} was removed; {run / RESULT_NAME} says how the run ended"
        text = text or f"{run} has no {STATUS_NAME}: the run has not begun"
        raise RunFolderError(text, path=str(path)) from None
    except DataCorruptError as error:
        raise RunFolderError(str(error), path=str(path)) from error
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found
