"""What outlives a master: the id of the run, and how often its master was started."""

from __future__ import annotations

import json
import uuid

from dingsdk.data import PrivateDir
from dingsdk.errors import DataCorruptError, DataMissingError

FILE_NAME = "epoch.json"
MAX_BYTES = 4096


def begin_epoch(folder: PrivateDir) -> tuple[str, int]:
    """Note another start of the run's master; return the run's id and the start's number.

    Messages carry both, so that what was meant for an earlier master never reaches this one.

    Raises:
        DataCorruptError: the file is damaged; starting over could repeat a number.
        RunFolderError, StorageFullError: it cannot be written.
    """
    run, epoch = _last(folder)
    text = json.dumps({"run": run, "epoch": epoch + 1})
    folder.write_atomic(FILE_NAME, [text.encode()], durable=True)
    return run, epoch + 1


def _last(folder: PrivateDir) -> tuple[str, int]:
    try:
        content = folder.read(FILE_NAME, MAX_BYTES)
    except DataMissingError:
        return uuid.uuid4().hex, 0
    try:
        found = json.loads(bytes(content))
        run, epoch = uuid.UUID(found["run"]).hex, found["epoch"]
        if type(epoch) is not int or epoch < 1:
            raise ValueError(f"epoch {epoch!r}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataCorruptError(
            f"{folder.path / FILE_NAME} is damaged ({error}); remove the folder to start afresh",
            where=FILE_NAME,
        ) from error
    return run, epoch
