"""The lock that lets only one run at a time use a folder."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from dingsdk.errors import RunDirLockedError, RunFolderError
from dingsdk.runtime import open_private

LOCK_NAME = "lock"


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock an existing folder without waiting; the end of the process also releases the lock.

    Raises:
        RunDirLockedError: another run holds the lock.
        RunFolderError: the folder cannot be written to.
    """
    path, text = folder / LOCK_NAME, str(folder)
    lock = FileLock(path, timeout=0, mode=0o600, thread_local=False)
    owner = ""
    # Before acquiring the lock, which empties the file.
    with (
        contextlib.suppress(FileNotFoundError, PermissionError),
        open(path, encoding="utf-8", errors="replace", opener=open_private) as file,
    ):
        owner = file.read(200)
    try:
        lock.acquire()
    except Timeout:
        raise RunDirLockedError(
            f"the folder {folder} is in use by another run ({owner or 'unknown'}); end that one, "
            "or give this run a folder of its own (system.transport.data_dir)",
            path=text,
        ) from None
    except OSError as error:
        why = f"{error.strerror}; choose a folder that you may write to"
        raise RunFolderError(f"cannot lock {folder}: {why}", path=text) from error
    try:
        with (
            contextlib.suppress(OSError),  # the name is for people; a full disk may refuse it
            open(path, "w", encoding="utf-8", opener=open_private) as file,
        ):
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        lock.release()
