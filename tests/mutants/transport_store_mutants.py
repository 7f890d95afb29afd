"""Defects of the two stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from dingsdk_in_memory.stores import MemoryDataStore, MemoryPolicyStore

from dingsdk import SampleBatch
from dingsdk.errors import DataMissingError

from .transport_mutant import mutant


@mutant(23)
class ShowsItLater(MemoryDataStore):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def get(self, data_id: str, timeout_s: float = 2.0) -> SampleBatch:
        if timeout_s == 0.0 and data_id not in self.seen:
            self.seen.add(data_id)
            raise DataMissingError("not yet", data_id=data_id)
        return super().get(data_id, timeout_s)


@mutant(25)
class ReplacesPayloads(MemoryDataStore):
    def put(self, data_id: str, batch: SampleBatch) -> None:
        self.delete([data_id])
        super().put(data_id, batch)


@mutant(27)
class NamesNoPayload(MemoryDataStore):
    def get(self, data_id: str, timeout_s: float = 2.0) -> SampleBatch:
        try:
            return super().get(data_id, timeout_s)
        except DataMissingError as error:
            raise DataMissingError(str(error)) from error


@mutant(28)
class CutsLargePayloads(MemoryDataStore):
    def get(self, data_id: str, timeout_s: float = 2.0) -> SampleBatch:
        return super().get(data_id, timeout_s)[:10_000]


@mutant(29)
class PublishesByReference(MemoryPolicyStore):
    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        found = self.newest(policy_id, version - 1)
        super().publish(policy_id, state, version)
        if found is None:
            self._newest[policy_id] = (version, dict(state))


@mutant(30)
class GoesBack(MemoryPolicyStore):
    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        self.discard(policy_id)
        super().publish(policy_id, state, version)


@mutant(31)
class PublishesInTwoSteps(MemoryPolicyStore):
    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        old = self._newest.get(policy_id)
        if old is not None and old[0] < version:
            half = dict(list(state.items())[:2])
            self._newest[policy_id] = (version, {**old[1], **half})
            time.sleep(0.002)
            self.discard(policy_id)
        super().publish(policy_id, state, version)


@mutant(32)
class RemembersVersionsOfWhatItForgot(MemoryPolicyStore):
    def newest(
        self, policy_id: str, newer_than: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        last = self.__dict__.setdefault("last", {})
        found = super().newest(policy_id, newer_than)
        if found is None or found[0] < last.get(policy_id, 0):
            return None
        last[policy_id] = found[0]
        return found


@mutant(42)
class SweepsAll(MemoryDataStore):
    def sweep_orphans(self, is_live: Callable[[str], bool], grace_s: float) -> int:
        count = len(self)
        self._payloads.clear()
        return count
