"""Payloads in shared memory: small ones in segments of many, large ones in files of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dingsdk.data import (
    FrameInfo,
    PrivateDir,
    SampleBatch,
    check_id,
    decode_batch,
    encode_batch,
)
from dingsdk.errors import ConflictError, DataCorruptError, StorageFullError
from dingsdk.worker.comm import StepDataStore
from dingsdk.worker.comm.files import FileDataStore
from dingsdk_shared_memory.run_memory import SEGMENTS
from dingsdk_shared_memory.segments import Segments

SMALL_BYTES = 16 << 10
"""Payloads with less than this are copied; a larger one is a view of its file."""


class SharedDataStore(StepDataStore):
    """Payloads of one host. Safe for use from many threads.

    Args:
        memory: Folder of the run.
        files: Store of large payloads, and of all where there is no room for a segment.
        min_free_bytes: What to leave free.
    """

    def __init__(self, memory: PrivateDir, files: FileDataStore, min_free_bytes: int) -> None:
        self._memory = memory
        self._files = files
        self._min_free_bytes = min_free_bytes
        self._segments = Segments(memory.sub(SEGMENTS), self._check_free)

    def put(self, data_id: str, batch: SampleBatch) -> FrameInfo:
        """Store a payload; errors are those of ``FileDataStore.put``."""
        check_id(data_id, "data_id")
        if batch.nbytes >= SMALL_BYTES:
            return self._files.put(data_id, batch)
        # Always with a digest: it costs nothing at this size, and finds what was read too early.
        buffers, info = encode_batch(batch)
        if info.size_bytes >= 2 * SMALL_BYTES or self._files.has(data_id, 0.0):
            return self._files.put(data_id, batch)
        frame = b"".join(buffers)
        found = self._segments.read(data_id)
        if found is None:
            try:
                self._segments.add(data_id, frame)
            except StorageFullError:
                return self._files.put(data_id, batch)
        elif found != frame:
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
            if not self._segments.delete(check_id(data_id, "data_id")):
                self._files.delete([data_id])

    def has(self, data_id: str, timeout_s: float = 2.0) -> bool:
        check_id(data_id, "data_id")
        return self._segments.has(data_id) or self._files.has(data_id, timeout_s)

    def sweep_orphans(self, is_live: Callable[[str], bool], grace_s: float) -> int:
        found = self._segments.sweep(is_live, grace_s)
        return found + self._files.sweep_orphans(is_live, grace_s)

    def __len__(self) -> int:
        return len(self._segments.ids()) + len(self._files)

    def close(self) -> None:
        """Let go of the memory; calls that wait end with ClosedError."""
        self._segments.close()
        self._files.close()

    def _get(self, data_id: str, digest: str | None, timeout_s: float) -> SampleBatch:
        frame = self._segments.read(check_id(data_id, "data_id"))
        if frame is None:
            return self._files.get(data_id, timeout_s, digest)
        try:
            return decode_batch(frame, expected_digest=digest)
        except DataCorruptError as error:
            raise DataCorruptError(
                f"payload {data_id!r}: {error}", where=error.where, data_id=data_id
            ) from error

    def _check_free(self, size_bytes: int) -> None:
        free_bytes = self._memory.free_bytes()
        if free_bytes - size_bytes < self._min_free_bytes:
            raise StorageFullError(
                f"{self._memory.path}: {free_bytes} bytes free, {size_bytes} to take and "
                f"{self._min_free_bytes} to leave free; make room in shared memory",
                path=str(self._memory.path),
                reason="low_space",
            )
