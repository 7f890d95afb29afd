"""Policies in a shared folder: immutable version files and a pointer that is replaced.

The files are ``policy/<policy_id>/<version>.ding`` and the pointer ``LATEST.json``, written last.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from dingsdk.data import FrameInfo, decode_frame, decode_json, encode_frame, encode_json
from dingsdk.errors import (
    ConfigError,
    DataCorruptError,
    DataMissingError,
    ProtocolError,
    RunFolderError,
    SchemaMismatchError,
    StorageFullError,
)
from dingsdk.runtime import Buffer, PrivateDir, check_id
from dingsdk.worker.comm.files.data_store import check_free
from dingsdk.worker.comm.transport import PolicyStore

POLICY_FOLDER = "policy"
POINTER = "LATEST.json"
_POINTER_BYTES = 4096
"""Largest size of the pointer file."""
_KIND, _POINTER_KIND = "policy", "newest-policy"
_VERSION_FILE = re.compile(r"([0-9]{12})\.ding")
_MOVED_ON_TRIES = 1000
"""How often a reader tries again because a version was replaced while it was opened."""
_KEEP_KEY = "system.transport.keep_policy_versions"
_logger = logging.getLogger(__name__)


class _Latest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the pointer: the version, and size and digest of its file.

    ``life`` is a random id, chosen when a policy is first published, when it is published again
    after ``discard``, and when a damaged version is published again. The folder cannot replace it:
    a new folder can have the name and the inode of the old one.
    """

    version: Annotated[int, msgspec.Meta(ge=0, lt=10**12)]
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    digest: str
    life: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


class Returned:
    """The versions returned to a reader of each policy, so that it never gets an older one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, tuple[str | None, int]] = {}

    def newest(self, policy_id: str) -> tuple[str | None, int] | None:
        """Return (life, version) of the newest returned version, None if there is none."""
        return self._newest.get(policy_id)

    def note(
        self, policy_id: str, before: tuple[str | None, int] | None, life: str | None, version: int
    ) -> bool:
        """Record a version to return; False if another thread has recorded a newer one.

        ``before`` is the result of :meth:`newest` before the reader read the pointer.
        """
        with self._lock:
            now = self._newest.get(policy_id)
            if now != before and (now is None or now[0] != life or now[1] > version):
                return False
            self._newest[policy_id] = (life, version)
            return True

    def forget(self, policy_id: str) -> None:
        """Remove the record of a discarded policy."""
        with self._lock:
            self._newest.pop(policy_id, None)


class FilePolicyStore(PolicyStore):
    """Policies as files; one process publishes a policy, and any number of processes read it.

    Each store object counts as one reader: it never returns an older version of a policy than
    before. Safe to use from many threads.

    Args:
        path: Folder that all workers share; ``PrivateDir`` lists its requirements. An open
            ``PrivateDir`` is closed.
        keep_versions: Number of versions to keep. A reader can still open a version until this
            many newer ones are published, and older versions can replace a damaged one.
        min_free_bytes: Bytes to leave free on the disk.
        is_durable: Whether a published version survives a power cut. Not needed to resume: a
            learner publishes the version again that it resumes from.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | PrivateDir,
        *,
        keep_versions: int = 3,
        max_policy_bytes: int = 2 << 30,
        min_free_bytes: int = 128 << 20,
        is_durable: bool = False,
    ) -> None:
        if keep_versions < 2:
            raise ConfigError(f"{_KEEP_KEY} must be >= 2, found {keep_versions}", path=_KEEP_KEY)
        self._keep_versions = keep_versions
        self._max_bytes = max_policy_bytes
        self._min_free_bytes = min_free_bytes
        self._is_durable = is_durable
        self._publishing = threading.Lock()
        self._lock = threading.Lock()
        self._returned = Returned()
        self._damaged: set[tuple[str, str | None, int]] = set()
        self._crowded: set[str] = set()
        """Policies whose old versions could not be removed the last time."""
        with path if isinstance(path, PrivateDir) else PrivateDir(path) as root:
            self._policies = root.sub(POLICY_FOLDER)

    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        # The newest version can be published again if `newest` of this store found it damaged.
        check_policy(policy_id, state, version)
        with self._publishing, self._policies.sub(policy_id) as folder:
            newest, life = _published(folder)
            if newest == version and (policy_id, life, version) in self._damaged:
                life = secrets.token_hex(8)  # with the old life, readers would skip it as damaged
            elif newest >= version:
                return  # a learner that resumed from a checkpoint has to catch up first
            buffers, info = encode_policy(policy_id, state, version, self._max_bytes)
            check_free(folder, info.size_bytes, self._min_free_bytes)
            latest = _Latest(version, info.size_bytes, info.digest, life)
            pointer = encode_json(_POINTER_KIND, msgspec.structs.asdict(latest))
            folder.write_atomic(_file_of(version), buffers, durable=self._is_durable)
            folder.write_atomic(POINTER, [pointer], durable=self._is_durable)
            self._remove_old(policy_id, folder, version)

    def newest(
        self, policy_id: str, newer_than: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        check_id(policy_id, "policy_id")
        for _ in range(_MOVED_ON_TRIES):
            try:
                with self._policies.sub(policy_id, create=False) as folder:
                    return self._read_newest(policy_id, folder, newer_than)
            except DataMissingError:
                return None
            except _MovedOnError:
                continue
        raise DataCorruptError(f"policy {policy_id!r} never holds still", where=policy_id)

    def discard(self, policy_id: str) -> None:
        check_id(policy_id, "policy_id")
        try:
            with self._policies.sub(policy_id, create=False) as folder:
                folder.unlink(POINTER)  # first, so that no reader opens files being removed
            self._policies.remove_tree(policy_id)
        except DataMissingError:
            return
        finally:
            self._returned.forget(policy_id)
            with self._lock:
                self._damaged -= {key for key in self._damaged if key[0] == policy_id}

    def close(self) -> None:
        """Close the file descriptors."""
        self._policies.close()

    @property
    def corrupt_count(self) -> int:
        """Number of damaged versions found."""
        return len(self._damaged)

    def _read_newest(
        self, policy_id: str, folder: PrivateDir, newer_than: int | None
    ) -> tuple[int, dict[str, Any]] | None:
        floor = -1 if newer_than is None else newer_than + 1
        # Read before the pointer: another thread may return a newer version after that.
        seen = self._returned.newest(policy_id)
        latest: _Latest | None = None
        try:
            latest = _read_pointer(folder)
        except DataCorruptError as error:
            _logger.warning("the versions of policy %s are looked through: %s", policy_id, error)
        if latest is not None and latest.version < floor:
            return None
        seen_life, seen_version = seen or (None, -1)
        life = seen_life if latest is None else latest.life
        if seen_life in (None, life):
            floor = max(floor, seen_version)
        for version in _candidates(folder, latest, floor):
            state = self._load(folder, (policy_id, life, version), latest)
            if state is None:
                continue
            if not self._returned.note(policy_id, seen, life, version):
                raise _MovedOnError
            return version, state
        if newer_than is None and (latest is None or latest.version >= floor):
            raise DataCorruptError(
                f"policy {policy_id!r}: no version in {folder.path} is whole", where=policy_id
            )
        return None

    def _load(
        self, folder: PrivateDir, key: tuple[str, str | None, int], latest: _Latest | None
    ) -> dict[str, Any] | None:
        """Return the tensors of a version (policy, life, version), None if it is damaged."""
        if key in self._damaged:
            return None
        policy_id, _, version = key
        is_announced = latest is not None and latest.version == version
        try:
            content = folder.read(_file_of(version), self._max_bytes)
            digest = latest.digest if latest is not None and is_announced else None
            return decode_policy(policy_id, version, content, self._max_bytes, digest)
        except DataMissingError:
            if not is_announced or _read_pointer(folder) != latest:
                raise _MovedOnError from None  # removed as an old version in between
            _logger.warning("policy %s: version %d is announced, not there", policy_id, version)
            return None
        except DataCorruptError as error:
            _logger.warning("policy %s: version %d is damaged: %s", policy_id, version, error)
            with self._lock:
                self._damaged.add(key)
            return None

    def _remove_old(self, policy_id: str, folder: PrivateDir, version: int) -> None:
        old = [found for found in _versions(folder) if found <= version][self._keep_versions :]
        try:
            for found in old:
                folder.unlink(_file_of(found))
            folder.sweep()  # nobody else writes here
        except (RunFolderError, StorageFullError) as error:
            # The version is published; the next publication tries to remove them again.
            if policy_id not in self._crowded:  # a learner publishes many times per second
                _logger.warning("cannot remove old versions of policy %s: %s", policy_id, error)
            self._crowded.add(policy_id)
        else:
            self._crowded.discard(policy_id)


class _MovedOnError(Exception):
    """The versions changed while they were read; read again."""


def check_policy(policy_id: str, state: Mapping[str, Any], version: int) -> None:
    """Check the arguments of ``publish``.

    Raises:
        ProtocolError: the id is not valid, or the version not in [0, 10**12).
        SchemaMismatchError: the state is not a flat mapping of tensors or arrays.
    """
    check_id(policy_id, "policy_id")
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version < 10**12:
        raise ProtocolError(f"policy version {version!r:.40}", where="version")
    expected = "tensors and arrays by name"
    odd = [n for n, v in state.items() if not (isinstance(v, np.ndarray) or hasattr(v, "detach"))]
    if odd or not state:
        key, found = (odd[0], type(state[odd[0]]).__name__) if odd else ("", "nothing")
        raise SchemaMismatchError(
            f"a policy is published as {expected}; {key!r:.80} is {found}",
            key=key,
            expected=expected,
            found=found,
        )


def encode_policy(
    policy_id: str,
    state: Mapping[str, Any],
    version: int,
    max_bytes: int,
    algorithm: str = "xxh3-128",
) -> tuple[list[Buffer], FrameInfo]:
    """Return the frame of a version; raises ConfigError if it is larger than ``max_bytes``."""
    value = {"policy_id": policy_id, "version": version, "state": dict(state)}
    buffers, info = encode_frame(_KIND, value, algorithm=algorithm)
    if info.size_bytes > max_bytes:
        raise ConfigError(
            f"a policy of {info.size_bytes} bytes; at most {max_bytes} are read",
            path="system.transport.max_policy_bytes",
        )
    return buffers, info


def decode_policy(
    policy_id: str, version: int, content: Buffer, max_bytes: int, digest: str | None = None
) -> dict[str, Any]:
    """Return the tensors of a version, as views of ``content``.

    Raises:
        DataCorruptError: it is damaged, or of another policy or version.
    """
    found = decode_frame(_KIND, content, max_bytes, expected_digest=digest)
    if (found["policy_id"], found["version"]) != (policy_id, version):
        raise DataCorruptError("it holds another policy or version", where="version")
    return dict(found["state"])


def _published(folder: PrivateDir) -> tuple[int, str]:
    """Return the newest version, -1 if there is none, and the ``life`` of the next version."""
    try:
        latest = _read_pointer(folder)
    except DataMissingError:
        return -1, secrets.token_hex(8)
    except DataCorruptError:
        return max(_versions(folder), default=-1), secrets.token_hex(8)
    return latest.version, latest.life


def _read_pointer(folder: PrivateDir) -> _Latest:
    """Read the pointer.

    Raises:
        DataMissingError: there is no pointer; nothing was published.
        DataCorruptError: it is damaged.
    """
    content = folder.read(POINTER, _POINTER_BYTES)
    try:
        return _decode_pointer(bytes(content))
    except (DataCorruptError, msgspec.ValidationError) as error:
        raise DataCorruptError(f"{folder.path / POINTER}: {error}", where=POINTER) from error


@functools.lru_cache(maxsize=64)
def _decode_pointer(content: bytes) -> _Latest:
    # Cached, as readers read the pointer far more often than a version is published.
    return msgspec.convert(decode_json(_POINTER_KIND, content, _POINTER_BYTES), _Latest)


def _candidates(folder: PrivateDir, latest: _Latest | None, floor: int) -> Iterator[int]:
    """Yield the versions to try, newest first; the folder is listed only after the first one."""
    if latest is not None and latest.version >= floor:
        yield latest.version
    for version in _versions(folder):
        # A version newer than the pointer is not announced: its publisher died, or has not
        # replaced the pointer yet.
        if version >= floor and (latest is None or version < latest.version):
            yield version


def _versions(folder: PrivateDir) -> list[int]:
    """Return the versions that have a file, newest first."""
    found = (_VERSION_FILE.fullmatch(name) for name in folder.names())
    return sorted((int(match[1]) for match in found if match), reverse=True)


def _file_of(version: int) -> str:
    return f"{version:012d}.ding"
