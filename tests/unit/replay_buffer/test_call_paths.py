"""Limits the number of modules that one operation of a buffer runs through."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import dingsdk
from dingsdk import SampleBatch
from dingsdk.worker import create_buffer

PACKAGE = str(Path(dingsdk.__file__).parent)
MODULES, CHANGES = 8, 12


def modules_called(operation: Callable[[], Any]) -> list[str]:
    """Return the file of each function of dingsdk that an operation calls, in order."""
    called = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            called.append(frame.f_code.co_filename)

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(previous)
    return called


@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_operations_stay_within_few_modules(kind: str, tmp_path: Path) -> None:
    rows = {name: np.zeros((64, 4), np.float32) for name in ("obs", "next_obs")}
    rows |= {"action": np.zeros(64, np.int64), "done": np.zeros(64, bool)}
    pushed = SampleBatch(rows)
    buffer = create_buffer({"type": kind, "replay_buffer_size": 1000}, exp_name=str(tmp_path))
    for _ in range(20):
        buffer.push(pushed, 0)
    batch = buffer.sample(32, 0)
    assert isinstance(batch, SampleBatch)
    operations: list[Callable[[], Any]] = [
        lambda: buffer.push(pushed, 0),
        lambda: buffer.sample(32, 0),
    ]
    if kind == "advanced":
        names = ("replay_unique_id", "replay_buffer_idx")
        info = {name: batch.columns[name] for name in names} | {"priority": np.ones(32)}
        operations.append(lambda: buffer.update(info))
    for operation in operations:
        called = modules_called(operation)
        assert 1 <= len(set(called)) <= MODULES
        assert sum(one != other for one, other in itertools.pairwise(called)) <= CHANGES
    buffer.close()
