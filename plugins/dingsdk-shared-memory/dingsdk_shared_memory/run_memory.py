"""A run's folder in shared memory: its owner and users, and the removal of stale folders.

Files in ``/dev/shm/dingsdk-<user>-<hash of the run folder>/`` are segments of shared memory. They
exist until they are unlinked, even if all processes end. Every process of the run holds a shared
lock on the folder. If no process holds that lock and no run holds the run folder, the folder is
*stale*: the next master on this host removes it.

Payloads of a run that can be resumed are moved to ``transport/`` in its run folder, on the disk,
when it ends or is found stale. The master of the resumed run moves them back. There each payload is
a column of bytes in another payload, whose digest covers it: in memory it may have none.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import stat
import time
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np

from dingsdk.data import SampleBatch, decode_batch, decode_json, encode_batch, encode_json
from dingsdk.errors import (
    ConfigError,
    DataCorruptError,
    DataMissingError,
    DataVersionError,
    DingError,
    RunDirLockedError,
)
from dingsdk.runtime import Folder, PrivateDir, is_locked, locked_folder
from dingsdk_shared_memory.segments import Segments

ROOT = Path("/dev/shm")
OWNER, SOCKET = "run.json", "socket"
FORMAT = 6
"""Version of the folder's format; other versions of this package may use another one."""
DATA, KEPT, JOURNAL = "data", "transport", "journal"
SWEPT_S = 5.0
"""How long the removal of a dead run's files in the same folder may take."""
_FRAME = "frame"
"""Column of a file on the disk that holds a payload."""
_KIND, _OWNER_BYTES = "shared-memory-run", 64 << 10
"""The kind of the file that names the owner of a folder, and its largest size."""
_LONGEST_SOCKET = 107
"""Most bytes of the path of a Unix socket, on Linux."""
_NO_LIMIT = 1 << 62
_NAME = re.compile(r"dingsdk-([0-9]+)-[0-9a-f]{16}")
_log = logging.getLogger(__name__)


class _Owner(msgspec.Struct, frozen=True):
    format: int
    run_dir: str


def folder_of(run_dir: Path) -> Path:
    """Return the folder in shared memory of the run in ``run_dir``, for this user."""
    name = hashlib.sha256(os.fsencode(run_dir.absolute())).hexdigest()[:16]
    return ROOT / f"dingsdk-{os.geteuid()}-{name}"


class RunMemory:
    """The folder of a run, in use by this process until it is closed.

    Args:
        path: The folder; created if missing.
        run_dir: Folder of the run on disk.

    Attributes:
        folder: The open folder.
        socket: Path of the master's socket.

    Raises:
        ConfigError: there is no shared memory, or the path is too long for a socket.
        RunDirLockedError: the folder belongs to another run.
        DataVersionError: another version of this package made it.
        RunFolderError, StorageFullError: it cannot be made, or others can write to it.
    """

    def __init__(self, path: Path, run_dir: Path) -> None:
        if not os.path.isdir(path.parent):
            raise ConfigError(
                f"no folder {path.parent}: shared memory is there on Linux; elsewhere choose "
                "another transport",
                path="system.transport.data_dir",
            )
        self.socket = str(path / SOCKET)
        if len(os.fsencode(self.socket)) > _LONGEST_SOCKET:
            raise ConfigError(
                f"{path} is too long: the path of a socket in it has at most {_LONGEST_SOCKET} "
                "bytes",
                path="system.transport.data_dir",
            )
        self.path = path
        self._run_dir = str(run_dir.absolute())
        self._lock = -1
        deadline = time.monotonic() + SWEPT_S
        while not self._begin():
            if time.monotonic() >= deadline:
                raise RunDirLockedError(
                    f"another process has locked {path} for {SWEPT_S:.0f} s", path=str(path)
                )
            time.sleep(0.01)
        with contextlib.ExitStack() as undo:
            undo.callback(self._unlock)
            self.folder = undo.enter_context(PrivateDir(path, create=False))
            self._claim()
            undo.pop_all()

    def close(self) -> None:
        """Stop using the folder; idempotent."""
        self.folder.close()
        self._unlock()

    def _begin(self) -> bool:
        """Lock the folder as in use; False while another process removes it."""
        PrivateDir(self.path).close()
        is_locked = False
        try:
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                is_locked = os.path.samestat(os.fstat(self._lock), os.lstat(self.path))
        finally:
            if not is_locked:
                self._unlock()
        return is_locked

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _claim(self) -> None:
        """Write this run as the owner of the folder, or check that it is the owner."""
        try:
            owner = _owner_of(self.folder)
        except DataMissingError:
            fields = {"format": FORMAT, "run_dir": self._run_dir}
            self.folder.write_atomic(OWNER, [encode_json(_KIND, fields)])
            return
        if owner.run_dir != self._run_dir:
            raise RunDirLockedError(
                f"{self.path} belongs to the run in {owner.run_dir}, not to {self._run_dir}; give "
                "this one another system.transport.data_dir",
                path=str(self.path),
            )


def remove(path: Path) -> None:
    """Remove a run's folder, even if it is in use.

    Raises:
        RunFolderError: something cannot be removed, or the folder is not ours.
    """
    if not os.path.isdir(path):
        return
    with PrivateDir(path, create=False) as folder:
        for name in folder.names():
            found = None if name.startswith(".") else folder.stat(name)
            if found is not None and stat.S_ISDIR(found.st_mode):
                folder.remove_tree(name)
            else:
                folder.unlink(name)
    with contextlib.suppress(OSError):  # not empty: it has files that are not ours
        path.rmdir()


def keep(path: Path, run_dir: Path) -> None:
    """Move the payloads of a run from its memory to its folder on the disk; remove the memory.

    Raises:
        StorageFullError, RunFolderError: it failed; the payloads stay in memory.
    """
    if not os.path.isdir(path):
        return
    with PrivateDir(path, create=False) as memory, PrivateDir(run_dir / KEPT) as disk:
        if memory.stat(DATA) is not None:
            with closing(Segments(memory.sub(DATA, create=False))) as segments:
                for data_id in segments.ids():
                    with contextlib.suppress(DataCorruptError):
                        frame = segments.read(data_id)
                        if frame is not None:
                            whole = SampleBatch({_FRAME: np.frombuffer(frame, np.uint8)})
                            disk.write_atomic(f"{data_id}.ding", encode_batch(whole)[0])
    remove(path)


def bring_back(segments: Segments, run_dir: Path) -> None:
    """Move the payloads that ``keep`` moved to the disk back to memory, except damaged ones.

    Raises:
        StorageFullError, RunFolderError: it failed; the payloads stay on the disk.
    """
    if not (run_dir / KEPT).exists():
        return
    with PrivateDir(run_dir / KEPT, create=False) as disk:
        for name in disk.names():
            data_id = name.removesuffix(".ding")
            if data_id != name and not segments.has(data_id):
                try:
                    kept = decode_batch(disk.view(name, _NO_LIMIT), _NO_LIMIT)
                    frame = memoryview(kept.columns[_FRAME])
                except (DataCorruptError, KeyError) as error:
                    _log.warning("%s is damaged, its samples are lost: %s", disk.path / name, error)
                    continue
                segments.add(data_id, [frame], len(frame))
    forget_kept(run_dir)


def forget_kept(run_dir: Path) -> None:
    """Remove the payloads that ``keep`` moved to the disk."""
    if (run_dir / KEPT).is_dir():
        with Folder(run_dir) as folder:
            folder.remove_tree(KEPT)


def remove_stale(root: Path = ROOT) -> int:
    """Remove the folders of this user's runs that have no living process; return their number.

    Payloads of a run that can be resumed are moved to its run folder.
    """
    count = 0
    for path in sorted(root.iterdir()):
        name = _NAME.fullmatch(path.name)
        if name is None or int(name[1]) != os.geteuid():
            continue
        try:
            with locked_folder(path, "it is in use"):
                run_dir = _run_dir_of(path)
                # A run may be active although its processes that used the folder died.
                if run_dir is None or not is_held(run_dir):
                    _clear(path, run_dir)
                    _log.info("removed %s, which a dead run left", path)
                    count += 1
        except RunDirLockedError:
            continue
        except (OSError, DingError) as error:
            # As text: the error in a stored log record would keep the callers' files open.
            _log.warning("what a dead run left stays in %s: %s", path, str(error))
    return count


def _clear(path: Path, run_dir: Path | None) -> None:
    if run_dir is not None and (run_dir / JOURNAL).is_dir():
        keep(path, run_dir)
    else:
        remove(path)


def _run_dir_of(path: Path) -> Path | None:
    """Return the run folder that a folder names as its owner, or None if it cannot be read."""
    with contextlib.suppress(OSError, DingError), PrivateDir(path, create=False) as folder:
        return Path(_owner_of(folder).run_dir)
    return None


def is_held(run_dir: Path) -> bool:
    """Whether an active run holds the folder ``run_dir``."""
    return run_dir.is_dir() and is_locked(run_dir)


def _owner_of(folder: PrivateDir) -> _Owner:
    content = folder.read(OWNER, _OWNER_BYTES)
    try:
        owner = msgspec.convert(decode_json(_KIND, content, _OWNER_BYTES), _Owner)
    except msgspec.ValidationError as error:
        raise DataCorruptError(f"{folder.path / OWNER}: {error}", where=OWNER) from error
    if owner.format != FORMAT:
        raise DataVersionError(
            f"{folder.path} was made by another version of dingsdk-rl-shared-memory (format "
            f"{owner.format}; this one has {FORMAT}); remove it once its run is over",
            where=OWNER,
            found=owner.format,
            expected=FORMAT,
        )
    return owner
