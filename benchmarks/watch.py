"""The cost of the live page for a training run: pairs of runs, with and without the page.

    python benchmarks/watch.py [--repeats N] [--env-steps N]

A client sends the requests of an open page: status, curves and log every 2 s. The script prints
medians over the pairs: the CPU time of the page's server as a share of the run's CPU time (goal:
under 2 %), the ratio of the run's own CPU time with and without the page, and the same ratio of its
env steps per second. The CPU time of the page's start is printed separately. On a loaded machine
the last ratio means nothing; the first figure does not depend on other load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import NamedTuple

EVERY_S = 2.0
ASKED = ("status.json", "curves.json", "log.json?run=0")
TICKS = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """The cost of one run."""

    steps_per_s: float
    run_cpu_s: float
    start_cpu_s: float = 0.0
    serve_cpu_s: float = 0.0
    answers: int = 0


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def train(folder: Path, env_steps: int) -> subprocess.Popen[bytes]:
    """Start a run."""
    sets = [f"system.max_env_steps={env_steps}", "env.stop_value=100000", "exp_name=run"]
    command = [sys.executable, "-m", "dingsdk", "train", "cartpole-dqn", "-q", "-o", str(folder)]
    for each in sets:
        command += ["--set", each]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)


def wait_for_run(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the run has begun."""
    tick = threading.Event()
    while not path.is_file():
        if process.poll() is not None:
            sys.exit("the run ended before it began")
        tick.wait(0.05)


def measure(env_steps: int, *, has_page: bool) -> Cost:
    """Train once and return the cost."""
    with tempfile.TemporaryDirectory() as root:
        process = train(Path(root), env_steps)
        run = Path(root) / "run"
        start_s = serve_s = 0.0
        answers = 0
        if has_page:
            wait_for_run(run / "status.json", process)
            page = subprocess.Popen(
                [sys.executable, "-u", "-m", "dingsdk", "watch", str(run)],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert page.stdout is not None
            address, _, token = page.stdout.readline().split()[-1].partition("?token=")
            start_s = cpu_s(page.pid)
            tick = threading.Event()
            # Do not wait() for the process: its CPU time is read after its end.
            while process_state(process.pid) != "Z":
                for path in ASKED:
                    headers = {"Authorization": f"Bearer {token}"}
                    request = urllib.request.Request(f"{address}{path}", headers=headers)
                    urllib.request.urlopen(request, timeout=10).read()
                    answers += 1
                tick.wait(EVERY_S)
            serve_s = cpu_s(page.pid) - start_s
            page.terminate()
            page.wait(30)
            page.stdout.close()
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        result = json.loads((run / "result.json").read_text())
    speed = result["env_steps"] / result["elapsed_s"]
    return Cost(speed, usage.ru_utime + usage.ru_stime, start_s, serve_s, answers)


def process_state(pid: int) -> str:
    """Return the state letter of a process; ``Z`` if it has ended and was not waited for."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def main() -> None:
    """Measure all pairs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--env-steps", type=int, default=100_000)
    options = parser.parse_args()
    shares, loads, ratios = [], [], []
    for _ in range(options.repeats):
        bare = measure(options.env_steps, has_page=False)
        shown = measure(options.env_steps, has_page=True)
        shares.append(shown.serve_cpu_s / shown.run_cpu_s)
        loads.append(shown.run_cpu_s / bare.run_cpu_s)
        ratios.append(shown.steps_per_s / bare.steps_per_s)
        sys.stdout.write(
            f"run {shown.run_cpu_s:6.1f} s CPU, server {shown.serve_cpu_s:5.2f} s for "
            f"{shown.answers} answers ({shares[-1]:.2%}), start {shown.start_cpu_s:.2f} s once; "
            f"{shown.steps_per_s:,.0f} env steps/s, {bare.steps_per_s:,.0f} without the page\n"
        )
    sys.stdout.write(
        f"CPU of the server over that of the run: {statistics.median(shares):.2%}   goal 2 %\n"
        f"CPU of the run with the page over without: {statistics.median(loads):.3f}\n"
        f"env steps/s with the page over without: {statistics.median(ratios):.3f}\n"
    )


if __name__ == "__main__":
    main()
