"""The default methods of transports and stores that override only the abstract ones."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import FrameInfo, SampleBatch
from dingsdk.errors import DataMissingError
from dingsdk.worker.comm import StepDataStore, Transport

BATCH = SampleBatch({"x": np.zeros(1)})
INFO = FrameInfo(7, "xxh3-128:0")


class PlainStore(StepDataStore):
    """Keeps payloads in a dict, and records the timeouts of reads."""

    def __init__(self) -> None:
        self.payloads: dict[str, SampleBatch] = {}
        self.waits: list[float] = []

    def put(self, data_id: str, batch: SampleBatch) -> FrameInfo | None:
        self.payloads[data_id] = batch
        return INFO

    def get(self, data_id: str, timeout_s: float = 2.0, digest: str | None = None) -> SampleBatch:
        self.waits.append(timeout_s)
        if data_id not in self.payloads:
            raise DataMissingError("no such payload", data_id=data_id)
        return self.payloads[data_id]

    def delete(self, data_ids: Iterable[str]) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


def test_default_store_puts_at_once_and_reads_payloads_to_check_for_them() -> None:
    store = PlainStore()
    assert store.put_soon("p", BATCH) == INFO
    store.flush()
    assert (store.has("p"), store.has("q"), store.has("p", 0.25)) == (True, False, True)
    assert store.waits == [2.0, 2.0, 0.25]
    assert store.sweep_orphans(lambda data_id: False, 0.0) == 0
    assert store.payloads == {"p": BATCH}


class PlainTransport(Transport):
    scheduler: Any = None

    def master_end(self) -> Any:
        raise NotImplementedError

    def slave_end(self, address: str) -> Any:
        raise NotImplementedError

    def data_store(self) -> Any:
        raise NotImplementedError

    def policy_store(self) -> Any:
        raise NotImplementedError

    def close(self, timeout_s: float = 5.0) -> None:
        raise NotImplementedError


def test_default_transport_runs_threads_at_once_and_starts_no_workers(tmp_path: Path) -> None:
    section = {"type": "plain"}
    assert PlainTransport.section_at(section, "somewhere") == section
    assert (PlainTransport.places, PlainTransport.starts_workers) == (("threads",), False)
    made = PlainTransport(section, tmp_path)
    assert (made.cfg.workers, made.run_dir, made.joining_note()) == ("", tmp_path, "")
    made.remove_data()
    made.keep_data()
    with pytest.raises(NotImplementedError, match="PlainTransport starts no workers"):
        made.launch([])
    with pytest.raises(NotImplementedError, match="PlainTransport starts no workers"):
        made.start_worker(None)
