"""Payloads in shared memory: encoded, checked, and waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dingsdk.data import FrameInfo, SampleBatch
from dingsdk.runtime import Buffer, check_id
from dingsdk.worker.comm.files import WaitingDataStore, conflict, encode_payload
from dingsdk_shared_memory.segments import INLINE_BYTES, Segments


def encode(batch: SampleBatch, algorithm: str, max_bytes: int) -> tuple[list[Buffer], FrameInfo]:
    """Return a payload in the form in which it is stored; as ``encode_payload``."""
    if algorithm == "head" and batch.nbytes < INLINE_BYTES:
        # Copied payloads get a digest: it costs little, and shows if one was read too early.
        algorithm = "xxh3-128"
    return encode_payload(batch, algorithm, max_bytes)


class SharedDataStore(WaitingDataStore):
    """Payloads of one host. Safe for use from many threads.

    Args:
        segments: Memory of the payloads; closed with the store.
        max_payload_bytes: Largest payload to write or read.
        algorithm: Algorithm of the digests; ``head`` is only used for payloads that are not copied.
    """

    pauses_s = (0.002, 0.002)

    def __init__(
        self,
        segments: Segments,
        *,
        max_payload_bytes: int = 1 << 62,
        algorithm: str = "head",
    ) -> None:
        super().__init__(max_payload_bytes)
        self._algorithm = algorithm
        self.segments = segments

    def put(self, data_id: str, batch: SampleBatch) -> FrameInfo:
        check_id(data_id, "data_id")
        buffers, info = encode(batch, self._algorithm, self._max_bytes)
        found = self.segments.read(data_id, is_new=True)
        if found is None:
            self.segments.add(data_id, buffers, info.size_bytes)
        elif bytes(found) != b"".join(buffers):
            raise conflict(data_id)
        return info

    def delete(self, data_ids: Iterable[str]) -> None:
        for data_id in data_ids:
            self.segments.delete(data_id)

    def read(self, data_id: str) -> Buffer | None:
        return self.segments.read(data_id)

    def is_there(self, data_id: str) -> bool:
        return self.segments.has(data_id)

    def sweep_orphans(self, is_live: Callable[[str], bool], grace_s: float) -> int:
        return self.segments.sweep(is_live, grace_s)

    def __len__(self) -> int:
        return len(self.segments.ids())

    def close(self) -> None:
        """Release the memory; calls that wait end with ClosedError."""
        self._closed.set()
        self.segments.close()
