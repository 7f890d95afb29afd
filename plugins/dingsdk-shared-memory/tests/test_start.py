"""What happens before a run begins."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from dingsdk.pipeline import train

def begin(modules):
    print(modules, "torch" in sys.modules)
    raise SystemExit

train.begin_fork_server = begin
train.compile_run("cartpole-dqn", "parallel", "shared_memory", begins=True)
"""


def test_processes_begin_their_imports_before_the_run_loads_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "('torch', 'dingsdk.config', 'dingsdk.data') False\n", done.stderr
