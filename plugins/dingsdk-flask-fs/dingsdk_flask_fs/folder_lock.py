"""The lock that lets only one run at a time use a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

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
    with contextlib.ExitStack() as stack:
        try:
            descriptor = open_private(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(descriptor, 200).decode("utf-8", "replace")
            raise RunDirLockedError(
                f"the folder {folder} is in use by another run ({owner or 'unknown'}); end that "
                "one, or give this run a folder of its own (system.transport.data_dir)",
                path=str(folder),
            ) from error
        except RunFolderError:
            raise
        except OSError as error:
            why = f"{error.strerror}; choose a folder that you may write to"
            raise RunFolderError(f"cannot lock {folder}: {why}", path=str(folder)) from error
        with contextlib.suppress(OSError):  # the name is for people; a full disk may refuse it
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
