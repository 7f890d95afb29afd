"""Versions of policies: which of them a store keeps, and which one a reader gets."""

from __future__ import annotations

import logging
import secrets
import threading
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from dingsdk.data import decode_frame, encode_frame
from dingsdk.data.columns import NUMERIC_KINDS
from dingsdk.errors import (
    ConfigError,
    DataCorruptError,
    DataMissingError,
    ProtocolError,
    SchemaMismatchError,
)
from dingsdk.runtime import Buffer, check_id
from dingsdk.worker.comm.transport import PolicyStore

POLICY_FOLDER = "policy"
_KIND = "policy"
_MOVED_ON_TRIES = 1000
"""How often a reader tries again because versions were replaced while it read them."""
_KEEP_KEY = "system.transport.keep_policy_versions"
_logger = logging.getLogger(__name__)
_Place = TypeVar("_Place")


class Version(NamedTuple):
    """A version; ``life`` is a random id, chosen when a policy is first published.

    It is chosen again when the policy is published after ``discard``, and when a damaged version is
    published again.
    """

    number: int
    life: str


class VersionedPolicyStore(PolicyStore, Generic[_Place]):
    """One process publishes a policy, any number of processes read it; a subclass stores versions.

    Each store object counts as one reader: it never returns an older version of a policy than
    before. Safe to use from many threads.

    Args:
        keep_versions: Number of versions to keep. A reader can still open a version until this
            many newer ones are published, and older versions can replace a damaged one.
        max_policy_bytes: Largest version to write or read.
        algorithm: Algorithm of the digests.
    """

    def __init__(
        self, keep_versions: int, max_policy_bytes: int, algorithm: str = "xxh3-128"
    ) -> None:
        if keep_versions < 2:
            raise ConfigError(f"{_KEEP_KEY} must be >= 2, found {keep_versions}", path=_KEEP_KEY)
        self._keep_versions = keep_versions
        self._max_bytes = max_policy_bytes
        self._algorithm = algorithm
        self._publishing, self._reading = threading.Lock(), threading.Lock()
        self._returned: dict[str, Version] = {}
        """The newest version of each policy that was returned."""
        self._damaged: set[tuple[str, Version]] = set()

    @abstractmethod
    def opened(self, policy_id: str, *, create: bool) -> AbstractContextManager[_Place]:
        """Open the place of a policy's versions; raises DataMissingError if there is none."""

    @abstractmethod
    def versions(self, place: _Place, floor: int = 0) -> Iterable[Version]:
        """Return the published versions, newest first; maybe none if all are below ``floor``."""

    @abstractmethod
    def read(self, place: _Place, version: Version) -> Buffer | None:
        """Return the content of a version, None if it is not there; raises DataCorruptError."""

    @abstractmethod
    def add(
        self, place: _Place, version: Version, buffers: Sequence[Buffer], size_bytes: int
    ) -> None:
        """Publish a version, whose content has ``size_bytes``; raises StorageFullError."""

    @abstractmethod
    def remove(self, place: _Place, versions: Iterable[Version]) -> None:
        """Remove versions, in this order."""

    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        # The newest version can be published again if `newest` of this store found it damaged.
        _check(policy_id, state, version)
        with self._publishing, self.opened(policy_id, create=True) as place:
            there = list(self.versions(place))
            life = there[0].life if there else secrets.token_hex(8)
            if there and there[0].number >= version:
                if there[0].number > version or (policy_id, there[0]) not in self._damaged:
                    return  # a learner that resumed from a checkpoint has to catch up first
                life = secrets.token_hex(8)  # with the old life, readers would skip it as damaged
                self.remove(place, [there.pop(0)])
            value = {"policy_id": policy_id, "version": version, "state": dict(state)}
            buffers, info = encode_frame(_KIND, value, algorithm=self._algorithm)
            if info.size_bytes > self._max_bytes:
                raise ConfigError(
                    f"a policy of {info.size_bytes} bytes; at most {self._max_bytes} are read",
                    path="system.transport.max_policy_bytes",
                )
            self.add(place, Version(version, life), buffers, info.size_bytes)
            self.remove(place, there[self._keep_versions - 1 :])

    def newest(
        self, policy_id: str, newer_than: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        check_id(policy_id, "policy_id")
        gone: set[Version] = set()
        with self._reading, suppress(DataMissingError):
            for _ in range(_MOVED_ON_TRIES):
                with self.opened(policy_id, create=False) as place:
                    version = self._find(place, policy_id, newer_than, gone)
                    if version is None:
                        return None
                    state = self._load(place, policy_id, version)
                if state is not None:
                    self._returned[policy_id] = version
                    return version.number, state
                gone.add(version)
            raise DataCorruptError(f"policy {policy_id!r} never holds still", where=policy_id)
        return None

    @property
    def corrupt_count(self) -> int:
        """Number of damaged versions found."""
        return len(self._damaged)

    def _find(
        self,
        place: _Place,
        policy_id: str,
        newer_than: int | None,
        gone: Collection[Version],
    ) -> Version | None:
        """Return the newest version to try; raises DataCorruptError if all are damaged."""
        floor = 0 if newer_than is None else newer_than + 1
        seen = self._returned.get(policy_id)
        is_any = False
        for version in self.versions(place, floor):
            is_older = seen is not None and seen.life == version.life and seen > version
            if is_older or version.number < floor:
                continue
            if version not in gone and (policy_id, version) not in self._damaged:
                return version
            is_any = True
        if newer_than is None and is_any:
            raise DataCorruptError(f"policy {policy_id!r}: no version is whole", where=policy_id)
        return None

    def _load(self, place: _Place, policy_id: str, version: Version) -> dict[str, Any] | None:
        """Return the tensors of a version; None if it is damaged, or was removed meanwhile."""
        try:
            content = self.read(place, version)
            if content is None:
                return None
            found = decode_frame(_KIND, content, self._max_bytes)
            if (found["policy_id"], found["version"]) != (policy_id, version.number):
                raise DataCorruptError("it holds another policy or version", where="version")
            return dict(found["state"])
        except DataCorruptError as error:
            _logger.warning(
                "policy %s: version %d is damaged: %s", policy_id, version.number, error
            )
            self._damaged.add((policy_id, version))
            return None


def _check(policy_id: str, state: Mapping[str, Any], version: int) -> None:
    """Check the arguments of ``publish``.

    Raises:
        ProtocolError: the id is not valid, or the version not in [0, 10**12).
        SchemaMismatchError: the state is not a flat mapping of tensors or arrays.
    """
    check_id(policy_id, "policy_id")
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version < 10**12:
        raise ProtocolError(f"policy version {version!r:.40}", where="version")
    expected = "tensors and arrays by name"
    odd = [name for name, value in state.items() if not _is_numeric(value)]
    if odd or not state:
        key, found = (odd[0], type(state[odd[0]]).__name__) if odd else ("", "nothing")
        raise SchemaMismatchError(
            f"a policy is published as {expected}; {key!r:.80} is {found}",
            key=key,
            expected=expected,
            found=found,
        )


def _is_numeric(value: Any) -> bool:
    is_array = isinstance(value, np.ndarray)
    return value.dtype.kind in NUMERIC_KINDS if is_array else hasattr(value, "detach")
