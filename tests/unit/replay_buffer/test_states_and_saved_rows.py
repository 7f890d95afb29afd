"""States and saved rows: round trips, wrong states and damaged files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.data.container import VERSION, digest_of, encode_json
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointVersionError,
)
from dingsdk.worker.replay_buffer import AdvancedReplayBuffer, NaiveReplayBuffer

from .saved_rows import edit


def make_buffer(size: int = 4, kind: str = "auto") -> NaiveReplayBuffer:
    return NaiveReplayBuffer({"replay_buffer_size": size, "seed": 0, "storage": {"type": kind}})


def row(number: int) -> dict[str, Any]:
    return {"obs": {"pos": np.full(2, number, np.float32)}, "action": number}


def filled(n: int = 6, kind: str = "auto", size: int = 4) -> NaiveReplayBuffer:
    buffer = make_buffer(size, kind)
    for number in range(n):
        buffer.push(row(number), 0)
    return buffer


def contents(buffer: NaiveReplayBuffer) -> list[int]:
    """Return the actions, oldest first."""
    state = buffer.state_dict()
    data = state["data"]
    return [
        int(each["action"])
        for each in (SampleBatch(data) if data and isinstance(data, dict) else data)
    ]


# States ---------------------------------------------------------------------------------------


def test_loading_reports_replaced_rows_as_cleared() -> None:
    buffer, gone = filled(), []
    buffer.add_remove_listener(lambda rows, reason: gone.append((len(rows), reason)))
    buffer.load_state_dict(filled(3).state_dict())
    assert gone == [(4, "cleared")]
    stats = buffer.stats()
    assert stats.pushed == stats.overwritten + stats.cleared + stats.count


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 1}, CheckpointVersionError),
        ({"capacity": 5}, CheckpointVersionError),
        ({"push_count": -1}, CheckpointCorruptError),
        ({"tail": 4}, CheckpointCorruptError),
        ({"valid_count": 3}, CheckpointCorruptError),
        ({"storage": None}, CheckpointCorruptError),
        ({"data": {"a": np.zeros(4), "b": np.zeros(3)}}, CheckpointCorruptError),
        ({"sampler": {}}, CheckpointCorruptError),
        ({"limiter": {"inserts": -1}}, CheckpointCorruptError),
    ],
    ids=str,
)
def test_a_wrong_state_is_refused_and_changes_nothing(
    change: dict[str, Any], error: type[Exception]
) -> None:
    state = {**filled().state_dict(), **change}
    buffer, twin = filled(3), filled(3)
    with pytest.raises(error):
        buffer.load_state_dict(state)
    assert contents(buffer) == [0, 1, 2]
    mine, theirs = buffer.sample(2, 0), twin.sample(2, 0)
    assert mine == theirs


# Saved rows -----------------------------------------------------------------------------------


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != "manifest.json")


def _edit(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    return lambda folder: edit(folder, change)


def _to_pipe(folder: Path) -> None:
    path = _files(folder)[0]
    path.unlink()
    os.mkfifo(path)


def _to_folder(folder: Path) -> None:
    path = _files(folder)[0]
    path.unlink()
    path.mkdir()


def _to_link(folder: Path) -> None:
    path = _files(folder)[0]
    path.rename(folder / "elsewhere")
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "damage",
    [
        _to_pipe,
        _to_folder,
        _to_link,
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / "manifest.json").write_bytes(b"[" * 200_000),
        lambda folder: (folder / "manifest.json").write_bytes(encode_json("checkpoint", {})),
        _edit(lambda m: m.update(rows=2)),
        _edit(lambda m: m.update(first=1)),
        _edit(lambda m: m.update(first=3, rows=0)),
        _edit(lambda m: m.update(rows_each=0)),
        _edit(lambda m: m.update(extra=1)),
        _edit(lambda m: m.update(segments=[])),
        _edit(lambda m: m.update(segments=m["segments"] * 2)),
        _edit(lambda m: m["segments"][0].update(first=-1, rows=4)),
        _edit(lambda m: m["segments"][0].update(m["state"])),
        _edit(lambda m: m["segments"][0].update(name="../manifest.json")),
        _edit(lambda m: m["segments"][0].update(size_bytes=1)),
        _edit(lambda m: m["segments"][0].update(digest="sha256:")),
    ],
)
def test_altered_rows_are_refused_and_nothing_is_pushed(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    filled(3).save_data(str(tmp_path))
    damage(tmp_path)
    buffer = make_buffer()
    with pytest.raises(CheckpointCorruptError) as caught:
        buffer.load_data(str(tmp_path))
    assert str(tmp_path) in caught.value.path
    assert buffer.count() == 0


@pytest.mark.parametrize("version", [1, 4])
def test_another_format_version_is_refused(tmp_path: Path, version: Any) -> None:
    filled(3).save_data(str(tmp_path))
    path = tmp_path / "manifest.json"
    core, _, _ = path.read_text().rpartition(',"digest":')
    core = core.replace(f'"version":{VERSION}', f'"version":{json.dumps(version)}', 1)
    path.write_text(f'{core},"digest":"{digest_of([core.encode()])}"}}')
    with pytest.raises(CheckpointVersionError) as caught:
        make_buffer().load_data(str(tmp_path))
    assert (caught.value.found, caught.value.expected) == (version, VERSION)


def test_a_buffer_of_another_type_does_not_resume_from_saved_rows(tmp_path: Path) -> None:
    filled(3).save_data(str(tmp_path))
    other = AdvancedReplayBuffer({"replay_buffer_size": 4})
    with pytest.raises(CheckpointVersionError, match="is of a buffer made of"):
        other.resume_data(str(tmp_path))
    assert other.count() == 0


def test_a_state_whose_rows_the_storage_refuses_is_refused() -> None:
    storage = {"type": "array", "next_of": "x"}
    buffer = NaiveReplayBuffer({"replay_buffer_size": 4, "storage": storage})
    buffer.push(SampleBatch({"x": np.ones(3), "next_x": np.ones(3)}), 0)
    state = buffer.state_dict()
    with pytest.raises(CheckpointCorruptError, match="data is wrong"):
        buffer.load_state_dict({**state, "data": {"x": np.ones(3)}})
    assert buffer.count() == 3
