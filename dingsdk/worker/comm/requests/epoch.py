"""The epoch of a master: counts how often the master of a run was started."""

from __future__ import annotations

import uuid
from typing import Annotated

import msgspec

from dingsdk.data import PrivateDir, decode_json, encode_json
from dingsdk.errors import DataCorruptError, DataMissingError

EPOCH_FILE = "epoch.json"
"""File that outlives a master: the id of the run, and how often its master was started."""
_EPOCH_KIND, _EPOCH_BYTES = "run-epoch", 4096
"""The kind of the file, and its largest size."""


class _Epoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    epoch: Annotated[int, msgspec.Meta(ge=1)]


def begin_epoch(folder: PrivateDir) -> tuple[str, int]:
    """Count a start of the run's master; return the run's id and the number of this start.

    Messages contain both, so that messages for an earlier master are not accepted by this one.

    Raises:
        DataCorruptError: the file is damaged; counting from the beginning could repeat a number.
        RunFolderError, StorageFullError: it cannot be written.
    """
    try:
        content = folder.read(EPOCH_FILE, _EPOCH_BYTES)
        found = msgspec.convert(decode_json(_EPOCH_KIND, content, _EPOCH_BYTES), _Epoch)
    except DataMissingError:
        found = _Epoch(uuid.uuid4().hex, 0)
    except (DataCorruptError, msgspec.ValidationError) as error:
        raise DataCorruptError(
            f"{folder.path / EPOCH_FILE} is damaged ({error}); remove the folder to start afresh",
            where=EPOCH_FILE,
        ) from error
    fields = {"run": found.run, "epoch": found.epoch + 1}
    folder.write_atomic(EPOCH_FILE, [encode_json(_EPOCH_KIND, fields)], durable=True)
    return found.run, found.epoch + 1
