"""The id of a run, by which the files of another run in a run folder are noticed."""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec

from dingsdk.data.container import checkpoint_errors
from dingsdk.errors import DataMissingError
from dingsdk.runtime.files import Folder

RUN_NAME = "run.json"


def run_id(folder: Path, create: bool = True) -> str:
    """Return the id of a run, which is made with its first call; without ``create``, "" if missing.

    Raises:
        RunFolderError, StorageFullError: it cannot be read or written.
        CheckpointCorruptError: it is damaged.
    """
    advice = "put the file of the run back, or begin a new run"
    with Folder(folder, create=False) as opened, checkpoint_errors(folder / RUN_NAME, advice):
        try:
            found = msgspec.json.decode(opened.read(RUN_NAME, 1000), type=_RunRecord)
        except DataMissingError:
            found = _RunRecord(uuid.uuid4().hex)
            if not create:
                return ""
            opened.write_atomic(RUN_NAME, [msgspec.json.encode(found)])
    return found.id


class _RunRecord(msgspec.Struct):
    """The content of ``run.json``."""

    id: str
