"""Policies in a shared folder: immutable versions and a pointer that is swapped.

``policy/<policy_id>/<version>.safetensors`` with ``LATEST.json`` beside them, written last.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from dingsdk.data import PrivateDir, check_id, decode_tensors, encode_tensors
from dingsdk.errors import (
    ConfigError,
    DataCorruptError,
    DataMissingError,
    ProtocolError,
    StorageFullError,
)
from dingsdk.worker.comm import PolicyStore
from dingsdk_flask_fs.latest import LATEST, Latest, LatestReader, file_of, write_latest
from dingsdk_flask_fs.orphans import OrphanWatch

_VERSION_FILE = re.compile(r"([0-9]{12})\.safetensors")
_TEMPORARY_GRACE_S = 60.0
_MOVED_ON_TRIES = 1000
_logger = logging.getLogger(__name__)


class FilePolicyStore(PolicyStore):
    """Policies as files; one process publishes a policy, any number read it.

    Each store object counts as one reader: what it returns of a policy never gets older. Safe
    for use from many threads.

    Args:
        path: Folder that all workers share; see ``PrivateDir`` for what it must be.
        keep_versions: How many versions stay: a reader that was told of one has as many
            publications of time to open it, and a damaged one has others to fall back to.
        max_policy_bytes: Largest version to write or read.
        min_free_bytes: What to leave free on the disk.
        is_durable: Whether a published version survives a power cut. Not needed to resume: a
            learner publishes again what it resumes from.
        clock: Seconds, monotonic.

    Attributes:
        corrupt_count: Damaged versions and pointers met.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep_versions: int = 3,
        max_policy_bytes: int = 2 << 30,
        min_free_bytes: int = 128 << 20,
        is_durable: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if keep_versions < 2:
            path_of_key = "system.transport.keep_policy_versions"
            raise ConfigError(f"{path_of_key} must be >= 2, found {keep_versions}", path=path_of_key)
        self._keep_versions = keep_versions
        self._max_bytes = max_policy_bytes
        self._min_free_bytes = min_free_bytes
        self._is_durable = is_durable
        self._watch = OrphanWatch(clock)
        self._pointers = LatestReader(clock)
        self._publishing = threading.Lock()
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[tuple[int, int], int]] = {}
        self.corrupt_count = 0
        with PrivateDir(path) as root:
            self._policies = root.sub("policy")

    # Contract ---------------------------------------------------------------------------------
    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        """Make a version the newest one, if it is: an older one changes nothing.

        Raises:
            ProtocolError: the id is none, or the version not in [0, 10**12).
            SchemaMismatchError: the state is no flat mapping of tensors or arrays.
            StorageFullError: no room now; the newest version is the one it was.
            ConfigError: it is larger than any reader takes.
        """
        check_id(policy_id, "policy_id")
        if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version < 10**12:
            raise ProtocolError(f"policy version {version!r:.40}", where="version")
        with self._publishing, self._policies.sub(policy_id) as folder:
            if self._published(folder) >= version:
                return  # a learner that resumed from a checkpoint has to catch up first
            buffers, info = encode_tensors(
                state, {"policy_id": policy_id, "version": str(version)}
            )
            self._check_size(folder, info.size_bytes)
            folder.write_atomic(file_of(version), list(buffers), durable=self._is_durable)
            latest = Latest(version, info.size_bytes, info.digest)
            write_latest(folder, latest, durable=self._is_durable)
            self._remove_old(policy_id, folder, version)

    def newest(
        self, policy_id: str, newer_than: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        """Return (version, tensors of its own), or None when there is none newer.

        While nothing is published, a call costs one look at the pointer's times. Where the
        newest version is damaged, the one before it is returned and counted.

        Raises:
            DataCorruptError: nothing that was asked for is whole, and nothing was ever read.
        """
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
                folder.unlink(LATEST)  # first, so that no reader is led to what goes next
                for name in folder.names():
                    folder.unlink(name)
        except DataMissingError:
            return
        self._policies.remove_sub(policy_id)
        self._pointers.forget(policy_id)
        with self._lock:
            self._seen.pop(policy_id, None)

    def close(self) -> None:
        """Give the descriptors back."""
        self._policies.close()

    # Reading ----------------------------------------------------------------------------------
    def _read_newest(
        self, policy_id: str, folder: PrivateDir, newer_than: int | None
    ) -> tuple[int, dict[str, Any]] | None:
        floor = -1 if newer_than is None else newer_than + 1
        try:
            latest = self._pointers.read(policy_id, folder, floor)
        except DataCorruptError as error:
            self._count_corrupt(error)
            latest = None
        else:
            if latest is None or latest.version < floor:
                return None
        with self._lock:
            identity, seen = self._seen.get(policy_id, (folder.identity, -1))
        if identity == folder.identity:  # else it was discarded, and is another one by now
            floor = max(floor, seen)
        failure: DataCorruptError | None = None
        for version in self._candidates(folder, latest, floor):
            try:
                state = self._load(policy_id, folder, version, latest)
            except DataCorruptError as error:
                self._count_corrupt(error)
                failure = error
                continue
            with self._lock:
                identity, seen = self._seen.get(policy_id, (folder.identity, -1))
                if identity == folder.identity and seen > version:
                    raise _MovedOnError
                self._seen[policy_id] = (folder.identity, version)
            if failure is not None:
                self._pointers.fell_back(policy_id, version)
            return version, state
        if failure is not None and seen < 0 and newer_than is None:
            raise failure
        return None

    def _candidates(self, folder: PrivateDir, latest: Latest | None, floor: int) -> list[int]:
        """Return versions to try, newest first; the directory is read only if it must be."""
        if latest is not None and latest.version >= floor:
            found = [latest.version]
        else:
            found = []
        # Lazy: hardly ever does anybody look past the first.
        return _Candidates(found, lambda: self._older(folder, latest, floor))

    def _older(self, folder: PrivateDir, latest: Latest | None, floor: int) -> list[int]:
        versions = _versions(folder)
        if latest is not None:
            # A later one was never announced: its publisher died, or is about to.
            versions = [version for version in versions if version < latest.version]
        return [version for version in versions if version >= floor]
