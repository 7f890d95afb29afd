"""Deletes the files of rows that have left a buffer (``enable_track_used_data``)."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.data.columns import mismatch
from dingsdk.errors import RunFolderError, StorageFullError
from dingsdk.runtime.files import Folder, check_id
from dingsdk.worker.replay_buffer.interface import RowListener
from dingsdk.worker.replay_buffer.storage import Rows

_KEY = "data_id"

_log = logging.getLogger(__name__)


class UsedData(RowListener):
    """Deletes ``<root>/<data_id>`` when the last row of a buffer with that id has left.

    The caller of ``sample`` may still read the file of a row that was sampled ``max_use`` times:
    this file is deleted when the same thread uses up other rows, or when the buffer is closed. A
    file that cannot be deleted stays, with a warning. Do not use an id again for other data.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).absolute()
        self._lock = threading.Lock()
        self._rows: Counter[str] = Counter()
        self._used_up: dict[int, list[str]] = {}

    def check(self, rows: Rows) -> None:
        """Refuse rows that name no file.

        Raises:
            SchemaMismatchError: a row has no ``data_id`` that is a str or integer.
            ProtocolError: an id is not a valid file name (``[A-Za-z0-9_-]{1,64}``).
        """
        _ids(rows)

    def on_insert(self, rows: Rows) -> None:
        with self._lock:
            self._rows.update(_ids(rows))

    def on_remove(self, rows: Rows, reason: str) -> None:
        ids, thread = _ids(rows), threading.get_ident()
        if reason == "used_up":
            with self._lock:
                ids, self._used_up[thread] = self._used_up.get(thread, []), ids
        self._delete(ids)

    def on_close(self) -> None:
        with self._lock:
            used_up, self._used_up = self._used_up, {}
        self._delete([data_id for ids in used_up.values() for data_id in ids])

    def _delete(self, ids: Iterable[str]) -> None:
        """Delete the files that no other row names."""
        with self._lock:
            known = [each for each in ids if each in self._rows]
            self._rows.subtract(known)
            unused = dict.fromkeys(each for each in known if self._rows[each] <= 0)
            for data_id in unused:
                del self._rows[data_id]
        for data_id in unused:
            try:
                with Folder(self._root, create=False) as folder:
                    folder.unlink(data_id)
            except (RunFolderError, StorageFullError) as error:
                _log.warning("the file of used data %s stays: %s", data_id, error)


def _ids(rows: Rows) -> list[str]:
    """Return the id of each row; errors as ``check``."""
    if isinstance(rows, SampleBatch):
        column = rows.columns.get(_KEY)
        found = column.tolist() if isinstance(column, np.ndarray) else [None]
    else:
        found = [row.get(_KEY) if isinstance(row, Mapping) else None for row in rows]
    for index, data_id in enumerate(found):
        if isinstance(data_id, bool) or not isinstance(data_id, str | int | np.integer):
            hint = "with enable_track_used_data every row names its file"
            kind = "none" if data_id is None else type(data_id).__name__
            raise mismatch(
                f"{_KEY} of row {index}", _KEY, "a str or integer", kind, hint, row=index
            )
    return [check_id(str(data_id), _KEY) for data_id in found]
