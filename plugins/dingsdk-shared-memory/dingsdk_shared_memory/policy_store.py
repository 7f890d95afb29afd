"""Policies in shared memory: publishing a version is one copy into memory that is reused."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dingsdk.errors import DataCorruptError
from dingsdk.runtime import check_id
from dingsdk.worker.comm import PolicyStore
from dingsdk.worker.comm.files import Returned, check_policy, decode_policy, encode_policy
from dingsdk_shared_memory.segments import Segments

_MOVED_ON_TRIES = 1000
"""How often a reader tries again when policies are replaced while it opens them."""
_REST = re.compile(r"([0-9a-f]{16})-([0-9]{12})")
_log = logging.getLogger(__name__)


class _Version(NamedTuple):
    """A version; ``life`` is a random id, drawn when a policy is first published.

    It is drawn again when the policy is published after it was discarded.
    """

    number: int
    life: str
    name: str


class SharedPolicyStore(PolicyStore):
    """One process publishes a policy, others read it. Safe for use from many threads.

    A version is a payload ``<hash of the policy's id>-<life>-<version>``. Each store object counts
    as one reader: the versions that it returns of a policy never get older.

    Args:
        segments: Memory of the policies; closed with the store.
        keep_versions: Number of versions to keep, at least 2: if one is damaged, another is used.
        max_policy_bytes: Largest version to write or read.
        algorithm: Algorithm of the digests, as for payloads.
    """

    def __init__(
        self,
        segments: Segments,
        *,
        keep_versions: int,
        max_policy_bytes: int,
        algorithm: str,
    ) -> None:
        self.segments = segments
        self._keep_versions = keep_versions
        self._max_bytes = max_policy_bytes
        self._algorithm = algorithm
        self._publishing = threading.Lock()
        self._returned = Returned()
        self._damaged: set[str] = set()
        self._last_miss: tuple[object, ...] = ()
        """Stamp of the memory and arguments of the last search that found nothing new: collectors
        look after every env step, and a search takes four times as long as the stamp."""
        # Of versions after which no version of an earlier publisher is left.
        self._until_clear = keep_versions + 1

    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        check_policy(policy_id, state, version)
        with self._publishing:
            there = self._versions(policy_id)
            if there and there[0].number >= version:
                return  # a learner that resumed from a checkpoint has to catch up first
            buffers, info = encode_policy(
                policy_id, state, version, self._max_bytes, self._algorithm
            )
            life = there[0].life if there else secrets.token_hex(8)
            name = f"{_prefix_of(policy_id)}{life}-{version:012d}"
            self.segments.add(name, buffers, info.size_bytes)
            for old in there[self._keep_versions - 1 :]:
                self.segments.delete(old.name)
            if self._until_clear:
                self._until_clear -= 1
                self.segments.clear_dead()  # earlier publishers

    def newest(
        self, policy_id: str, newer_than: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        check_id(policy_id, "policy_id")
        stamp = self.segments.stamp()
        miss = (stamp, policy_id, newer_than)
        if stamp is not None and miss == self._last_miss:
            return None
        for _ in range(_MOVED_ON_TRIES):
            seen = self._returned.newest(policy_id)
            floor = -1 if newer_than is None else newer_than + 1
            there = self._versions(policy_id)
            if seen and there and seen[0] == there[0].life:
                floor = max(floor, seen[1])
            there = [version for version in there if version.number >= floor]
            for version in there:
                if version.name in self._damaged:
                    continue
                try:
                    state = self._load(policy_id, version)
                except DataCorruptError as error:
                    number = version.number
                    _log.warning("policy %s: version %d is damaged: %s", policy_id, number, error)
                    self._damaged.add(version.name)
                    continue
                if state is not None and self._returned.note(
                    policy_id, seen, version.life, version.number
                ):
                    return version.number, state
                break  # it was removed as an old one, or another thread returned a newer one
            else:
                if newer_than is None and there:
                    raise DataCorruptError(
                        f"policy {policy_id!r}: no version is whole", where=policy_id
                    )
                self._last_miss = miss
                return None
        raise DataCorruptError(f"policy {policy_id!r} never holds still", where=policy_id)

    def latest(self, policy_id: str) -> tuple[str, int] | None:
        """Return life and number of the newest version, even if damaged; None if there is none.

        A policy that is published again after a discard has another life.
        """
        there = self._versions(check_id(policy_id, "policy_id"))
        return (there[0].life, there[0].number) if there else None

    def discard(self, policy_id: str) -> None:
        check_id(policy_id, "policy_id")
        for version in reversed(self._versions(policy_id)):  # so that an old one is never newest
            self.segments.delete(version.name)
        self._returned.forget(policy_id)

    def close(self) -> None:
        """Release the memory."""
        self.segments.close()

    @property
    def corrupt_count(self) -> int:
        """Number of damaged versions found."""
        return len(self._damaged) + self.segments.damaged_count

    def _versions(self, policy_id: str) -> list[_Version]:
        """Return the versions that are there, newest first."""
        prefix = _prefix_of(policy_id)
        found = []
        for name in self.segments.ids(prefix):
            if match := _REST.fullmatch(name, len(prefix)):
                found.append(_Version(int(match[2]), match[1], name))
        return sorted(found, reverse=True)

    def _load(self, policy_id: str, version: _Version) -> dict[str, Any] | None:
        """Return the tensors of a version, or None if it was removed."""
        frame = self.segments.read(version.name)
        if frame is None:
            return None
        content = np.frombuffer(frame, np.uint8).copy().data
        del frame  # the traceback of an error would keep it, and so keep the slot in use
        return decode_policy(policy_id, version.number, content, self._max_bytes)


def _prefix_of(policy_id: str) -> str:
    return hashlib.sha256(policy_id.encode()).hexdigest()[:16] + "-"
