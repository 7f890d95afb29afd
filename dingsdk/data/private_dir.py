"""Folders that only we write to, whose files are opened by checked names and never by paths."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import secrets
import stat
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from dingsdk.data.descriptor import SharedDescriptor, close_reader
from dingsdk.data.files import (
    TEMPORARY,
    Buffer,
    ensure_dir,
    folder_error,
    replace_file,
    write_chunks,
)
from dingsdk.data.ids import check_id
from dingsdk.errors import (
    DataCorruptError,
    DataMissingError,
    DingError,
    ProtocolError,
    RunFolderError,
    StorageFullError,
)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[a-z0-9]{1,16})?")
_TEMPORARY_NAME = re.compile(re.escape(TEMPORARY) + r"[0-9a-f]{16}")

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_GONE = {errno.ENOENT, errno.ESTALE}  # NFS calls a file stale that another host deleted
_FOREIGN = {errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR}
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# Without O_NONBLOCK the open of a FIFO would wait for a writer.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class PrivateDir:
    """A folder of ours: mode 0700 when we create it, refused when others can write to it.

    Everything goes through a descriptor of the folder, so that what was checked is what is
    used, wherever the path leads later. Symbolic links are never followed. Safe for use from
    many threads; closing waits for none and takes effect once the last call has returned.

    Args:
        path: The folder; parents are created where missing.
        create: False refuses where it does not exist.

    Attributes:
        path: Where it was when it was opened.
        identity: Device and number of the folder, another one for one made anew.

    Raises:
        RunFolderError: it cannot be opened or created, is a link or no folder, is not ours, or
            its group or others can write to it; ``path``.
        StorageFullError: the system has no room or no descriptor for it.
    """

    def __init__(self, path: str | os.PathLike[str], create: bool = True) -> None:
        self.path = Path(path)
        if create:
            ensure_dir(self.path.parent)
        number, self.identity = _open_folder(self.path, str(self.path), None, create)
        self._descriptor = SharedDescriptor(number)

    def sub(self, name: str, create: bool = True) -> PrivateDir:
        """Open a folder in this one, under the same rules.

        Raises:
            DataMissingError: it does not exist, and ``create`` is False.
        """
        check_id(name, "folder")
        opened = PrivateDir.__new__(PrivateDir)
        opened.path = self.path / name
        with self._descriptor as folder:
            number, opened.identity = _open_folder(opened.path, name, folder, create)
        opened._descriptor = SharedDescriptor(number)
        return opened

    # Files ------------------------------------------------------------------------------------
    def write_atomic(self, name: str, buffers: list[Buffer], durable: bool = False) -> None:
        """Write a file, mode 0600, which takes its name when it is whole.

        Raises:
            StorageFullError: disk full, over quota, failing, or out of descriptors. The file is
                as it was before, and nothing is left behind.
            RunFolderError: another reason, such as a folder of that name.
        """
        _check_name(name)
        with self._descriptor as folder:
            try:
                replace_file(folder, name, buffers, durable=durable)
            except OSError as error:
                raise self._error("write", name, error) from error

    def write_over(self, name: str, buffers: list[Buffer], spares: PrivateDir, spare: str) -> bool:
        """Write a file as :meth:`write_atomic` does, into one that nobody needs any more.

        Creating files is the dear part of a small write: on an ext4 without a journal it passes
        over all that were deleted in the last minutes (43 us in place of 865 us for 3 KB). No
        reader may have the spare file mapped, or trust what it reads of it without looking
        whether its name still stands, as :meth:`view` does.

        Returns:
            False where the spare file is gone or no plain file of ours: nothing was written.

        Raises:
            as :meth:`write_atomic`; the spare file is lost then.
        """
        _check_name(name)
        temporary = f"{TEMPORARY}{secrets.token_hex(8)}"
        with self._descriptor as folder, spares._descriptor as source:
            try:
                os.rename(spare, temporary, src_dir_fd=source, dst_dir_fd=folder)
            except OSError as error:
                if error.errno in _GONE:
                    return False
                raise self._error("write", name, error) from error
            is_done = False
            try:
                if _overwrite(folder, temporary, buffers):
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                    is_done = True
            except OSError as error:
                raise self._error("write", name, error) from error
            finally:
                if not is_done:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary, dir_fd=folder)
        return is_done

    def open_checked(self, name: str, max_bytes: int) -> tuple[int, os.stat_result]:
        """Open a file for reading; the caller closes the descriptor.

        Raises:
            DataMissingError: there is no such file.
            DataCorruptError: it is no plain file of ours with one name, or too large.
            StorageFullError, RunFolderError: as above.
        """
        _check_name(name)
        with self._descriptor as folder:
            try:
                descriptor = os.open(name, _OPEN_FILE, dir_fd=folder)
            except OSError as error:
                raise self._error("read", name, error) from error
        try:
            found = os.fstat(descriptor)
            why = _why_not_ours(found)
            if why:
                self._refuse(name, why)
            if found.st_size > max_bytes:
                self._refuse(name, f"{found.st_size} bytes; at most {max_bytes} are read")
        except OSError as error:
            close_reader(descriptor)
            raise self._error("read", name, error) from error
        except BaseException:
            close_reader(descriptor)
            raise
        return descriptor, found

    def read(self, name: str, max_bytes: int) -> bytearray:
        """Return a file's content.

        Raises:
            as :meth:`open_checked`, which sees to it that no more than ``max_bytes`` are read.
        """
        descriptor, found = self.open_checked(name, max_bytes)
        try:
            return self._read(name, descriptor, found.st_size)
        except OSError as error:
            raise self._error("read", name, error) from error
        finally:
            close_reader(descriptor)

    def view(self, name: str, max_bytes: int, map_above: int = 64 << 10) -> memoryview:
        """Return a file's content, read-only: a copy if small, else a map.

        A map keeps a descriptor and lives as long as its views. The file may be deleted
        meanwhile, on a local file system; it must not be cut off.

        Args:
            name: Of the file.
            max_bytes: The largest file to look at.
            map_above: Size in bytes from which on a map costs less than a copy.

        Raises:
            as :meth:`open_checked`.
        """
        descriptor, found = self.open_checked(name, max_bytes)
        try:
            if found.st_size <= map_above:
                # bytes: numpy looks through a read-only view of a bytearray.
                content = os.read(descriptor, found.st_size)
                if len(content) < found.st_size:  # above 2 GiB, or cut off
                    os.lseek(descriptor, 0, os.SEEK_SET)
                    content = bytes(self._read(name, descriptor, found.st_size))
                # A file without its name may have become a spare one, and be written over.
                now = self.stat(name)
                if now is None or now.st_ino != found.st_ino:
                    raise DataMissingError(f"{self.path / name} went away", data_id=name)
                return memoryview(content)
            # Not MAP_POPULATE: hashing what arrives page by page is quicker (0.46 to 0.75 ms
            # for 6.7 MB, 2 cores, ext4).
            return memoryview(mmap.mmap(descriptor, found.st_size, prot=mmap.PROT_READ))
        except OSError as error:
            raise self._error("read", name, error) from error
        except ValueError as error:  # from mmap: cut off since
            raise DataCorruptError(f"{self.path / name}: {error}", where=name) from error
        finally:
            close_reader(descriptor)

    def stat(self, name: str) -> os.stat_result | None:
        """Return what stands under the name (links not followed), None where nothing does."""
        _check_name(name)
        with self._descriptor as folder:
            try:
                return os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError as error:
                if error.errno in _GONE:
                    return None
                raise self._error("look at", name, error) from error

    def unlink(self, name: str) -> bool:
        """Remove a file or link; return whether there was one.

        Raises:
            RunFolderError: it is a folder, or cannot be removed.
        """
        if not _TEMPORARY_NAME.fullmatch(name):
            _check_name(name)
        with self._descriptor as folder:
            try:
                os.unlink(name, dir_fd=folder)
            except OSError as error:
                if error.errno in _GONE:
                    return False
                raise self._error("remove", name, error) from error
        return True

    def remove_sub(self, name: str) -> bool:
        """Remove an empty folder in this one; return whether it is gone."""
        check_id(name, "folder")
        with self._descriptor as folder:
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError as error:
                if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                    return False
                if error.errno not in _GONE:
                    raise self._error("remove", name, error) from error
        return True

    def move(self, name: str, target: PrivateDir, new_name: str) -> bool:
        """Move a file (or what else stands there) to another folder; False if it is gone."""
        _check_name(name)
        _check_name(new_name)
        with self._descriptor as source, target._descriptor as folder:
            try:
                os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=folder)
            except OSError as error:
                if error.errno in _GONE:
                    return False
                raise self._error("move", name, error) from error
        return True

    def names(self) -> list[str]:
        """Return the names in the folder that could be ours, sorted, temporary files included."""
        with self._descriptor as folder:
            try:
                found = os.listdir(folder)  # noqa: PTH208 - a descriptor
            except OSError as error:
                raise self._error("list", "", error) from error
        return sorted(n for n in found if _NAME.fullmatch(n) or _TEMPORARY_NAME.fullmatch(n))

    def free_bytes(self) -> int:
        """Return how much more we may write on this disk."""
        with self._descriptor as folder:
            try:
                disk = os.fstatvfs(folder)
            except OSError as error:
                raise self._error("look at", "", error) from error
        return disk.f_bavail * disk.f_frsize

    # Life -------------------------------------------------------------------------------------
    def close(self) -> None:
        """Give the descriptor back; further calls raise ClosedError."""
        self._descriptor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PrivateDir({str(self.path)!r})"

    def _read(self, name: str, descriptor: int, size: int) -> bytearray:
        content = bytearray(size)
        rest = memoryview(content)
        while rest:
            count = os.readv(descriptor, [rest])
            if count == 0:
                self._refuse(name, "it was cut off while it was read")
            rest = rest[count:]
        return content

    def _refuse(self, name: str, why: str) -> NoReturn:
        raise DataCorruptError(f"{self.path / name} is refused: {why}", where=name)

    def _error(self, action: str, name: str, error: OSError) -> DingError:
        if action == "read":
            if error.errno in _GONE:
                return DataMissingError(f"no file {self.path / name}", data_id=name)
            if error.errno in _FOREIGN:
                text = f"{self.path / name} is no plain file: {error.strerror}"
                return DataCorruptError(text, where=name)
        return _typed(action, self.path / name, error)


def _why_not_ours(found: os.stat_result) -> str:
    # One that was replaced since has no name left, and is whole.
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        return "it is no plain file with one name"
    return "" if found.st_uid == os.geteuid() else f"it belongs to user {found.st_uid}"


def _overwrite(folder: int, name: str, buffers: list[Buffer]) -> bool:
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno in _FOREIGN:
            return False
        raise
    try:
        found = os.fstat(descriptor)
        if _why_not_ours(found):
            return False
        write_chunks(descriptor, buffers)
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        if found.st_size > size:
            os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)  # not close_reader: it may be here that a full disk is reported
    return True


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ProtocolError(f"{name!r:.80} is no file name of ours", where="file name")


def _open_folder(
    path: Path, name: str, parent: int | None, create: bool
) -> tuple[int, tuple[int, int]]:
    try:
        try:
            descriptor = os.open(name, _OPEN_FOLDER, dir_fd=parent)
        except FileNotFoundError:
            if not create:
                raise
            with contextlib.suppress(FileExistsError):  # another process was quicker
                os.mkdir(name, 0o700, dir_fd=parent)
            descriptor = os.open(name, _OPEN_FOLDER, dir_fd=parent)
    except OSError as error:
        if error.errno in _GONE and parent is not None and not create:
            raise DataMissingError(f"no folder {path}", data_id=name) from error
        raise _typed("open", path, error) from error
    why = ""
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            why = f"it belongs to user {found.st_uid}, we are {os.geteuid()}"
        elif found.st_mode & 0o022:
            why = f"others can write to it (mode {stat.S_IMODE(found.st_mode):04o}); chmod 700 it"
    except OSError as error:
        close_reader(descriptor)
        raise _typed("open", path, error) from error
    if why:
        close_reader(descriptor)
        raise RunFolderError(f"{path} is refused: {why}", path=str(path), reason=why)
    return descriptor, (found.st_dev, found.st_ino)


def _typed(action: str, path: Path, error: OSError) -> DingError:
    if error.errno in _FULL:
        reason = errno.errorcode[error.errno]
        text = f"cannot {action} {path}: {error.strerror} ({reason}); it may work again later"
        return StorageFullError(text, path=str(path), reason=reason)
    return folder_error(action, path, error)
