"""Storage of rows as columns on disk, which may be larger than memory."""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from dingsdk.runtime import Folder
from dingsdk.runtime.files import FULL, file_error
from dingsdk.worker.replay_buffer.storage.arrays import ArrayStorage

_FULL = FULL | {errno.EFBIG}


class MemmapStorage(ArrayStorage):
    """One mapped file per column, made at the first push (type ``memmap``).

    Rows in use stay in the system's page cache, the others are only on disk. The first push
    reserves disk space for as many rows as the capacity. The files have no names: the system frees
    their space when the storage is closed, or when the process ends in any way. To keep rows, save
    the buffer.
    """

    class Config(ArrayStorage.Config, frozen=True, kw_only=True):
        """Section ``storage`` of type ``memmap``.

        Attributes:
            path: A folder on the disk that holds the rows; created if missing. Several buffers may
                use it.
        """

        type: str = "memmap"
        path: Annotated[str, Meta(min_length=1)]

    def __init__(self, cfg: Mapping[str, Any], capacity: int, deepcopy: bool = False) -> None:
        self._files: dict[str, int] = {}  # descriptors, by name
        super().__init__(cfg, capacity, deepcopy)
        self._path = Path(self._cfg.path)

    def _clear(self) -> None:
        super()._clear()
        self._close_files()
        self._own_bytes: dict[str, int] = {}  # bytes of an own copy, by file

    def _allocate(self, rows: dict[str, Any]) -> None:
        with Folder(self._path):
            pass  # creates it
        try:
            super()._allocate(rows)
        except BaseException:
            self._clear()
            raise

    def _new_array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Map a new file as an array of zeros.

        Raises:
            StorageFullError, RunFolderError: the file cannot be made.
        """
        size = math.prod(shape) * dtype.itemsize
        if size == 0:
            return np.zeros(shape, dtype)
        with self._disk_errors("map a file in"):
            self._files[name], path = tempfile.mkstemp(dir=self._path)
            Path(path).unlink()
            os.ftruncate(self._files[name], size)
            mapped = mmap.mmap(self._files[name], size)
        if name.startswith("own"):
            self._own_bytes[name] = size // self.capacity
        else:
            self._reserve({name: size})
        if len(shape) > 1:
            # Rows are drawn at random, so reading ahead would fetch rows that are not needed.
            mapped.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(mapped, dtype).reshape(shape)

    def _hold_slots(self, slots: int) -> None:
        self._reserve({name: slots * size for name, size in self._own_bytes.items()})

    def _reserve(self, sizes: Mapping[str, int]) -> None:
        """Allocate disk space for the given sizes of files (by name), or raise StorageFullError.

        Without it, writing to a mapped file on a full disk would kill the process.
        """
        files = {self._files[name]: size for name, size in sizes.items() if size}
        with self._disk_errors("reserve disk space in"):
            held = {file: os.fstat(file).st_blocks * 512 for file in files}
            missing = sum(max(0, size - held[file]) for file, size in files.items())
            disk = os.statvfs(self._path)
            # Checked first, because ext4 keeps the part that it allocated of a failed reservation.
            # Some file systems without a limit report a size of 0.
            if disk.f_blocks and missing > disk.f_bavail * disk.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            for file, size in files.items():
                os.posix_fallocate(file, 0, size)

    @contextmanager
    def _disk_errors(self, action: str) -> Iterator[None]:
        """Turn a failed system call into StorageFullError or RunFolderError."""
        try:
            yield
        except OSError as error:
            raise file_error(action, self._path, error, _FULL) from error

    def close(self) -> None:
        self._clear()

    def __del__(self) -> None:
        self._close_files()

    def _close_files(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])
