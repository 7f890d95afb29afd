"""Helpers that make buffers of numbered rows, and read and edit folders of saved rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.data.container import decode_frame, decode_json, encode_frame, encode_json
from dingsdk.worker.replay_buffer import NaiveReplayBuffer, Table
from dingsdk.worker.replay_buffer.persistence import SavedRows
from dingsdk.worker.replay_buffer.state import TableSnapshot

SEGMENT = 8


class Disturbed(Table):
    """Mixed into a buffer that is changed just before a snapshot.

    Attributes:
        looks: Number of snapshots.
        before: Functions to call before the n-th snapshot, by n; the one for 0 is for all others.
    """

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        self.looks = 0
        self.before: dict[int, Callable[[], None]] = {}

    @contextmanager
    def snapshot(self) -> Iterator[TableSnapshot]:
        self.looks += 1
        meddle = self.before.pop(self.looks, self.before.get(0))
        if meddle is not None:
            meddle()
        with super().snapshot() as now:
            yield now


def make_buffer(size: int = 40) -> NaiveReplayBuffer:
    return NaiveReplayBuffer({"replay_buffer_size": size, "seed": 0})


def numbers(start: int, n: int) -> SampleBatch:
    """Return rows whose ``number`` is their push index."""
    return SampleBatch({"number": np.arange(start, start + n), "obs": {"x": np.ones((n, 3))}})


def push(buffer: Table, n: int) -> None:
    buffer.push(numbers(buffer.stats().pushed, n), 0)


def loaded(folder: Path, **options: Any) -> list[int]:
    return [int(row["number"]) for rows, _ in SavedRows(folder, **options) for row in rows]


def manifest_of(folder: Path) -> dict[str, Any]:
    content = (folder / "manifest.json").read_bytes()
    manifest = decode_json("replay-buffer", content)
    assert isinstance(manifest, dict)
    return manifest


def segment_files(folder: Path) -> dict[int, int]:
    """Return the inode of each segment by its first push index."""
    segments = manifest_of(folder)["segments"]
    return {each["first"]: (folder / each["name"]).stat().st_ino for each in segments}


def full(buffer: Table) -> list[int]:
    stats = buffer.stats()
    return list(range(stats.pushed - stats.count, stats.pushed))


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest and its digest."""
    manifest = manifest_of(folder)
    change(manifest)
    (folder / "manifest.json").write_bytes(encode_json("replay-buffer", manifest))


def replace_frame(folder: Path, entry: dict[str, Any], kind: str, value: Any) -> None:
    """Replace a frame, and write its size and digest into the manifest entry."""
    frame, info = encode_frame(kind, value)
    (folder / entry["name"]).write_bytes(b"".join(frame))
    entry.update(size_bytes=info.size_bytes, digest=info.digest)


def edit_state(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the saved frame of a state, which has the keys ``state`` and ``facts``."""
    manifest = manifest_of(folder)
    entry = manifest["state"]
    rest = decode_frame("replay-state", (folder / entry["name"]).read_bytes())
    change(rest)
    replace_frame(folder, entry, "replay-state", rest)
    edit(folder, lambda found: found.update(manifest))
