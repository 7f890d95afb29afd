"""Files of a run: names are checked, links are not followed, and files are written atomically.

In a block of :func:`guarded`, everything below a run folder is opened folder by folder, without
following links: by :class:`Folder`, :func:`ensure_dir` and :func:`open_private`. All files of a run
are opened by these, apart from files that other libraries write. The run folder itself and its
parents may be links.

A :class:`Folder` keeps a file descriptor of its folder, so that it always uses the folder that it
checked, even if its path is changed later. A :class:`PrivateDir` is a folder to which only this
user writes, with a fixed form of names. Files are written under a temporary name and then renamed.
A writer that is killed leaves a temporary file; :meth:`Folder.sweep` removes such files.

Errors: StorageFullError if the disk is full, over quota or failing, or no descriptors are free;
RunFolderError for other failed reads and writes. A failed write leaves no partial file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import mmap
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

from dingsdk.errors import (
    ClosedError,
    DataCorruptError,
    DataMissingError,
    DingError,
    ProtocolError,
    RunDirLockedError,
    RunFolderError,
    StorageFullError,
    wrong_type,
)
from dingsdk.runtime.deadline import Closing

Buffer = bytes | bytearray | memoryview

_ADVICE = {
    errno.ENOSPC: "free some disk space",
    errno.EDQUOT: "free some of your disk quota",
    errno.EACCES: "choose a folder that you may write to, or change its permissions",
    errno.EPERM: "choose a folder that you may write to, or change its permissions",
    errno.EROFS: "choose a folder on a file system that is mounted for writing",
    errno.ENOENT: "create the folder first, and keep it as long as it is in use",
    errno.ENOTDIR: "a part of the path is a file; choose another path",
    errno.EEXIST: "a file has that name; choose another path or remove it",
    errno.EISDIR: "a folder has that name; choose another path or remove it",
    errno.ELOOP: "a part of the path is a symbolic link; replace it with what it links to",
    errno.EINVAL: "choose another name",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}
FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Error numbers of failures that may not happen again later."""
_GONE = {errno.ENOENT, errno.ESTALE}  # ESTALE: on NFS, another host deleted the file
_NOT_A_FILE = {errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR}

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DEVICE = re.compile(r"CON|PRN|AUX|NUL|COM[0-9]|LPT[0-9]", re.IGNORECASE)
_ANY_NAME = re.compile(r"[^./\0][^/\0]{0,254}")
_PRIVATE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[a-z0-9]{1,16})?")
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{16}")

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY
# Without O_NONBLOCK the open of a FIFO would wait for a writer.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_BUFFERS_A_CALL = 512
"""Most buffers in one write: below IOV_MAX, which is 1024 on Linux."""
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISREG, "a regular file"),
)
ROOM_PAUSE_S = 1.0
"""Pause before a write is tried again for which the disk had no room."""
_log = logging.getLogger(__name__)
_guards: list[Path] = []
"""The run folders of the active ``guarded`` blocks of this process."""


def check_id(text: object, what: str = "id") -> str:
    """Return a received id if it can be part of a file name.

    Raises:
        ProtocolError: it is not ``[A-Za-z0-9_-]{1,64}``, or it is the name of a device on some file
            servers; ``where`` is ``what``.
    """
    if isinstance(text, str) and _ID.fullmatch(text) and not _DEVICE.fullmatch(text):
        return text
    raise ProtocolError(f"{what} {text!r:.80} is no id: 1 to 64 of A-Z a-z 0-9 _ -", where=what)


@contextlib.contextmanager
def guarded(run_dir: str | os.PathLike[str]) -> Iterator[None]:
    """In the block, follow no links below a run folder, in all threads of this process."""
    place = Path(run_dir).absolute()
    _guards.append(place)
    try:
        yield
    finally:
        _guards.remove(place)


def guarded_folders() -> tuple[Path, ...]:
    """Return the run folders of the active ``guarded`` blocks, for a new process to guard too."""
    return tuple(dict.fromkeys(_guards))


def refuse_kind(path: Path, mode: int, wanted: str = "a regular file") -> NoReturn:
    """Raise RunFolderError because a path is not of the kind (folder or file) that it should be."""
    kind = next((text for is_kind, text in _KINDS if is_kind(mode)), "a device")
    raise RunFolderError(
        f"{path} is refused: it is {kind}, not {wanted}, and links in a run folder are not "
        "followed; replace it",
        path=str(path),
        reason=kind,
    )


@contextlib.contextmanager
def _parent(path: Path, create: bool = False) -> Iterator[tuple[int | None, str]]:
    """Yield what to open a path with: a descriptor of its folder, or None, and its name there.

    The descriptor is that of the folder if the path is below a guarded folder. With ``create``,
    missing folders between the two are made.
    """
    place = path.absolute()
    if "\0" in str(place):
        raise OSError(errno.EINVAL, "a path has no NUL character")
    roots = [root for root in guarded_folders() if root in place.parents]
    if not roots or ".." in place.parts:
        yield None, str(path)
        return
    root = max(roots, key=lambda each: len(each.parts))
    *folders, name = place.relative_to(root).parts
    descriptor = os.open(root, _OPEN_FOLDER)
    try:
        for each in folders:
            root /= each
            outer, descriptor = descriptor, _open_at(descriptor, each, root, create)
            close_reader(outer)
        yield descriptor, name
    finally:
        close_reader(descriptor)


def _open_at(parent: int | None, name: str, path: Path, create: bool, flags: int = 0) -> int:
    """Open a folder in an open folder, without following links; ``path`` is for messages."""
    flags |= _OPEN_FOLDER if parent is None else _OPEN_FOLDER | os.O_NOFOLLOW
    for is_last in (not create, True):
        try:
            return os.open(name, flags, dir_fd=parent)
        except FileNotFoundError:
            if is_last:
                raise
            with contextlib.suppress(FileExistsError):  # another process has just made it
                os.mkdir(name, 0o700, dir_fd=parent)
        except NotADirectoryError:
            if parent is not None:
                mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
                refuse_kind(path, mode, "a folder")
            raise
    raise AssertionError


def ensure_dir(path: str | os.PathLike[str]) -> Path:
    """Return a folder; create it and missing parents with mode 0700.

    Raises:
        RunFolderError: the folder cannot be created, or the path is a file.
    """
    folder = Path(path)
    try:
        with _parent(folder, create=True) as (parent, name):
            if parent is not None:
                close_reader(_open_at(parent, name, folder, create=True))
                return folder
        for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        if not folder.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    except OSError as error:
        raise folder_error("create", folder, error) from error
    return folder


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file, and create it with mode 0600; an ``opener`` for ``open()``.

    Does not wait for a FIFO, and follows no link.

    Raises:
        RunFolderError: it is no regular file, or it is to be written and belongs to another user.
        OSError: it cannot be opened.
    """
    file = Path(path)
    with _parent(file) as (parent, name):
        try:
            descriptor = os.open(
                name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o600, dir_fd=parent
            )
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                refuse_kind(file, os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
            raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            refuse_kind(file, found.st_mode)
        if flags & os.O_ACCMODE != os.O_RDONLY:
            check_owner(file, found)
    except BaseException:
        close_reader(descriptor)
        raise
    return descriptor


def check_owner(path: Path, found: os.stat_result) -> None:
    """Raise RunFolderError unless this process may write to what it found in a run folder.

    Another user who owns it could change it during the run; root may.
    """
    if os.geteuid() not in (0, found.st_uid):
        raise RunFolderError(
            f"{path} belongs to user {found.st_uid}, and this process runs as {os.geteuid()}: a "
            "run writes only to its own user's files; copy the run folder, and use the copy",
            path=str(path),
        )


def _open_folder(path: Path, flags: int = 0, create: bool = False) -> int:
    with _parent(path) as (parent, name):
        return _open_at(parent, name, path, create, flags)


@contextlib.contextmanager
def locked_folder(path: Path, taken: str) -> Iterator[None]:
    """Lock a folder for this process during the block; the lock also ends with the process.

    Raises:
        RunDirLockedError: another process has locked it; the error text is ``taken``.
    """
    descriptor = _open_folder(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunDirLockedError(taken, path=str(path)) from error
        except OSError:
            # Some file servers have no locks; then the user has to avoid a second process.
            pass
        yield
    finally:
        close_reader(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process has the lock of ``locked_folder``; True if that cannot be determined."""
    descriptor = -1
    try:
        descriptor = _open_folder(path)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        if descriptor >= 0:
            close_reader(descriptor)
    return False


def checked_path(path: Any, what: str) -> Path:
    """Return an argument as a path, or raise ConfigTypeError if it is none."""
    with contextlib.suppress(Exception):  # of any code, as `__fspath__` is
        if "\0" not in str(made := Path(path)):
            return made
    raise wrong_type(what, "a path", path)


def folder_error(action: str, path: Path, error: OSError) -> RunFolderError:
    """Return the RunFolderError for an OSError, with advice on what to do."""
    if isinstance(error, RunFolderError):  # it names its path, and says what to do
        return RunFolderError(str(error), **error.facts)
    reason = error.strerror or type(error).__name__
    advice = _ADVICE.get(error.errno or 0, "check the path and the disk")
    return RunFolderError(f"cannot {action} {path}: {reason}; {advice}", path=str(path))


def atomic_write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` as indented JSON; readers see either the old content or the new content.

    The folder must exist. A symbolic link at ``path`` is replaced, never followed.

    Raises:
        RunFolderError, StorageFullError: the file cannot be written.
        TypeError, ValueError: the value has no JSON form (NaN and infinities have none).
    """
    target = Path(path)
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    with Folder(target.parent, create=False) as folder:
        folder.write_atomic(target.name, (text.encode(),))


class _Descriptor:
    """Closes a descriptor when nothing uses it any more."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        close_reader(self.number)


class Folder(Closing):
    """An open folder. Symbolic links in it are never followed.

    Thread-safe. ``close`` returns at once; the descriptor is closed when the last call of another
    thread has returned. A folder that is garbage-collected is closed.

    Args:
        path: The folder; it is created with missing parents.
        create: False: raise an error if the folder does not exist.

    Attributes:
        path: Path of the folder when it was opened.
        owner: Id of the user who owned it then.
    """

    _open_flags = _OPEN_FOLDER
    _names = _ANY_NAME
    _opened: _Descriptor | None = None  # after the end of ``close``, and of calls in progress

    def __init__(self, path: str | os.PathLike[str], create: bool = True) -> None:
        self.path = Path(path)
        if create:
            ensure_dir(self.path.parent)
        self._open(str(self.path), None, create)

    def sub(self, name: str, create: bool = True) -> Self:
        """Open a folder in this one, with the same rules.

        Raises:
            DataMissingError: it does not exist, and ``create`` is False.
        """
        check_id(name, "folder")
        opened = type(self).__new__(type(self))
        opened.path = self.path / name
        with self._use() as folder:
            opened._open(name, folder, create)
        return opened

    def write_atomic(self, name: str, buffers: Sequence[Buffer], durable: bool = False) -> None:
        """Write a file with mode 0600; it gets its name when it is complete.

        Args:
            name: Name of the file. An existing file is replaced; if the write fails, it stays.
            buffers: The content, in order.
            durable: Whether to wait until the file and its name are on the disk.
        """
        with self._use("write", name) as folder:
            _replace(folder, name, buffers, durable)

    def append(self, name: str, buffers: Sequence[Buffer], at: int, durable: bool = False) -> int:
        """Append to a file of ``at`` bytes; if ``at`` is 0, create it with mode 0600 if missing.

        Args:
            name: Name of the file.
            buffers: The bytes to append. If the disk gets full, the file is cut to its old size.
            at: Expected size of the file in bytes; the caller is its only writer.
            durable: Whether to wait until the content is on the disk.

        Returns:
            The number of bytes that were appended.

        Raises:
            RunFolderError: the file has another size.
        """
        with self._use("write", name) as folder:
            flags = _WRITE if at else _WRITE | os.O_CREAT
            descriptor = os.open(name, flags, 0o600, dir_fd=folder)
            try:
                with self._appending(descriptor, name, at):
                    write_chunks(descriptor, buffers)
                    if durable:
                        os.fsync(descriptor)
                        if not at:
                            os.fsync(folder)
            finally:
                os.close(descriptor)
        return sum(len(buffer) for buffer in buffers)

    def open_to_append(self, name: str) -> int:
        """Return a descriptor of an existing file for :meth:`append_to`; the caller closes it."""
        with self._use("write", name) as folder:
            return os.open(name, _WRITE, dir_fd=folder)

    def append_to(self, opened: int, name: str, buffers: Sequence[Buffer], at: int) -> int:
        """Append to a file that :meth:`open_to_append` opened.

        As the file is open already, this takes two thirds of the time of :meth:`append`.

        Args:
            opened: The descriptor.
            name: Name of the file, for errors.
            buffers: The bytes to append. If the disk gets full, the file is cut to its old size.
            at: Expected size of the file in bytes; the caller is its only writer.

        Returns:
            The number of bytes that were appended.

        Raises:
            RunFolderError: the file has another size, or was removed.
        """
        with self._use("write", name), self._appending(opened, name, at):
            write_chunks(opened, buffers)
        return sum(len(buffer) for buffer in buffers)

    @contextlib.contextmanager
    def _appending(self, opened: int, name: str, at: int) -> Iterator[None]:
        """Go to the end of a file of ``at`` bytes; cut it to them if the block fails."""
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            refuse_kind(self.path / name, found.st_mode)
        if found.st_size != at or not found.st_nlink:
            state = f"has {found.st_size} bytes in place of {at}" if found.st_nlink else "is gone"
            raise RunFolderError(
                f"{self.path / name} {state}: another process writes to it, or it was cut off or "
                "removed",
                path=str(self.path / name),
            )
        os.lseek(opened, at, os.SEEK_SET)
        try:
            yield
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(opened, at)
            raise

    def sync(self) -> None:
        """Wait until the entries of the folder are on the disk."""
        with self._use("write") as folder:
            os.fsync(folder)

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return a file's content.

        Raises:
            DataMissingError: there is no such file.
            DataCorruptError: it is not a regular file, or has more than ``max_bytes``.
        """
        with self._file(name, max_bytes) as (descriptor, found):
            return self._read(name, descriptor, found.st_size)

    def view(self, name: str, max_bytes: int, map_above: int = 64 << 10) -> memoryview:
        """Return the content of a file, read-only: a copy of a small file, else a memory map.

        A map keeps a descriptor, and lives as long as its views. On a local file system, the file
        may be deleted during that time; it must not be truncated. Raises as :meth:`read`.

        Args:
            name: Name of the file.
            max_bytes: The largest file to accept.
            map_above: Files with more bytes than this are mapped.
        """
        with self._file(name, max_bytes) as (descriptor, found):
            if found.st_size > map_above:
                try:
                    return memoryview(mmap.mmap(descriptor, found.st_size, access=mmap.ACCESS_READ))
                except ValueError:
                    self._refuse(name, "it was cut off while it was read")
            content = self._read(name, descriptor, found.st_size)
            self._check_read(name, found)
            return memoryview(content)

    def stat(self, name: str) -> os.stat_result | None:
        """Return the status of a file, without following links; None if there is no such name."""
        with self._use("look at", name) as folder:
            try:
                return os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
        return None

    def unlink(self, name: str) -> bool:
        """Remove a file or link; return whether there was one."""
        with self._use("remove", name) as folder:
            return _unless_gone(os.unlink, name, dir_fd=folder)

    def move(self, name: str, target: Folder, new_name: str) -> bool:
        """Move a file, link or folder to another folder; return False if it does not exist."""
        with self._use("move", name) as source, target._use(name=new_name) as folder:
            return _unless_gone(os.rename, name, new_name, src_dir_fd=source, dst_dir_fd=folder)

    def names(self) -> list[str]:
        """Return the names in the folder, sorted, with those of temporary files.

        Other names that begin with a dot are left out; in a private folder, also all names that do
        not have the form of its names.
        """
        with self._use("list") as folder:
            found = os.listdir(folder)  # noqa: PTH208 - a descriptor
        return sorted(n for n in found if self._names.fullmatch(n) or _TEMPORARY.fullmatch(n))

    def sweep(self) -> int:
        """Remove the temporary files of writers that died; return their number.

        A writer whose temporary file is removed writes it again.
        """
        count = 0
        for name in filter(_TEMPORARY.fullmatch, self.names()):
            found = self.stat(name)
            if found is not None and stat.S_ISREG(found.st_mode):
                with contextlib.suppress(RunFolderError, StorageFullError):
                    count += self.unlink(name)
        return count

    def remove_tree(self, name: str) -> bool:
        """Remove a folder in this one, with all files and folders that :meth:`names` lists in it.

        Returns False if the folder contains something else, and therefore stays.
        """
        try:
            with self.sub(name, create=False) as inner:
                for entry in inner.names():
                    found = inner.stat(entry)
                    if found is not None and stat.S_ISDIR(found.st_mode):
                        inner.remove_tree(entry)
                    else:
                        inner.unlink(entry)
        except DataMissingError:
            return True
        with self._use("remove", name) as folder:
            try:
                _unless_gone(os.rmdir, name, dir_fd=folder)
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
                return False
        return True

    def free_bytes(self) -> int:
        """Return the number of free bytes on this disk that we may use."""
        with self._use("look at") as folder:
            disk = os.fstatvfs(folder)
        return disk.f_bavail * disk.f_frsize

    def close(self) -> None:
        """Release the descriptor; further calls raise ClosedError. Idempotent."""
        self._opened = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def _open(self, name: str, parent: int | None, create: bool) -> None:
        descriptor = -1
        try:
            if parent is None:
                descriptor = _open_folder(self.path, self._open_flags, create)
            else:
                descriptor = _open_at(parent, name, self.path, create)
            found = os.fstat(descriptor)
            self.owner = found.st_uid
            why = self._why_refused_folder(descriptor, found)
        except OSError as error:
            if descriptor >= 0:
                close_reader(descriptor)
            if error.errno in _GONE and parent is not None and not create:
                raise DataMissingError(f"no folder {self.path}", data_id=name) from error
            raise file_error("open", self.path, error) from error
        if why:
            close_reader(descriptor)
            raise RunFolderError(f"{self.path} is refused: {why}", path=str(self.path), reason=why)
        self._opened = _Descriptor(descriptor)

    def _use(self, action: str = "", name: str | None = None) -> _Use:
        """Use the descriptor for a file of this name.

        With an ``action``, OSErrors are converted to the errors of this module.
        """
        if name is not None and not (self._names.fullmatch(name) or _TEMPORARY.fullmatch(name)):
            raise ProtocolError(f"{name!r:.80} is no file name of ours", where="file name")
        return _Use(self, action, name or "")

    @contextlib.contextmanager
    def _file(self, name: str, max_bytes: int) -> Iterator[tuple[int, os.stat_result]]:
        """Open a file for reading; check its type and size."""
        with self._use("read", name) as folder:
            descriptor = os.open(name, _OPEN_FILE, dir_fd=folder)
            try:
                found = os.fstat(descriptor)
                why = self._why_refused(found)
                if not why and found.st_size > max_bytes:
                    why = f"{found.st_size} bytes; at most {max_bytes} are read"
                if why:
                    self._refuse(name, why)
                yield descriptor, found
            finally:
                close_reader(descriptor)

    def _check_read(self, name: str, found: os.stat_result) -> None:
        """Raise if the file may have been overwritten with another one while it was read."""

    def _why_refused_folder(self, folder: int, found: os.stat_result) -> str:
        return ""

    def _why_refused(self, found: os.stat_result) -> str:
        return "" if stat.S_ISREG(found.st_mode) else "it is not a regular file"

    def _read(self, name: str, descriptor: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            part = os.read(descriptor, size)
            if not part:
                self._refuse(name, "it was cut off while it was read")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _refuse(self, name: str, why: str) -> NoReturn:
        raise DataCorruptError(f"{self.path / name} is refused: {why}", where=name)

    def _error(self, action: str, name: str, error: OSError) -> DingError:
        if action == "read":
            if error.errno in _GONE:
                return DataMissingError(f"no file {self.path / name}", data_id=name)
            if error.errno in _NOT_A_FILE:
                text = f"{self.path / name} is not a regular file: {error.strerror}"
                return DataCorruptError(text, where=name)
        return file_error(action, self.path / name, error)


class _Use:
    """One use of the descriptor of a folder.

    Not a generator with ``contextmanager``: if one raises another error than the one that it got,
    then from Python 3.12 on the objects of all its callers stay until garbage is collected.
    """

    __slots__ = ("_action", "_folder", "_name", "_opened")

    def __init__(self, folder: Folder, action: str, name: str) -> None:
        self._folder, self._action, self._name = folder, action, name

    def __enter__(self) -> int:
        self._opened = self._folder._opened  # stays open even if the folder is closed meanwhile
        if self._opened is None:
            raise ClosedError("the folder is closed", what="folder")
        return self._opened.number

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._opened = None
        if self._action and isinstance(error, OSError) and not isinstance(error, DingError):
            raise self._folder._error(self._action, self._name, error) from error


class PrivateDir(Folder):
    """A folder to which only this user can write; opening it fails if others can write to it.

    Root may also use the folder of another user, if the folder that it is in is of the same user.

    Raises:
        RunFolderError: as :class:`Folder`; also if the path is a link, the folder belongs to
            another user, or its group or others can write to it.
    """

    _open_flags = _OPEN_FOLDER | os.O_NOFOLLOW
    _names = _PRIVATE_NAME

    def rewrite(self, name: str, buffers: Sequence[Buffer], pool: PrivateDir, pooled: str) -> bool:
        """Write a file as :meth:`write_atomic` does, but reuse an old file that is not needed.

        A new file needs new pages and, on some file systems, an inode that was not deleted
        recently; both cost more than the write itself. No reader may have the pooled file mapped.
        After reading, a reader must check that the file still has its name, as :meth:`view` does.

        Args:
            name: Name of the file.
            buffers: The content, in order.
            pool: Folder of the old files.
            pooled: Name of one of them; it leaves the pool, and is lost if this call fails.

        Returns:
            False if the pooled file does not exist or is not a regular file of this user; nothing
            was written then.
        """
        temporary = f".tmp-{secrets.token_hex(8)}"
        with self._use("write", name) as folder, pool._use(name=pooled) as source:
            if not _unless_gone(os.rename, pooled, temporary, src_dir_fd=source, dst_dir_fd=folder):
                return False
            is_done = False
            try:
                if self._overwrite(folder, temporary, buffers):
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                    is_done = True
            finally:
                if not is_done:
                    _unlink_quietly(folder, temporary)
        return is_done

    def _overwrite(self, folder: int, name: str, buffers: Sequence[Buffer]) -> bool:
        try:
            descriptor = os.open(name, _WRITE, dir_fd=folder)
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                return False
            raise
        try:
            found = os.fstat(descriptor)
            if self._why_refused(found):
                return False
            write_chunks(descriptor, buffers)
            size = sum(memoryview(buffer).nbytes for buffer in buffers)
            if found.st_size > size:
                os.ftruncate(descriptor, size)
            return True
        finally:
            os.close(descriptor)  # not close_reader: a full disk may be reported only here

    def _check_read(self, name: str, found: os.stat_result) -> None:
        # If the file has lost its name, :meth:`rewrite` may have overwritten it.
        now = self.stat(name)
        if now is None or now.st_ino != found.st_ino:
            raise DataMissingError(f"{self.path / name} went away", data_id=name)

    def _why_refused_folder(self, folder: int, found: os.stat_result) -> str:
        # Root may use a folder that its owner made in a folder of their own, such as a run folder;
        # in /tmp or /dev/shm, another user may have made it to deceive root.
        trusted = {os.geteuid()}
        if os.geteuid() == 0:
            trusted.add(os.stat("..", dir_fd=folder).st_uid)
        if found.st_uid not in trusted:
            return f"it belongs to user {found.st_uid}, we are {os.geteuid()}"
        mode = stat.S_IMODE(found.st_mode)
        return f"others can write to it (mode {mode:04o}); chmod 700 it" if mode & 0o022 else ""

    def _why_refused(self, found: os.stat_result) -> str:
        # A file that was just replaced has no name, but complete content.
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            return "it is not a regular file with one name"
        is_trusted = found.st_uid in (os.geteuid(), self.owner)
        return "" if is_trusted else f"it belongs to user {found.st_uid}"


def keep_lines(path: Path, is_kept: Callable[[str], bool]) -> None:
    """Remove all other lines of a text file, in one step; nothing happens if it does not exist.

    Raises:
        OSError, RunFolderError, StorageFullError: it cannot be read or written.
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", opener=open_private) as file:
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return
    kept = list(filter(is_kept, lines))
    if len(kept) < len(lines):
        with Folder(path.parent) as folder:
            folder.write_atomic(path.name, ["".join(kept).encode("utf-8", "surrogateescape")])


class Patience:
    """Repeats a write that a run cannot do without while the disk is full. Not thread-safe.

    Args:
        limit_s: How long to wait for room (``system.coordinator.storage_timeout_s``).
        pause: Waits for some seconds; returns True if the run has to stop and nothing may wait.
    """

    def __init__(
        self,
        limit_s: float,
        pause: Callable[[float], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_s, self._pause, self._clock = limit_s, pause, clock
        self._since: float | None = None
        self._try_at = 0.0

    def __call__(self, write: Callable[[], object]) -> None:
        """Write, and wait for room if needed.

        Raises:
            StorageFullError: there was no room for too long, or the run has to stop.
        """
        while not self.attempt(write):
            if self._pause(ROOM_PAUSE_S):
                write()
                return

    def attempt(self, write: Callable[[], object]) -> bool:
        """Write, at most once a second after a failure; return whether it is written.

        Raises:
            StorageFullError: there was no room for too long.
        """
        now = self._clock()
        if self._since is not None and now < self._try_at:
            return False
        try:
            write()
        except StorageFullError as error:
            since = self._since = now if self._since is None else self._since
            self._try_at = now + ROOM_PAUSE_S
            if now - since >= self._limit_s:
                raise StorageFullError(
                    f"{error}; there was no room for {now - since:.0f} s "
                    "(system.coordinator.storage_timeout_s)",
                    **error.facts,
                ) from error
            if now == since:
                _log.warning("the run waits for up to %.0f s: %s", self._limit_s, error)
            return False
        if self._since is not None:
            _log.warning("there is room again, after %.1f s", now - self._since)
            self._since = None
        return True


def close_reader(descriptor: int) -> None:
    """Close a descriptor that was not used for writing; errors are ignored, as no data is lost."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _unless_gone(call: Callable[..., None], *args: Any, **options: Any) -> bool:
    """Call a function of ``os``; return False if its file does not exist."""
    try:
        call(*args, **options)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return False
    return True


def _replace(folder: int, name: str, chunks: Sequence[Buffer], durable: bool) -> None:
    """Write a file in an open folder. If it raises OSError, the old file is still there.

    Only if the last step fails, the fsync of the folder, the new file has already replaced it.
    """
    temporary = f".tmp-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        try:
            write_chunks(descriptor, chunks)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)  # before the rename: a full disk may be reported only here
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:  # another process took it for the file of a dead writer
        _replace(folder, name, chunks, durable)
        return
    except BaseException:
        _unlink_quietly(folder, temporary)
        raise
    if durable:
        os.fsync(folder)


def write_chunks(descriptor: int, chunks: Sequence[Buffer]) -> None:
    """Write all chunks, with few system calls."""
    for start in range(0, len(chunks), _BUFFERS_A_CALL):
        some = chunks[start : start + _BUFFERS_A_CALL]
        written = os.writev(descriptor, some)
        for chunk in some:
            size = memoryview(chunk).nbytes
            if written < size:  # a full disk, a signal, or more than the 2 GiB a call takes
                rest = memoryview(chunk).cast("B")[written:]
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            written = max(written - size, 0)


def _unlink_quietly(folder: int, name: str) -> None:
    # Errors are ignored: the error of the caller is the one to report.
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def file_error(action: str, path: Path, error: OSError, full: Collection[int] = FULL) -> DingError:
    """Return StorageFullError if the error number is in ``full``, else ``folder_error``."""
    if error.errno in full:
        reason = errno.errorcode[error.errno or 0]
        advice = _ADVICE.get(error.errno or 0, "it may work again later")
        text = f"cannot {action} {path}: {error.strerror} ({reason}); {advice}"
        return StorageFullError(text, path=str(path), reason=reason)
    return folder_error(action, path, error)
