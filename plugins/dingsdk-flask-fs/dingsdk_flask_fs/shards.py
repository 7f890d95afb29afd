"""The folders that payloads are spread over, so that none holds too many files."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import ExitStack

from dingsdk.data import PrivateDir

SHARDS = 16


class Shards:
    """Has each folder open: to open and check it anew costs a third of what a small payload's put,
    read or delete does (2 cores, ext4). Whatever takes a folder's name later is not looked at.

    Args:
        parent: Holds the folders, which are created where missing.
    """

    def __init__(self, parent: PrivateDir) -> None:
        with ExitStack() as opened:
            self._folders = [
                opened.enter_context(parent.sub(f"{index:x}")) for index in range(SHARDS)
            ]
            self._opened = opened.pop_all()

    def of(self, data_id: str) -> PrivateDir:
        """Return the folder of a payload; not the caller's to close."""
        return self._folders[zlib.crc32(data_id.encode()) % SHARDS]

    def __iter__(self) -> Iterator[PrivateDir]:
        return iter(self._folders)

    def close(self) -> None:
        self._opened.close()
