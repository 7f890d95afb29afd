"""Policies in shared memory: publishing a version is one copy into memory that is reused."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from dingsdk.runtime import Buffer, check_id
from dingsdk.worker.comm.files import Version, VersionedPolicyStore
from dingsdk_shared_memory.segments import Segments

_REST = re.compile(r"([0-9a-f]{16})-([0-9]{12})")


class SharedPolicyStore(VersionedPolicyStore[str]):
    """Policies of one host, see ``VersionedPolicyStore``.

    A version is a payload ``<hash of the policy's id>-<life>-<version>``.

    Args:
        segments: Memory of the policies; closed with the store.
        keep_versions: As in ``VersionedPolicyStore``, like the arguments after it.
    """

    def __init__(
        self, segments: Segments, *, keep_versions: int, max_policy_bytes: int, algorithm: str
    ) -> None:
        super().__init__(keep_versions, max_policy_bytes, algorithm)
        self.segments = segments
        # Of versions after which no version of an earlier publisher is left.
        self._until_clear = keep_versions + 1

    def discard(self, policy_id: str) -> None:
        with self.opened(check_id(policy_id, "policy_id")) as place:
            self.remove(place, reversed(self.versions(place)))  # so that no old one is newest
        self._returned.pop(policy_id, None)

    def opened(self, policy_id: str, *, create: bool = True) -> AbstractContextManager[str]:
        """Return the beginning of the names of a policy's versions."""
        return nullcontext(hashlib.sha256(policy_id.encode()).hexdigest()[:16] + "-")

    def versions(self, place: str, floor: int = 0) -> list[Version]:
        found = (_REST.fullmatch(name, len(place)) for name in self.segments.ids(place))
        return sorted((Version(int(match[2]), match[1]) for match in found if match), reverse=True)

    def read(self, place: str, version: Version) -> Buffer | None:
        frame = self.segments.read(_name_of(place, version))
        return None if frame is None else np.frombuffer(frame, np.uint8).copy().data

    def add(self, place: str, version: Version, buffers: Sequence[Buffer], size_bytes: int) -> None:
        self.segments.add(_name_of(place, version), buffers, size_bytes)

    def remove(self, place: str, versions: Iterable[Version]) -> None:
        for each in versions:
            self.segments.delete(_name_of(place, each))
        if self._until_clear:
            self._until_clear -= 1
            self.segments.clear_dead()  # earlier publishers

    def close(self) -> None:
        """Release the memory."""
        self.segments.close()


def _name_of(place: str, version: Version) -> str:
    return f"{place}{version.life}-{version.number:012d}"
