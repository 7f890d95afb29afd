"""Whole clusters come and go in one process, and nothing piles up."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest

from dingsdk.pipeline.context import RunContext
from dingsdk.pipeline.parallel import parallel_pipeline
from dingsdk.pipeline.train import compile_run

SMALL = (
    "system.max_env_steps=64",
    "env.collector_env_num=2",
    "env.evaluator_env_num=1",
    "env.n_evaluator_episode=1",
    "policy.learn.batch_size=16",
    "policy.collect.n_sample=16",
)
WARM = 5


def held() -> dict[str, int]:
    """What this process holds of the machine."""
    process = psutil.Process()
    return {
        "threads": threading.active_count(),
        "descriptors": process.num_fds(),
        "ports": len([each for each in process.net_connections() if each.status == "LISTEN"]),
        "children": len(process.children(recursive=True)),
    }


@pytest.mark.parametrize(("transport", "cycles"), [("in_memory", 50), ("flask_fs", 50)])
def test_fifty_clusters_leave_what_the_fifth_left(
    tmp_path: Path, transport: str, cycles: int
) -> None:
    sets = (*SMALL, "system.transport.workers=threads")
    cfg = compile_run("cartpole-dqn", "parallel", transport, sets, 0)
    after: list[dict[str, int]] = []
    for cycle in range(cycles):
        run_dir = tmp_path / str(cycle)
        run_dir.mkdir()
        parallel_pipeline(RunContext(cfg=cfg, run_dir=run_dir))
        after.append(held())

    warm, last = after[WARM - 1], after[-1]
    for what, count in last.items():
        assert count <= warm[what] + 1, (what, [each[what] for each in after])
    left = {path.name for path in (tmp_path / "0").iterdir()}
    assert left == {path.name for path in (tmp_path / str(cycles - 1)).iterdir()}
