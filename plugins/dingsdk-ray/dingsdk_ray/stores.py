"""Payloads and policies of a run, in its hub."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from dingsdk.data import (
    Buffer,
    FrameInfo,
    SampleBatch,
    check_id,
    decode_batch,
    decode_frame,
    encode_batch,
    encode_frame,
)
from dingsdk.errors import (
    ConflictError,
    DataCorruptError,
    DataMissingError,
    StorageFullError,
    WorkerLostError,
)
from dingsdk.worker.comm import PolicyStore, StepDataStore
from dingsdk_ray.cluster import HubGoneError, HubLink
from dingsdk_ray.hub import INLINE_BYTES

_LONGEST_WAIT_S = 5.0
_KIND = "policy"


class RayDataStore(StepDataStore):
    """Payloads in the object store; small ones in the hub's memory. Safe for use from many threads.

    Args:
        link: Returns the link to the hub.
        timeout_s: How long the hub may take to answer.
    """

    def __init__(self, link: Callable[[], HubLink], timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s

    def put(self, data_id: str, batch: SampleBatch) -> FrameInfo:
        """Store a payload; storing the same again changes nothing.

        Raises:
            ProtocolError: the id is none.
            ConflictError: another payload has this id; it stays.
            StorageFullError: Ray's object store is full.
            WorkerLostError: the hub does not answer.
            SchemaMismatchError: a container cannot hold the batch.
        """
        check_id(data_id, "data_id")
        buffers, info = encode_batch(batch)
        frame = _joined(buffers, info.size_bytes)
        if not _ask(self._link(), "put", data_id, info.digest, frame, timeout_s=self._timeout_s):
            raise ConflictError(
                f"payload {data_id!r} exists with another content, which stays; ids are used once",
                data_id=data_id,
            )
        return info

    def get(self, data_id: str, timeout_s: float = 2.0, digest: str | None = None) -> SampleBatch:
        check_id(data_id, "data_id")
        deadline = time.monotonic() + timeout_s
        try:
            found = self._wait("get", data_id, deadline)
            if found is not None:
                left_s = max(self._timeout_s, deadline - time.monotonic())
                return decode_batch(
                    memoryview(self._link().read(found[0], left_s)), expected_digest=digest
                )
            why = "it was never put, or deleted since"
        except HubGoneError as error:
            why = str(error)
        except DataCorruptError as error:
            raise DataCorruptError(
                f"payload {data_id!r}: {error}", where=error.where, data_id=data_id
            ) from error
        raise DataMissingError(
            f"no payload {data_id!r} within {timeout_s} s: {why}", data_id=data_id
        )

    def get_verified(self, data_id: str, digest: str, timeout_s: float = 2.0) -> SampleBatch:
        return self.get(data_id, timeout_s, digest)

    def has(self, data_id: str, timeout_s: float = 2.0) -> bool:
        check_id(data_id, "data_id")
        try:
            return bool(self._wait("has", data_id, time.monotonic() + timeout_s))
        except HubGoneError:
            return False

    def delete(self, data_ids: Iterable[str]) -> None:
        names = [check_id(data_id, "data_id") for data_id in data_ids]
        _ask(self._link(), "delete", names, timeout_s=self._timeout_s)

    def sweep_orphans(self, is_live: Callable[[str], bool], grace_s: float) -> int:
        ages = _ask(self._link(), "ages", timeout_s=self._timeout_s)
        ripe = [name for name, age_s in ages.items() if age_s >= grace_s and not is_live(name)]
        self.delete(ripe)
        return len(ripe)

    def __len__(self) -> int:
        return len(_ask(self._link(), "ages", timeout_s=self._timeout_s))

    def _wait(self, method: str, data_id: str, deadline: float) -> Any:
        """Ask the hub until the deadline, at least once."""
        while True:
            left_s = deadline - time.monotonic()
            wait_s = max(0.0, min(left_s, _LONGEST_WAIT_S))
            found = self._link().call(
                method, data_id, wait_s, timeout_s=wait_s + self._timeout_s, waits=wait_s > 0
            )
            if found or deadline <= time.monotonic():
                return found


class RayPolicyStore(PolicyStore):
    """Policies in the object store. Safe for use from many threads.

    Args:
        link: Returns the link to the hub.
        timeout_s: How long the hub may take to answer.
    """

    def __init__(self, link: Callable[[], HubLink], timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self._seen: dict[str, int] = {}

    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        """Make a version the newest one, if it is: an older one changes nothing.

        Raises:
            ProtocolError: the id is none.
            SchemaMismatchError: the state is no mapping of tensors or arrays.
            StorageFullError: Ray's object store is full; the newest version is the one it was.
            WorkerLostError: the hub does not answer.
        """
        check_id(policy_id, "policy_id")
        buffers, info = encode_frame(_KIND, dict(state))
        frame = _joined(buffers, info.size_bytes)
        _ask(self._link(), "publish", policy_id, version, frame, timeout_s=self._timeout_s)

    def newest(
        self, policy_id: str, newer_than: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        """Return (version, tensors of its own), or None when there is none newer.

        Raises:
            WorkerLostError: the hub does not answer.
        """
        check_id(policy_id, "policy_id")
        floor = -1 if newer_than is None else newer_than
        # What another thread returns meanwhile may be newer.
        oldest = self._seen.get(policy_id, -1)
        found = _ask(self._link(), "newest", policy_id, floor, timeout_s=self._timeout_s)
        if found is None or found[0] < oldest:
            return None
        version, frame = found
        try:
            content = self._link().read(frame, self._timeout_s)
        except HubGoneError:
            return None  # replaced or lost since; the learner publishes the next one
        state = decode_frame(_KIND, memoryview(content).toreadonly(), max_bytes=2 << 30)
        self._seen[policy_id] = max(version, oldest)
        return version, dict(state)

    def discard(self, policy_id: str) -> None:
        check_id(policy_id, "policy_id")
        _ask(self._link(), "discard", policy_id, timeout_s=self._timeout_s)
        self._seen.pop(policy_id, None)


def _ask(link: HubLink, method: str, *args: Any, timeout_s: float) -> Any:
    try:
        return link.call(method, *args, timeout_s=timeout_s)
    except HubGoneError as error:
        raise WorkerLostError(f"the hub of the run: {error}", worker_id="hub") from error
    except Exception as error:
        import ray

        full = (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError)
        if isinstance(error, full) or isinstance(getattr(error, "cause", None), full):
            raise StorageFullError(
                "Ray's object store is full, on this node or the hub's; start Ray with more "
                "(--object-store-memory), or lower system.transport.* payload sizes",
                path="ray",
                reason="object_store",
            ) from error
        raise


def _joined(buffers: list[Buffer], size_bytes: int) -> Any:
    """Return a frame as one object: bytes where it is small, else an array that Ray shares."""
    if size_bytes <= INLINE_BYTES:
        return b"".join(buffers)
    frame = np.empty(size_bytes, np.uint8)
    at = 0
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        frame[at : at + len(view)] = view
        at += len(view)
    return frame
