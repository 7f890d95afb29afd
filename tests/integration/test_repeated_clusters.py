"""Many clusters start and end in one process without leaking resources."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest

from dingsdk.pipeline.context import RunContext
from dingsdk.pipeline.parallel import parallel_pipeline
from dingsdk.pipeline.train import compile_run

pytestmark = pytest.mark.slow

SMALL = (
    "system.max_env_steps=64",
    "env.collector_env_num=2",
    "env.evaluator_env_num=1",
    "env.n_evaluator_episode=1",
    "policy.learn.batch_size=16",
    "policy.collect.n_sample=16",
)
WARM = 5


def held() -> dict[str, list[str]]:
    """Return the names of this process's threads, open files, listening ports and children."""
    process = psutil.Process()
    listening = [each for each in process.net_connections() if each.status == "LISTEN"]
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "descriptors": descriptors(),
        "ports": sorted(str(each.laddr) for each in listening),
        "children": sorted(child.name() for child in process.children(recursive=True)),
    }


def descriptors() -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of this listing is closed already
            found.append(str(link.readlink()))
    return sorted(found)


@pytest.mark.parametrize(("transport", "cycles"), [("in_memory", 50), ("flask_fs", 50)])
def test_fifty_clusters_leak_no_threads_files_ports_or_processes(
    tmp_path: Path, transport: str, cycles: int
) -> None:
    sets = (*SMALL, "system.transport.workers=threads")
    cfg = compile_run("cartpole-dqn", "parallel", transport, sets, 0)
    after: list[dict[str, list[str]]] = []
    for cycle in range(cycles):
        run_dir = tmp_path / str(cycle)
        run_dir.mkdir()
        parallel_pipeline(RunContext(cfg=cfg, run_dir=run_dir))
        after.append(held())

    warm, last = after[WARM - 1], after[-1]
    for what, names in last.items():
        new = Counter(names) - Counter(warm[what])
        assert len(names) <= len(warm[what]) + 1, (what, new, [len(each[what]) for each in after])
    left = {path.name for path in (tmp_path / "0").iterdir()}
    assert left == {path.name for path in (tmp_path / str(cycles - 1)).iterdir()}
