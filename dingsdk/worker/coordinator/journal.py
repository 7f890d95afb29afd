"""The journal of a coordinator: facts on disk, from which another coordinator can continue.

A journal is a folder with a numbered file, ``000003.facts``: first the coordinator's whole state,
then facts in the order in which they became true. Another state begins the next file, and the file
before it is deleted. ``owner.json`` names the current writer.

A fact is a record of :mod:`dingsdk.runtime.records`, with its content in MessagePack.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from dingsdk.data.container import (
    checkpoint_errors,
    decode_json,
    encode_json,
)
from dingsdk.errors import (
    CheckpointError,
    CheckpointVersionError,
    DataMissingError,
    RunDirLockedError,
    RunFolderError,
)
from dingsdk.runtime.files import Folder
from dingsdk.runtime.records import RecordFiles, damaged_at
from dingsdk.worker.coordinator.tasks import TaskState

VERSION = 9
"""Version of a journal's format."""
OWNER_NAME = "owner.json"
_OWNER_KIND = "journal-owner"
_OWNER_BYTES = 4096
"""Largest file that names the run of a journal."""
_log = logging.getLogger(__name__)
_ADVICE = "restore the file, or begin a new run from the checkpoint of this one"


class Fact(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A change of a run's state."""


class Saved(Fact, frozen=True):
    """The first fact of each file: the coordinator's whole state."""

    run: str
    state: dict[str, Any]
    version: int = VERSION


class TaskRecord(msgspec.Struct, frozen=True):
    """A task."""

    task_id: str
    role: str
    task: dict[str, Any]
    attempt: int
    payload_prefix: str
    progress: int = 0
    mark: int = 0
    env_steps: int = 0
    lost_env_steps: int = 0

    @classmethod
    def of(cls, state: TaskState) -> TaskRecord:
        """Return the record of a task."""
        fields = {name: getattr(state, name) for name in cls.__struct_fields__}
        return cls(**{**fields, "task": dict(state.task)})


Place = Literal["queued", "running", "ended"]


class TaskChanged(Fact, frozen=True):
    """A task waits for a worker, was given to a worker, or has ended with its replay buffer.

    ``commander`` is the commander's state, encoded with ``encode_json``. ``env_steps``,
    ``episodes`` and ``learner_tasks`` are the totals of all tasks that have ended.
    """

    place: Place
    task: TaskRecord
    commander: bytes
    env_steps: int
    episodes: int
    learner_tasks: int


class Pushed(Fact, frozen=True):
    """A payload is acknowledged."""

    buffer_id: str
    data_id: str
    rows: int
    policy_iter: int
    env_steps: int
    digest: str | None = None
    episodes: int = 1


class Settled(Fact, frozen=True):
    """The home of a task's buffer reported what it inserted, and which rows have left."""

    task_id: str
    train_iter: int
    info: dict[str, Any]


class TrainingBegan(Fact, frozen=True):
    """A learner at ``train_iter`` got all payloads of its on-policy buffer to train on."""

    task_id: str
    train_iter: int


class Progressed(Fact, frozen=True):
    """A collecting task has taken ``env_steps`` steps, ``elapsed_s`` after the first collecting."""

    task_id: str
    env_steps: int
    elapsed_s: float


class EvaluationRecorded(Fact, frozen=True):
    """An evaluation was recorded."""

    evaluation: dict[str, Any]


_FACTS = Saved | TaskChanged | Pushed | Settled | TrainingBegan | Progressed | EvaluationRecorded


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Fact] = msgspec.msgpack.Decoder(_FACTS)


def decode_facts(records: list[tuple[int, memoryview]], path: object) -> list[Fact]:
    """Return the facts in the records of a file.

    Raises:
        CheckpointCorruptError: it is damaged before its end; facts ``path`` and ``offset``.
    """
    facts: list[Fact] = []
    for at, content in records:
        try:
            facts.append(_decoder.decode(content))
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise damaged_at(path, at, _ADVICE) from error
    return facts


def _check_version(path: object, version: object) -> None:
    if version != VERSION:
        text = f"{path} has version {version!r}, this dingsdk reads {VERSION}"
        raise CheckpointVersionError(text, found=version, expected=VERSION)


class _Owner(msgspec.Struct, frozen=True):
    epoch: int
    name: str


_NOBODY = _Owner(0, "nobody")
"""The owner of a journal without its owner file."""


@dataclass(slots=True)
class Recovered:
    """The content of a journal.

    Attributes:
        state: The newest state; None in a new journal.
        facts: The facts since that state, in order.
    """

    state: dict[str, Any] | None = None
    facts: list[Fact] = field(default_factory=list)


class Journal:
    """Writes facts, and reads those of earlier coordinators. Not thread safe: the caller locks.

    Each ``open`` begins a new epoch and takes over the journal. Facts that the previous writer
    appends after that are refused. The first ``append`` comes after the first ``save``.

    Args:
        run: Id of the run. A journal of another run is refused.
        fsync: Whether to sync each fact to disk, so that it survives a power cut. Otherwise it
            survives only the end of the process.
        owner: Name of the writer, for messages; None for this process and host.
        snapshot_bytes: A new state is due after this many bytes of facts, or after the size of the
            last state if that is larger.
        snapshot_facts: A new state is also due after this many facts.

    Attributes:
        epoch: How often the journal was opened.
    """

    def __init__(
        self,
        disk: Folder,
        *,
        run: str = "",
        fsync: bool = False,
        owner: str | None = None,
        snapshot_bytes: int = 4 << 20,
        snapshot_facts: int = 20_000,
    ) -> None:
        self._disk = disk
        self._run = run
        self._files = RecordFiles(disk, "", ".facts", _ADVICE, fsync)
        self._owner = owner or f"process {os.getpid()} on {socket.gethostname()}"
        self._least_bytes = self._due_bytes = snapshot_bytes
        self._due_facts = snapshot_facts
        self._bytes = self._facts = 0  # since the newest state
        self.epoch = 0

    def open(self) -> Recovered:
        """Take over the journal; return its content.

        Raises:
            CheckpointCorruptError: a file is damaged or missing.
            CheckpointError: it is the journal of another run.
            CheckpointVersionError: another version wrote it.
            StorageFullError, RunFolderError: it cannot be written.
        """
        self.epoch = self._read_owner().epoch + 1
        content = encode_json(_OWNER_KIND, {"epoch": self.epoch, "name": self._owner})
        # Written before the journal is read: a previous owner that appends later sees the change.
        self._disk.write_atomic(OWNER_NAME, [content], durable=True)
        found, self._files.number = self._read_all()
        return found

    def read(self) -> Recovered:
        """Return the content without changing anything; errors as ``open``."""
        self._read_owner()
        return self._read_all()[0]

    def append(self, fact: Fact) -> None:
        """Write a fact; after the return, it survives the end of the process.

        Raises:
            StorageFullError: there is no room; nothing was written.
            RunDirLockedError: another coordinator has taken the journal.
            RunFolderError: it cannot be written.
        """
        with self._written():
            self._bytes += self._files.append(_encoder.encode(fact))
            self._facts += 1

    def owner_text(self) -> str:
        """Return the name of the last writer, for messages."""
        return self._read_owner().name

    def check_owner(self) -> None:
        """Raise RunDirLockedError if another coordinator has taken the journal."""
        owner = self._read_owner()
        if owner == _NOBODY:
            raise RunDirLockedError(
                f"{self._disk.path}: {OWNER_NAME} is gone, so another coordinator may begin; "
                "somebody removed files of the run folder, or the whole folder",
                path=str(self._disk.path),
            )
        if owner != _Owner(self.epoch, self._owner):
            raise RunDirLockedError(
                f"{self._disk.path}: this is epoch {self.epoch} of the run, and {owner.name} has "
                f"begun epoch {owner.epoch}; the run continues there",
                path=str(self._disk.path),
                epoch=owner.epoch,
                owner=owner.name,
            )

    @property
    def is_state_due(self) -> bool:
        """Whether enough was written since the last state to make a new one due."""
        return self._bytes >= self._due_bytes or self._facts >= self._due_facts

    def save(self, state: dict[str, Any]) -> None:
        """Begin a new file with the state, which waits for the disk; remove all earlier files.

        Args:
            state: Plain data that MessagePack can encode.

        Raises:
            StorageFullError, RunFolderError: the state is not written; all facts stay.
            RunDirLockedError: as ``append``.
        """
        begun = _encoder.encode(Saved(self._run, state))
        self.check_owner()  # it may write a file of the same number
        with self._written():
            self._files.begin(self._files.number + 1, begun)
        self._files.remove_before(self._files.number)
        self._due_bytes = max(self._least_bytes, self._files.size_bytes)
        self._bytes = self._facts = 0

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Check the owner after a write: one that takes over after this check reads the record."""
        try:
            yield
        except RunFolderError:
            self.check_owner()  # the file may be gone because another owner removed it
            raise
        self.check_owner()

    def _read_all(self) -> tuple[Recovered, int]:
        """Return the content, and the newest file's number."""
        last = max(self._files.numbers(), default=0)
        for number in range(last, 0, -1):
            path = self._disk.path / self._files.name_of(number)
            records = self._files.read(number)[0]
            for saved in decode_facts(records[:1], path):
                _check_version(path, getattr(saved, "version", None))
                self._check_run(path, getattr(saved, "run", None))
                facts = decode_facts(records[1:], path)
                return Recovered(getattr(saved, "state", None), facts), last
            # The writer died before the state was complete, so the file before it still exists.
        if last:
            _log.warning("%s has no complete state: the run begins without one", self._disk.path)
        return Recovered(), last

    def _check_run(self, path: Path, run: object) -> None:
        if run != self._run:
            raise CheckpointError(
                f"{path} is of another run: its id is {run!r:.80}, and that of this run is "
                f"{self._run!r}; put the journal of this run there",
                path=str(path),
                found=run,
                expected=self._run,
            )

    def _read_owner(self) -> _Owner:
        path = self._disk.path / OWNER_NAME
        with contextlib.suppress(DataMissingError), checkpoint_errors(path, _ADVICE):
            content = self._disk.read(OWNER_NAME, _OWNER_BYTES)
            return msgspec.convert(decode_json(_OWNER_KIND, content, _OWNER_BYTES), _Owner)
        return _NOBODY
