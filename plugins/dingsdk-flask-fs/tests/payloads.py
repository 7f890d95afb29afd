"""Payloads for tests, and the paths of their files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.worker.comm.files.data_store import FileDataStore


def piece(seed: int = 0, rows: int = 8) -> SampleBatch:
    rng = np.random.default_rng(seed)
    return SampleBatch({"obs": rng.random((rows, 4), np.float32), "action": np.arange(rows)})


def large() -> SampleBatch:
    return SampleBatch({"obs": np.full((64, 84, 84), 7, np.uint8), "action": np.arange(64)})


def mapped() -> SampleBatch:
    return SampleBatch({"obs": np.full((1300, 84, 84), 7, np.uint8), "action": np.arange(1300)})


def file_of(store: FileDataStore, tmp_path: Path, data_id: str) -> Path:
    (found,) = (tmp_path / "run" / "data").glob(f"*/{data_id}.ding")
    return found


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))
