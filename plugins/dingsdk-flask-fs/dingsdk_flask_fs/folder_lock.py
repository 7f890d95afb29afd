"""The lock that gives a folder to one run at a time."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from dingsdk.errors import RunDirLockedError, RunFolderError

LOCK_NAME = "lock"


class FolderLock:
    """Holds the folder of a run until ``release``, or until the process ends, however it ends.

    Args:
        folder: An existing folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_NAME
        self._lock = FileLock(self._path, timeout=0, mode=0o600, thread_local=False)

    def __enter__(self) -> FolderLock:
        self.acquire()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the folder, at once.

        Raises:
            RunDirLockedError: another run has it.
            RunFolderError: it cannot be written to.
        """
        owner = self._read()
        try:
            self._lock.acquire()
        except Timeout:
            raise RunDirLockedError(
                f"the folder {self._path.parent} is in use by another run ({owner or 'unknown'}); "
                "end that one, or give this run a folder of its own (system.transport.data_dir)",
                path=str(self._path.parent),
            ) from None
        except OSError as error:
            raise RunFolderError(
                f"cannot lock {self._path.parent}: {error.strerror}; choose a folder that you may "
                "write to",
                path=str(self._path.parent),
            ) from error
        with contextlib.suppress(OSError):  # the name is for people; a full disk may refuse it
            self._path.write_text(f"process {os.getpid()} on {socket.gethostname()}")

    def release(self) -> None:
        """Give the folder back; idempotent."""
        self._lock.release()

    def _read(self) -> str:
        try:
            return self._path.read_text(encoding="utf-8", errors="replace")[:200]
        except OSError:
            return ""
