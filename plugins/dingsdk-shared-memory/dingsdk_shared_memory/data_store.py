"""Payloads in shared memory: encoded, checked, and waited for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from dingsdk.data import Buffer, FrameInfo, SampleBatch, check_id, decode_batch, encode_batch
from dingsdk.errors import (
    ClosedError,
    ConfigError,
    ConflictError,
    DataCorruptError,
    DataMissingError,
)
from dingsdk.worker.comm import StepDataStore
from dingsdk_shared_memory.segments import INLINE_BYTES, Segments

_WAIT_S = 0.002
"""Pause between two looks for a payload."""
_log = logging.getLogger(__name__)


def encode_payload(
    batch: SampleBatch, algorithm: str, max_bytes: int
) -> tuple[list[Buffer], FrameInfo]:
    """Return the parts of a payload's frame as it is stored, and the facts that announce it.

    Raises:
        ConfigError: the payload is larger than readers accept.
        SchemaMismatchError: a container cannot hold the batch.
    """
    if algorithm == "head" and batch.nbytes < INLINE_BYTES:
        # Copied payloads get a digest: it costs little, and shows if one was read too early.
        algorithm = "xxh3-128"
    buffers, info = encode_batch(batch, algorithm=algorithm)
    if info.size_bytes > max_bytes:
        raise ConfigError(
            f"a payload of {info.size_bytes} bytes; at most {max_bytes} are read. "
            "Lower policy.collect.n_sample",
            path="policy.collect.n_sample",
        )
    return buffers, info


class SharedDataStore(StepDataStore):
    """Payloads of one host. Safe for use from many threads.

    Args:
        segments: Memory of the payloads; closed with the store.
        max_payload_bytes: Largest payload to write or read.
        algorithm: Algorithm of the digests; ``head`` is only used for payloads that are not copied.

    """

    def __init__(
        self,
        segments: Segments,
        *,
        max_payload_bytes: int = 1 << 62,
        algorithm: str = "head",
    ) -> None:
        self._max_bytes = max_payload_bytes
        self._algorithm = algorithm
        self._closed = threading.Event()
        self.segments = segments
        self._damaged_frames = 0

    def put(self, data_id: str, batch: SampleBatch) -> FrameInfo:
        """Store a payload; storing the same again changes nothing.

        Raises:
            ProtocolError: the id is not valid.
            ConflictError: another payload has this id; it stays.
            StorageFullError: no room now; nothing was stored, and the call may be repeated.
            ConfigError: the payload is larger than readers accept.
            SchemaMismatchError: a container cannot hold the batch.
        """
        check_id(data_id, "data_id")
        buffers, info = encode_payload(batch, self._algorithm, self._max_bytes)
        found = self.segments.read(data_id, is_new=True)
        if found is None:
            self.segments.add(data_id, buffers, info.size_bytes)
        elif bytes(found) != b"".join(buffers):
            raise ConflictError(
                f"payload {data_id!r} exists with another content, which stays; ids are used once",
                data_id=data_id,
            )
        return info

    def get(self, data_id: str, timeout_s: float = 2.0) -> SampleBatch:
        return self._get(data_id, None, timeout_s)

    def get_verified(self, data_id: str, digest: str, timeout_s: float = 2.0) -> SampleBatch:
        return self._get(data_id, digest, timeout_s)

    def delete(self, data_ids: Iterable[str]) -> None:
        for data_id in data_ids:
            self.segments.delete(data_id)

    def has(self, data_id: str, timeout_s: float = 2.0) -> bool:
        return self.segments.has(data_id) or self._wait(
            lambda: self.segments.has(data_id), timeout_s
        )

    def sweep_orphans(self, is_live: Callable[[str], bool], grace_s: float) -> int:
        return self.segments.sweep(is_live, grace_s)

    @property
    def corrupt_count(self) -> int:
        """Number of damaged payloads found, in their frames or in the table of payloads."""
        return self._damaged_frames + self.segments.damaged_count

    def __len__(self) -> int:
        return len(self.segments.ids())

    def close(self) -> None:
        """Release the memory; calls that wait end with ClosedError."""
        self._closed.set()
        self.segments.close()

    def _get(self, data_id: str, digest: str | None, timeout_s: float) -> SampleBatch:
        try:
            frame = self.segments.read(data_id)
            if frame is None and self._wait(
                lambda: self.segments.has(data_id) or data_id in self.segments.damaged, timeout_s
            ):
                frame = self.segments.read(data_id)
            if frame is not None:
                return decode_batch(frame, self._max_bytes, expected_digest=digest)
        except DataCorruptError as error:
            self._damaged_frames += 1
            self.segments.delete(data_id)
            text = f"payload {data_id!r}: {error}"  # the error itself would keep the slot in use
            _log.warning("a damaged payload is deleted: %s", text)
            raise DataCorruptError(text, where=error.where, data_id=data_id) from error
        if data_id in self.segments.damaged:
            self.segments.damaged.discard(data_id)
            text = f"payload {data_id!r}: its entry in the table of payloads was damaged"
            raise DataCorruptError(text, where="table", data_id=data_id)
        raise DataMissingError(
            f"no payload {data_id!r} within {timeout_s} s: it was never put, or deleted since",
            data_id=data_id,
        )

    def _wait(self, is_there: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            if self._closed.wait(min(_WAIT_S, left_s)):
                raise ClosedError("the data store was closed", what="data store")
            if is_there():
                return True
        return False
