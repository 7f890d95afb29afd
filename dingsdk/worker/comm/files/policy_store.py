"""Policies in a shared folder: immutable version files and a pointer that is replaced.

The files are ``policy/<policy_id>/<version>-<life>.ding`` and the pointer ``LATEST.json``, written
last. A folder that another host has changed may be listed late; the pointer is always read anew.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec

from dingsdk.data import decode_json, encode_json
from dingsdk.errors import DataCorruptError, DataMissingError, RunFolderError, StorageFullError
from dingsdk.runtime import Buffer, PrivateDir, check_id
from dingsdk.runtime.connections import RareLog
from dingsdk.worker.comm.files.data_store import check_free
from dingsdk.worker.comm.files.policy_versions import (
    POLICY_FOLDER,
    Version,
    VersionedPolicyStore,
)

POINTER = "LATEST.json"
_POINTER_BYTES = 4096
"""Largest size of the pointer file."""
_POINTER_KIND = "newest-policy"
_VERSION_FILE = re.compile(r"([0-9]{12})-([0-9a-f]{16})\.ding")
_logger = logging.getLogger(__name__)


class _Latest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the pointer: the newest version."""

    version: Annotated[int, msgspec.Meta(ge=0, lt=10**12)]
    life: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]


class FilePolicyStore(VersionedPolicyStore[PrivateDir]):
    """Policies as files, see ``VersionedPolicyStore``.

    Args:
        path: Folder that all workers share; ``PrivateDir`` lists its requirements. An open
            ``PrivateDir`` is closed.
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
        super().__init__(keep_versions, max_policy_bytes)
        self._min_free_bytes = min_free_bytes
        self._is_durable = is_durable
        self._crowded = RareLog(_logger)  # a learner publishes many times per second
        with path if isinstance(path, PrivateDir) else PrivateDir(path) as root:
            self._policies = root.sub(POLICY_FOLDER)

    def opened(self, policy_id: str, *, create: bool) -> PrivateDir:
        return self._policies.sub(policy_id, create)

    def versions(self, place: PrivateDir, floor: int = 0) -> Iterator[Version]:
        try:
            latest = _read_pointer(place)
        except DataMissingError:
            return  # nothing was published
        if latest is not None:
            if latest.number < floor:
                return
            yield latest
        names = (_VERSION_FILE.fullmatch(name) for name in place.names())
        there = (Version(int(match[1]), match[2]) for match in names if match)
        for version in sorted(there, reverse=True):
            # A version newer than the pointer is not announced: its publisher died, or has not
            # replaced the pointer yet.
            if latest is None or version.number < latest.number:
                yield version

    def read(self, place: PrivateDir, version: Version) -> Buffer | None:
        with suppress(DataMissingError):
            return place.read(_file_of(version), self._max_bytes)
        return None

    def add(
        self, place: PrivateDir, version: Version, buffers: Sequence[Buffer], size_bytes: int
    ) -> None:
        pointer = encode_json(_POINTER_KIND, {"version": version.number, "life": version.life})
        check_free(place, size_bytes, self._min_free_bytes)
        place.write_atomic(_file_of(version), buffers, durable=self._is_durable)
        place.write_atomic(POINTER, [pointer], durable=self._is_durable)

    def remove(self, place: PrivateDir, versions: Iterable[Version]) -> None:
        try:
            for each in versions:
                place.unlink(_file_of(each))
            place.sweep()  # nobody else writes here
        except (RunFolderError, StorageFullError) as error:
            # The version is published; the next publication tries to remove them again.
            text = "cannot remove old versions of policy %s: %s"
            self._crowded.warning(text, place.path.name, error)

    def discard(self, policy_id: str) -> None:
        check_id(policy_id, "policy_id")
        with suppress(DataMissingError):
            with self._policies.sub(policy_id, create=False) as folder:
                folder.unlink(POINTER)  # first, so that no reader opens files being removed
            self._policies.remove_tree(policy_id)
        self._returned.pop(policy_id, None)

    def close(self) -> None:
        """Close the file descriptors."""
        self._policies.close()


def _read_pointer(folder: PrivateDir) -> Version | None:
    """Return the version that the pointer names, None if the pointer is damaged.

    Raises:
        DataMissingError: there is no pointer; nothing was published.
    """
    try:
        latest = _decode_pointer(bytes(folder.read(POINTER, _POINTER_BYTES)))
    except (DataCorruptError, msgspec.ValidationError) as error:
        _logger.warning("%s is damaged, the folder is listed: %s", folder.path / POINTER, error)
        return None
    return Version(latest.version, latest.life)


@functools.lru_cache(maxsize=64)
def _decode_pointer(content: bytes) -> _Latest:
    # Cached, as readers read the pointer far more often than a version is published.
    return msgspec.convert(decode_json(_POINTER_KIND, content, _POINTER_BYTES), _Latest)


def _file_of(version: Version) -> str:
    return f"{version.number:012d}-{version.life}.ding"
