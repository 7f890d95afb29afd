"""Interpreters that exit or fork during a run do not hang and print no traceback."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PRELUDE = """
import os, pathlib, sys, threading
from dingsdk.worker.comm import TaskAnswer, TaskMessage, WorkerInfo
from dingsdk_flask_fs.transport import FlaskFSTransport

class Listener:
    def worker_joined(self, info): pass
    def worker_renewed(self, worker_id, progress): pass
    def worker_left(self, worker_id, reason): pass
    def task_answered(self, worker_id, answer): pass

transport = FlaskFSTransport({"threads": 8}, pathlib.Path(sys.argv[1]))
master = transport.master_end()
address = master.open(Listener())
end = transport.slave_end(address)
end.join(WorkerInfo("w0", "collector"), 5.0)
store, policies = transport.data_store(), transport.policy_store()
"""


def run(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        # Python 3.12 and later warn about forks with threads, which these tests do on purpose.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c",
         PRELUDE + textwrap.dedent(script), str(tmp_path / "run")],
        capture_output=True, text=True, timeout=40, check=False,
    )  # fmt: skip


def test_program_that_closes_nothing_ends_without_output(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        def poll():
            try:
                while True:
                    end.next_task(20.0)
            except Exception:
                pass
        threading.Thread(target=poll, daemon=True).start()
        end.answer(TaskAnswer("t1", True))
        print("end of the program")
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end of the program\n", "")


def test_process_forked_while_threads_run_ends_without_side_effects(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        child = os.fork()
        if child == 0:
            sys.exit(7)  # as a program ends: with its exit handlers, and without our threads
        _, status = os.waitpid(child, 0)
        print("child", os.waitstatus_to_exitcode(status))
        master.send("w0", 1, TaskMessage("t1", {}))
        print("parent", end.next_task(5.0).task_id)
        transport.close()
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "child 7\nparent t1\n"


def test_forked_process_can_be_a_worker_of_its_own(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        child = os.fork()
        if child == 0:
            own = FlaskFSTransport({"threads": 8}, pathlib.Path(sys.argv[1]))
            its_end = own.slave_end(address)
            its_end.join(WorkerInfo("w1", "collector"), 10.0)
            task = its_end.next_task(10.0)
            own.close()
            os._exit(0 if task.task_id == "t1" else 1)
        while True:
            try:
                master.send("w1", 2, TaskMessage("t1", {}))
                break
            except ConnectionError:
                end.next_task(0.05)
        _, status = os.waitpid(child, 0)
        print("child", os.waitstatus_to_exitcode(status))
        transport.close()
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "child 0\n", "")
