"""Storage of rows as columns on disk, which may be larger than memory."""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from dingsdk.data.columns import map_columns
from dingsdk.errors import StorageFullError
from dingsdk.runtime import Folder
from dingsdk.runtime.files import FULL, file_error
from dingsdk.worker.replay_buffer.storage import Where
from dingsdk.worker.replay_buffer.storage.arrays import ArrayStorage
from dingsdk.worker.replay_buffer.storage.schema import row_bytes

_FULL = FULL | {errno.EFBIG}
_STEP_BYTES = 64 << 20
"""Disk space is reserved in steps of about this size."""


class MemmapStorage(ArrayStorage):
    """One mapped file per column, made at the first push (type ``memmap``).

    Rows in use stay in the system's page cache, the others are only on disk. The files have no
    names: the system frees their space when the storage is closed, or when the process ends in any
    way. To keep rows, save the buffer.
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
        # Bytes a row: of each file of a column, and of files of own copies. Below: for how many
        # rows and own copies disk space is reserved.
        self._row_bytes: dict[str, int] = {}
        self._own_bytes: dict[str, int] = {}
        self._n_used = self._n_reserved = self._n_held = 0

    def put(self, where: Where, rows: dict[str, Any]) -> None:
        stop = where.stop if isinstance(where, slice) else int(where.max()) + 1
        self._n_used = max(self._n_used, stop)
        if stop > self._n_reserved:
            # Reserved space starts at position 0, and rows of a loaded state do not.
            self._reserve_rows(stop)
        super().put(where, rows)

    def _allocate(self, rows: dict[str, Any], n: int) -> None:
        with Folder(self._path):
            pass  # creates it
        try:
            super()._allocate(rows, n)
            self.make_room(n)
        except BaseException:
            self._clear()
            raise

    def _new_column(self, array: NDArray[Any]) -> NDArray[Any]:
        name, dtype = f"column-{len(self._row_bytes)}", np.dtype(array.dtype.str)
        column = self._map(name, (self.capacity, *array.shape[1:]), dtype)
        self._row_bytes[name] = row_bytes(column)
        return column

    def _new_array(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], old: NDArray[Any] | None
    ) -> NDArray[Any]:
        array = self._map(name, shape, dtype)
        if name == "links":
            self._reserve({name: array.nbytes})
        else:
            self._own_bytes[name] = row_bytes(array)
        return array

    def _map(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Map a new sparse file as an array of zeros, or make the file of that name longer.

        Earlier maps of a file stay valid.

        Raises:
            StorageFullError, RunFolderError: the file cannot be made.
        """
        size = math.prod(shape) * dtype.itemsize
        if size == 0:
            return np.zeros(shape, dtype)
        with self._disk_errors("map a file in"):
            if name not in self._files:
                self._files[name], path = tempfile.mkstemp(dir=self._path)
                Path(path).unlink()
            os.ftruncate(self._files[name], size)
            mapped = mmap.mmap(self._files[name], size)
        if len(shape) > 1:
            # Rows are drawn at random, so reading ahead would fetch rows that are not needed.
            mapped.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(mapped, dtype).reshape(shape)

    def _longer_columns(self) -> dict[str, Any]:
        before, self._row_bytes = self._row_bytes, {}
        try:
            return map_columns(self._new_column, self._columns)
        except BaseException:
            self._row_bytes = before
            raise

    def make_room(self, rows: int) -> None:
        super().make_room(rows)
        needed = min(self._n_used + rows, self.capacity)
        if needed > self._n_reserved:
            self._reserve_rows(needed)

    def _reserve_rows(self, rows: int) -> None:
        ahead = _STEP_BYTES // max(1, sum(self._row_bytes.values()))
        self._n_reserved = self._reserve_ahead(self._row_bytes, rows, ahead)

    def _hold_slots(self, slots: int) -> None:
        if slots > self._n_held:
            self._n_held = self._reserve_ahead(self._own_bytes, slots, slots >> 1)

    def _reserve_ahead(self, row_bytes: Mapping[str, int], rows: int, ahead: int) -> int:
        """Reserve disk space for rows of files, and for rows ``ahead`` of them if there is enough.

        Returns:
            For how many rows space is reserved now.
        """
        more = min(self.capacity, rows + ahead)
        with suppress(StorageFullError):
            self._reserve({name: more * size for name, size in row_bytes.items()})
            return more
        self._reserve({name: rows * size for name, size in row_bytes.items()})
        return rows

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
