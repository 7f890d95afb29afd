"""What a coordinator's process tells its parent."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dingsdk.pipeline.context import RunContext, RunStatus
from dingsdk.pipeline.coordinator_process import Opened, Told, _Elsewhere, _Parent, decode


def test_parent_knows_how_far_a_resumed_run_is_before_it_is_open(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    context = RunContext(cfg={}, run_dir=tmp_path)
    context.status = lambda: RunStatus(env_steps=520)
    master: Any = SimpleNamespace(workers=["collector-0"])
    group = _Elsewhere(_Parent(theirs), context, master)
    with ours, theirs:
        group.start("here")
        told, opened = (decode(ours.recv_bytes()) for _ in range(2))
        group.close(1.0)
        group._telling.join(5.0)

    assert isinstance(told, Told)
    assert (told.status.env_steps, told.workers) == (520, ["collector-0"])
    assert isinstance(opened, Opened)
