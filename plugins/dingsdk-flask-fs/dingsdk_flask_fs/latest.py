"""The pointer to a policy's newest version, and reading it only when it may have changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from dingsdk.data import PrivateDir, decode_json, encode_json
from dingsdk.errors import DataCorruptError

LATEST = "LATEST.json"
_MAX_BYTES = 4096
_KIND = "newest-policy"
_SETTLED_S = 2.0
"""Coarsest time stamp that a file system gives, with a margin. See LatestReader."""


class Latest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the pointer says: version, and size and digest of its file.

    ``life`` is drawn when a policy is first published, and again after it was discarded. The
    folder does not tell: a new one can have the name and the inode of the one before.
    """

    version: Annotated[int, msgspec.Meta(ge=0, lt=10**12)]
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    digest: str
    life: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


def file_of(version: int) -> str:
    """Return the name of a version's file."""
    return f"{version:012d}.ding"


def write_latest(folder: PrivateDir, latest: Latest, *, durable: bool) -> None:
    """Swap the pointer. Raises what ``PrivateDir.write_atomic`` does."""
    fields = msgspec.structs.asdict(latest)
    folder.write_atomic(LATEST, [encode_json(_KIND, fields)], durable=durable)


def read_latest(folder: PrivateDir) -> Latest:
    """Read the pointer.

    Raises:
        DataMissingError: there is none; nothing was published.
        DataCorruptError: it is damaged.
    """
    content = folder.read(LATEST, _MAX_BYTES)
    try:
        return msgspec.convert(decode_json(_KIND, content, _MAX_BYTES), Latest)
    except (DataCorruptError, msgspec.ValidationError) as error:
        raise DataCorruptError(f"{folder.path / LATEST}: {error}", where=LATEST) from error


@dataclass(frozen=True, slots=True)
class _Known:
    signature: tuple[int, ...]
    since: float
    content: Latest | DataCorruptError
    is_settled: bool


class LatestReader:
    """Reads pointers again only where their time stamps, inodes or sizes changed.

    A pointer that is swapped twice within one tick of the file system's clock can come back to
    the inode it had, and look unchanged. So the stamps are trusted only for a content that was
    read when they had been seen for two seconds: whatever else was written in their tick was
    there by then.

    Args:
        clock: Seconds, monotonic.

    Attributes:
        corrupt_count: Damaged pointers met.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self.corrupt_count = 0

    def read(self, policy_id: str, folder: PrivateDir) -> Latest:
        """Return the pointer of a policy; raises as :func:`read_latest`."""
        now = self._clock()
        found = folder.stat(LATEST)
        signature = _signature(found, folder)
        known = self._known.get(policy_id)
        if known is None or known.signature != signature or not known.is_settled:
            is_new = known is None or known.signature != signature
            since = now if known is None or is_new else known.since
            content: Latest | DataCorruptError
            try:
                content = read_latest(folder)
            except DataCorruptError as error:
                content = error
                self.corrupt_count += is_new
            known = _Known(signature, since, content, now - since >= _SETTLED_S)
            self._known[policy_id] = known
        if isinstance(known.content, DataCorruptError):
            raise DataCorruptError(known.content.message, where=LATEST)
        return known.content

    def forget(self, policy_id: str) -> None:
        """Drop what is known of a policy."""
        self._known.pop(policy_id, None)


def _signature(found: os.stat_result | None, folder: PrivateDir) -> tuple[int, ...]:
    if found is None:
        return folder.identity
    stamps = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
    return (*folder.identity, *stamps)
