"""Kill and stop processes of a parallel run, and count what it lost.

    make chaos                                         10 minutes, 120 faults
    python -m tools.chaos --seconds 60 --faults 12 --seed 3

Two runs of the same length: one is left alone, one under faults. Each has a coordinator, a learner
and two collectors as processes, connected by ``flask_fs``, with envs of 5 ms a step. Faults come at
random times: SIGKILL of a random process of the run, the coordinator included, or SIGSTOP for some
seconds. Then the run is interrupted, and held against what was acknowledged beside it.

Exits with 1 if an acknowledged sample is lost, a count does not add up, the run does not end well,
or its env steps a second are under half of those of the run that was left alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil

from tools.chaos.counting import acknowledged_rows

ROOT = Path(__file__).parents[2]
STEP_S = 0.005
SETS = (
    "env.stop_value=.inf",
    "env.collector_env_num=4",
    "env.evaluator_env_num=2",
    "env.n_evaluator_episode=2",
    "policy.learn.learner.train_iterations=100000000",
    "policy.eval.evaluator.eval_freq=2000",
    "system.max_env_steps=null",
    "system.restarts=100000",
    "system.coordinator.lease_s=5",
    "system.coordinator.max_attempts=100000",  # nobody means the task that a worker is killed at
    "system.validate_state=true",
    "exp_name=run",
)
STOPPED = 0.2
"""Share of faults that stop a process instead of killing it."""
LONGEST_STOP_S = 8.0
PATIENCE_S = 120.0
LOOK_S = 5.0

Look = Callable[[float, list[psutil.Process]], None]


@dataclass(slots=True)
class Arm:
    """What became of one run.

    Attributes:
        steps_per_s: Env steps a second between start and interrupt.
        faults: How many of each kind there were.
        acknowledged_rows: Counted beside the run.
        samples: What the run says of its samples.
        problems: What must not be, a line each.
    """

    steps_per_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    acknowledged_rows: int = 0
    samples: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def run(folder: Path, seconds: float, faults: int, seed: int, look: Look = lambda *_: None) -> Arm:
    """Train for so many seconds with so many faults; look at what is left.

    Args:
        folder: An empty one, for what is written.
        seconds: From the first updates to the interrupt.
        faults: How many, at random times.
        seed: Of times, kinds and victims.
        look: Called every few seconds with the seconds since the start and the processes.
    """
    arm, run_dir = Arm(), folder / "run"
    command = [sys.executable, "-m", "tools.chaos.run", str(folder), str(STEP_S), *SETS]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_for_training(process, run_dir)
            steps, started = _status(run_dir)["env_steps"], time.monotonic()
            _disturb(process, run_dir, arm, seconds, faults, random.Random(seed), look)
            arm.steps_per_s = (_status(run_dir)["env_steps"] - steps) / (time.monotonic() - started)
            process.send_signal(signal.SIGINT)
            code = process.wait(PATIENCE_S)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            arm.problems.append(f"it does not go on or does not end: {error}")
            return arm
        finally:
            _end(process)
    if code not in (0, 130):
        text = (folder / "output").read_text()[-2000:]
        arm.problems.append(f"it ended with exit code {code}: {text}")
        return arm
    _count(arm, folder, json.loads((run_dir / "result.json").read_text()))
    return arm


def _count(arm: Arm, folder: Path, result: dict[str, Any]) -> None:
    arm.acknowledged_rows = acknowledged_rows(folder)
    arm.samples = samples = result["samples"]
    left = samples["live"] + sum(samples["evicted"].values())
    if samples["acknowledged"] != left:
        arm.problems.append(f"{samples['acknowledged']} acknowledged, but {left} live or evicted")
    if samples["acknowledged"] < arm.acknowledged_rows:
        arm.problems.append(
            f"workers were told that {arm.acknowledged_rows} samples are acknowledged, the run "
            f"knows of {samples['acknowledged']}"
        )
    for reason in ("missing", "corrupt"):
        if samples["evicted"].get(reason):
            arm.problems.append(f"{samples['evicted'][reason]} acknowledged samples are {reason}")


def _disturb(
    process: subprocess.Popen[bytes],
    run_dir: Path,
    arm: Arm,
    seconds: float,
    faults: int,
    rng: random.Random,
    look: Look,
) -> None:
    started = looked = time.monotonic()
    until = started + seconds
    times = sorted(until - rng.uniform(0.1, 1) * seconds for _ in range(faults))
    stopped: list[tuple[float, psutil.Process]] = []
    while time.monotonic() < until:
        if process.poll() is not None:
            return
        now = time.monotonic()
        for due in [each for each in stopped if each[0] <= now]:
            stopped.remove(due)
            _send(due[1], signal.SIGCONT)
        if now - looked > LOOK_S:
            looked = now
            look(now - started, _processes(process))
        if times and times[0] <= now:
            times.pop(0)
            processes = _processes(process)
            if processes:
                victim = rng.choice(processes)
                is_stop = rng.random() < STOPPED
                name = "coordinator" if victim.pid in _coordinators(run_dir) else "worker"
                if _send(victim, signal.SIGSTOP if is_stop else signal.SIGKILL):
                    arm.faults[f"{name} {'stopped' if is_stop else 'killed'}"] += 1
                if is_stop:
                    stopped.append((now + rng.uniform(0.5, LONGEST_STOP_S), victim))
        time.sleep(0.05)
    for _, each in stopped:
        _send(each, signal.SIGCONT)


def _processes(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the run's processes but the first, by their numbers."""
    found = []
    for child in psutil.Process(process.pid).children():
        try:
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return sorted(found, key=lambda each: each.pid)


def _send(process: psutil.Process, number: int) -> bool:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def _coordinators(run_dir: Path) -> set[int]:
    owner = (run_dir / "journal" / "owner.json").read_text()
    return {int(pid) for pid in re.findall(r"process (\d+) on ", owner)}


def _status(run_dir: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((run_dir / "status.json").read_text())
    except FileNotFoundError:
        return {"env_steps": 0, "train_iter": 0}
    return found


def _wait_for_training(process: subprocess.Popen[bytes], run_dir: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while _status(run_dir)["train_iter"] < 20:
        if process.poll() is not None or time.monotonic() > deadline:
            raise TimeoutError("it has not begun to train")
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing behind of a run that did not end."""
    if process.poll() is None:
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            each.kill()
        process.wait()


def main() -> int:
    """Run both arms and print what was found."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="of each run")
    parser.add_argument("--faults", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    arms = {}
    for name, faults in (("left alone", 0), ("under faults", args.faults)):
        with tempfile.TemporaryDirectory() as folder:
            arms[name] = arm = run(Path(folder), args.seconds, faults, args.seed)
        click.echo(f"{name}: {arm.steps_per_s:,.0f} env steps/s")
        for kind, count in sorted(arm.faults.items()):
            click.echo(f"  {count:4d} {kind}")
        click.echo(f"  counted beside the run: {arm.acknowledged_rows:,} samples acknowledged")
        click.echo(f"  counted by the run: {json.dumps(arm.samples)}")
        for problem in arm.problems:
            click.echo(f"  PROBLEM: {problem}")
    alone, disturbed = arms.values()
    ratio = disturbed.steps_per_s / max(alone.steps_per_s, 1e-9)
    click.echo(f"env steps a second under faults: {ratio:.2f} of those alone")
    return int(bool(alone.problems or disturbed.problems) or ratio < 0.5)


if __name__ == "__main__":
    sys.exit(main())
