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

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from dingsdk.data import SampleBatch
from dingsdk.worker.comm import StepDataStore
from dingsdk_in_memory.stores import MemoryDataStore
from dingsdk_in_memory.transport import InMemoryTransport


class PluginNameDataStore(MemoryDataStore):
    """Stores payloads in memory, and counts the rows that were put."""

    rows = 0

    def put(self, data_id: str, batch: SampleBatch) -> None:
        """Store a payload; a repeated put of the same payload changes nothing, but counts."""
        super().put(data_id, batch)
        self.rows += len(batch)


class PluginNameTransport(InMemoryTransport):
    """A transport whose workers are all threads of this process."""

    class Config(InMemoryTransport.Config, frozen=True, kw_only=True):
        """Section ``system.transport``."""

        type: str = "plugin_name"
        concurrency: Literal["greenlets", "threads"] = "threads"
        check_wire: bool = True

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        super().__init__(cfg, run_dir)
        self._data = PluginNameDataStore()

    def data_store(self) -> StepDataStore:
        return self._data
