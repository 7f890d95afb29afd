"""Payloads and policies by reference: frozen arrays, cloned tensors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dingsdk import SampleBatch
from dingsdk.errors import ConflictError, DataMissingError
from dingsdk.worker.comm import PolicyStore, StepDataStore


class MemoryDataStore(StepDataStore):
    """Payloads by reference; ``put`` freezes their arrays."""

    def __init__(self) -> None:
        self._payloads: dict[str, SampleBatch] = {}
        self._ownerless: dict[str, float] = {}

    def put(self, data_id: str, batch: SampleBatch) -> None:
        # setdefault: a repeated put changes nothing, as a payload never changes.
        stored = self._payloads.setdefault(data_id, batch.freeze())
        if stored is not batch and stored != batch:
            raise ConflictError(
                f"payload {data_id!r} exists with another content, which stays; ids are used once",
                data_id=data_id,
            )

    def get(self, data_id: str, timeout_s: float = 2.0, digest: str | None = None) -> SampleBatch:
        try:
            return self._payloads[data_id]
        except KeyError:
            raise DataMissingError(
                f"no payload {data_id!r} in memory: it was never put, or deleted since",
                data_id=data_id,
            ) from None

    def delete(self, data_ids: Iterable[str]) -> None:
        for data_id in data_ids:
            self._payloads.pop(data_id, None)

    def has(self, data_id: str, timeout_s: float = 2.0) -> bool:
        return data_id in self._payloads

    def sweep_orphans(self, is_live: Callable[[str], bool], grace_s: float) -> int:
        now = time.monotonic()
        ownerless = [name for name in list(self._payloads) if not is_live(name)]
        # A payload's age counts from the first sweep that found it without an owner.
        self._ownerless = {name: self._ownerless.get(name, now) for name in ownerless}
        ripe = [name for name, since in self._ownerless.items() if now - since >= grace_s]
        self.delete(ripe)
        return len(ripe)

    def __len__(self) -> int:
        return len(self._payloads)


class MemoryPolicyStore(PolicyStore):
    """The newest policy version, cloned when it is published."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, tuple[int, dict[str, Any]]] = {}

    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        with self._lock:
            current = self._newest.get(policy_id)
        if current is not None and current[0] >= version:
            return  # a learner that resumed from a checkpoint has to catch up first
        copied = {
            key: value.detach().clone() if hasattr(value, "detach") else value.copy()
            for key, value in state.items()
        }
        with self._lock:
            self._newest[policy_id] = (version, copied)

    def newest(
        self, policy_id: str, newer_than: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        with self._lock:
            current = self._newest.get(policy_id)
        if current is None or (newer_than is not None and current[0] <= newer_than):
            return None
        return current[0], dict(current[1])

    def discard(self, policy_id: str) -> None:
        with self._lock:
            self._newest.pop(policy_id, None)
