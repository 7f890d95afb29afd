"""A process exits or forks while a cluster runs in its threads: no hang, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
START = """
import os, sys, threading
from pathlib import Path
from dingsdk.plugins import default_manager
from dingsdk.worker.comm import Master, Slave, WorkerInfo

kind, run_dir = sys.argv[1], Path(sys.argv[2])
transport = default_manager().create("transports", {"type": kind}, run_dir)
joined = threading.Event()
master = Master(
    transport.master_end(), transport.scheduler, on_join=lambda info: joined.set()
)
slave = Slave(
    transport, WorkerInfo("w0", "collector"),
    callback_fn={
        "echo": lambda task: {"n": task["n"]},
        "hang": lambda task: threading.Event().wait(),
    },
)
stores = transport.data_store(), transport.policy_store()
slave.start(master.start())
assert joined.wait(20)
assert master.ask("w0", {"name": "echo", "n": 1}, 20)["n"] == 1
"""
END = """
task = master.new_task("w0", {"name": "hang"}).start()
sys.exit(0)
"""
FORK = """
child = os.fork()
if child == 0:
    # The child has only this thread. It must not wait for locks of the other threads.
    sys.exit(0)
pid, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert master.ask("w0", {"name": "echo", "n": 2}, 20)["n"] == 2
slave.close(); master.close(); transport.close()
"""


def run(code: str, kind: str, tmp_path: Path) -> None:
    # Python 3.12 warns about a fork in a process with threads, which this test does on purpose.
    program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", START + code]
    process = subprocess.run(
        [*program, kind, str(tmp_path)],
        capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize("kind", ["in_memory", "flask_fs"])
def test_interpreter_exits_with_an_open_cluster_and_task(tmp_path: Path, kind: str) -> None:
    run(END, kind, tmp_path)


@pytest.mark.parametrize("kind", ["in_memory", "flask_fs"])
def test_forked_child_exits_and_parent_cluster_still_works(tmp_path: Path, kind: str) -> None:
    run(FORK, kind, tmp_path)
