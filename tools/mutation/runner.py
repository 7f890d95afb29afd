"""Runs pytest many times in forks of one process, which imports the large packages once.

It reads one request per line, `{"arguments": [...], "limit_s": ..., "log": "path"}`, and answers
with the exit code of pytest, or `null` if the limit was reached.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time

import psutil  # type: ignore[import-untyped]
import pytest

PRELOADED = ("gymnasium", "numba", "safetensors.torch", "tensorboardX", "torch")
"""Imported before the forks: packages that the tests need, without pytest plugins or dingsdk."""


def main() -> None:
    """Answer requests until the input ends."""
    _adopt_orphans()
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.write(json.dumps(_run(**request)) + "\n")
        sys.stdout.flush()


def _run(arguments: list[str], limit_s: float, log: str) -> int | None:
    """Run pytest in a fork, then end every process that it left running."""
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["MUTATION_TESTS"] = os.path.abspath(".mutation-tests.json")  # noqa: PTH100
        sys.argv = ["pytest", *arguments]
        os._exit(pytest.main(arguments))
    deadline = time.monotonic() + limit_s
    process = psutil.Process(child)
    code: int | None = None
    with contextlib.suppress(psutil.TimeoutExpired):
        code = process.wait(max(0.0, deadline - time.monotonic()))
    _end_children()
    return code


def _adopt_orphans() -> None:
    """Become the parent of orphaned processes, so that they can be found and ended."""
    import ctypes

    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def _end_children() -> None:
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGKILL)
    psutil.wait_procs(children, timeout=10)


if __name__ == "__main__":
    main()
