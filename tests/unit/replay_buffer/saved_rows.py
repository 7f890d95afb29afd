"""Buffers of numbered rows, and what a folder holds of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.worker.replay_buffer import NaiveReplayBuffer, Table
from dingsdk.worker.replay_buffer.persistence import load

SEGMENT = 8


def make_buffer(size: int = 40) -> NaiveReplayBuffer:
    return NaiveReplayBuffer({"replay_buffer_size": size, "seed": 0})


def numbers(start: int, n: int) -> SampleBatch:
    """Return rows whose ``number`` is their push index."""
    return SampleBatch({"number": np.arange(start, start + n), "obs": {"x": np.ones((n, 3))}})


def push(buffer: Table, n: int) -> None:
    buffer.push(numbers(buffer.stats().pushed, n), 0)


def loaded(folder: Path, **options: Any) -> list[int]:
    return [int(row["number"]) for rows, _ in load(folder, **options) for row in rows]


def segment_files(folder: Path) -> dict[int, tuple[int, ...]]:
    """Return which inodes hold each segment, by its first push."""
    manifest = json.loads((folder / "manifest.json").read_text())
    return {
        segment["first"]: tuple(
            (folder / entry["file"]).stat().st_ino for entry in segment["files"]
        )
        for segment in manifest["segments"]
    }


def full(buffer: Table) -> list[int]:
    stats = buffer.stats()
    return list(range(stats.pushed - stats.count, stats.pushed))


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
