"""A transport for workers that are threads of one process.

A transport carries control messages, step data and policies between the workers of a run and their master.
This one is the transport `in_memory` with a data store of its own. Replace it part by part: `master_end`
listens, `slave_end` connects to the address that the master's `open` returns, `data_store` keeps step data
and `policy_store` the newest policies. Once a second process can join, add `processes` to `places`, and
`many_processes` to `contract_capabilities`. The tutorial "Write a transport" writes every part of one.

    system:
      transport:
        type: plugin_name
      collector_num: 2
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dingsdk.data import SampleBatch
from dingsdk.errors import ConflictError, DataMissingError
from dingsdk.worker.comm import StepDataStore
from dingsdk_in_memory.transport import InMemoryTransport


class PluginNameDataStore(StepDataStore):
    """Stores payloads by reference; ``put`` makes them read-only."""

    def __init__(self) -> None:
        self._payloads: dict[str, SampleBatch] = {}

    def put(self, data_id: str, batch: SampleBatch) -> None:
        present = self._payloads.setdefault(data_id, batch.freeze())
        if present is not batch and present != batch:
            raise ConflictError(f"payload {data_id!r} exists, and is another", data_id=data_id)

    def get(self, data_id: str, timeout_s: float = 2.0) -> SampleBatch:
        found = self._payloads.get(data_id)
        if found is None:
            raise DataMissingError(f"there is no payload {data_id!r}", data_id=data_id)
        return found

    def delete(self, data_ids: Iterable[str]) -> None:
        for data_id in data_ids:
            self._payloads.pop(data_id, None)

    def __len__(self) -> int:
        return len(self._payloads)


class PluginNameTransport(InMemoryTransport):
    """A transport whose workers are all threads of this process."""

    class Config(InMemoryTransport.Config, frozen=True, kw_only=True):
        """Section ``system.transport``."""

        type: str = "plugin_name"
        check_wire: bool = True

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        super().__init__(cfg, run_dir)
        self._data = PluginNameDataStore()

    def data_store(self) -> StepDataStore:
        return self._data
