"""Kill and stop processes of a parallel run, fill its disk, and count lost samples.

    make chaos                                         10 minutes, 120 kills
    python -m tools.chaos --seconds 60 --kills 12 --seed 3

There are two runs of the same length, one without and one with faults. Each has a coordinator, a
learner and two collectors as processes, connected by ``flask_fs``, with envs of 5 ms per step.
Faults come at random times: SIGKILL of the learner, of the coordinator, and then of random
processes of the run; a fifth as often SIGSTOP for some seconds; a twentieth as often a full disk
for five seconds. The disk is a small tmpfs, which only root can mount; without root no disk is
filled. Then the run is interrupted, and its result is compared with separate counts of acknowledged
and trained samples.

Exits with 1 if an acknowledged sample is lost, a sample is trained on too often, a count does not
add up, the run fails, or its env steps per second are less than half of those of the run without
faults.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil

from tools.chaos.counting import acknowledged_rows, most_uses

ROOT = Path(__file__).parents[2]
STEP_S = 0.005
MAX_USE = 8
DISK_BYTES = 64 << 20
SETS = (
    "env.stop_value=.inf",
    "env.collector_env_num=4",
    "env.evaluator_env_num=2",
    "env.n_evaluator_episode=2",
    "policy.learn.learner.train_iterations=100000000",
    "policy.eval.evaluator.eval_freq=2000",
    "system.max_env_steps=null",
    "policy.nstep=1",
    "policy.other.replay_buffer.type=advanced",
    f"policy.other.replay_buffer.max_use={MAX_USE}",
    f"system.transport.min_free_bytes={1 << 20}",
    "system.restarts=100000",
    "system.coordinator.lease_s=5",
    "system.coordinator.max_attempts=100000",  # a killed worker does not mean that its task is bad
    "system.validate_state=true",
    "exp_name=run",
    "system.transport.type=flask_fs",
)
STOPS, FILLS = 5, 20
"""Number of kills per stopped process, and per full disk."""
COORDINATOR_SHARE = 1 / 12
"""Ten of 120 kills; few, because nothing is collected or trained while it restarts."""
LONGEST_STOP_S = 8.0
FULL_S = 5.0
PATIENCE_S = 120.0
LOOK_S = 5.0

Look = Callable[[float, list[psutil.Process]], None]


@dataclass(slots=True)
class Arm:
    """The result of one run.

    Attributes:
        steps_per_s: Env steps per second between start and interrupt.
        faults: Number of faults by kind.
        acknowledged_rows: Number of acknowledged rows, counted outside the run.
        most_uses: Largest number of batches that one sample was in, counted outside the run.
        samples: The sample counts in the run's result.
        problems: Violations, one line each.
    """

    steps_per_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    acknowledged_rows: int = 0
    most_uses: int = 0
    samples: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def run(
    folder: Path,
    seconds: float,
    kills: int,
    seed: int,
    look: Look = lambda *_: None,
    sets: Sequence[str] = (),
    step_s: float = STEP_S,
) -> Arm:
    """Train under faults, interrupt the run, and check its result.

    Args:
        folder: Empty folder for all files.
        seconds: Time from the first updates to the interrupt.
        kills: Number of kills, at random times; determines the number of stops and full disks.
        seed: Seed of times, kinds and victims.
        look: Called every few seconds with the seconds since the start and the processes.
        sets: More settings of the run.
        step_s: Duration of an env step in seconds.
    """
    with _disk(folder / "disk") as disk:
        return _run(folder, disk, seconds, kills, random.Random(seed), look, sets, step_s)


def _run(
    folder: Path,
    disk: Path | None,
    seconds: float,
    kills: int,
    rng: random.Random,
    look: Look,
    sets: Sequence[str],
    step_s: float,
) -> Arm:
    arm, run_dir = Arm(), folder / "disk" / "run"
    command = [sys.executable, "-m", "tools.chaos.run", str(folder), str(step_s), *SETS, *sets]
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
            faults = _Faults(process, folder, disk, rng, arm)
            faults.disturb(seconds, kills, look)
            arm.steps_per_s = (_status(run_dir)["env_steps"] - steps) / (time.monotonic() - started)
            process.send_signal(signal.SIGINT)
            code = process.wait(PATIENCE_S)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            text = (folder / "output").read_text()[-2000:]
            arm.problems.append(f"it does not go on or does not end: {error}: {text}")
            return arm
        finally:
            _end(process)
    if code not in (0, 130):
        text = (folder / "output").read_text()[-2000:]
        arm.problems.append(f"it ended with exit code {code}: {text}")
        return arm
    _count(arm, folder, json.loads((run_dir / "result.json").read_text()))
    return arm


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[Path | None]:
    """Mount a small disk; yield None if that is not permitted."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


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
    arm.most_uses = most_uses(folder)
    if arm.most_uses > MAX_USE:
        arm.problems.append(f"a sample is trained on {arm.most_uses} times, at most {MAX_USE} are")
    for reason in ("missing", "corrupt"):
        if samples["evicted"].get(reason):
            arm.problems.append(f"{samples['evicted'][reason]} acknowledged samples are {reason}")


class _Faults:
    """Causes faults in a run.

    Args:
        process: Main process of the run.
        folder: Folder of the run.
        disk: The run's disk, or None if no disk was mounted.
        rng: Chooses times, kinds and victims.
        arm: Counts the faults.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        folder: Path,
        disk: Path | None,
        rng: random.Random,
        arm: Arm,
    ) -> None:
        self._process = process
        self._folder = folder
        self._ballast = None if disk is None else disk / "ballast"
        self._rng = rng
        self._arm = arm
        self._stopped: list[tuple[float, psutil.Process]] = []
        self._full_until = 0.0
        self._to_kill = ["learner", "coordinator"]

    def disturb(self, seconds: float, kills: int, look: Look) -> None:
        """Cause the faults until the time is over or the run has ended."""
        started = looked = time.monotonic()
        until = started + seconds
        kinds = ["kill"] * kills + ["stop"] * (kills // STOPS) + ["fill"] * -(-kills // FILLS)
        due = sorted((until - self._rng.uniform(0.1, 1) * seconds, kind) for kind in kinds)
        while (now := time.monotonic()) < until and self._process.poll() is None:
            self._end_faults(now)
            if now - looked > LOOK_S:
                looked = now
                look(now - started, _processes(self._process))
            if due and due[0][0] <= now:
                self._begin(due.pop(0)[1], now)
            time.sleep(0.05)
        self._end_faults(float("inf"))

    def _begin(self, kind: str, now: float) -> None:
        if kind == "fill":
            if self._ballast is not None:
                self._full_until = now + FULL_S
                self._arm.faults["disk filled"] += 1
            return
        processes = _processes(self._process)
        if not processes:
            return
        is_stop = kind == "stop"
        victim = self._rng.choice(self._candidates(processes, [] if is_stop else self._to_kill))
        if not _send(victim, signal.SIGSTOP if is_stop else signal.SIGKILL):
            return
        self._arm.faults[f"{self._name(victim.pid)} {'stopped' if is_stop else 'killed'}"] += 1
        if is_stop:
            self._stopped.append((now + self._rng.uniform(0.5, LONGEST_STOP_S), victim))

    def _candidates(
        self, processes: list[psutil.Process], first: list[str]
    ) -> list[psutil.Process]:
        """Return the coordinator with probability `COORDINATOR_SHARE`, else the others.

        A process with a name in ``first`` comes before all others, once.
        """
        for name in first:
            if found := [each for each in processes if self._name(each.pid) == name]:
                first.remove(name)
                return found
        coordinators = [each for each in processes if self._name(each.pid) == "coordinator"]
        others = [each for each in processes if each not in coordinators]
        is_coordinators_turn = self._rng.random() < COORDINATOR_SHARE
        return (coordinators if is_coordinators_turn else others) or processes

    def _end_faults(self, now: float) -> None:
        for each in [each for each in self._stopped if each[0] <= now]:
            self._stopped.remove(each)
            _send(each[1], signal.SIGCONT)
        if self._ballast is None:
            return
        if now < self._full_until:
            # Fill repeatedly, because deleted files free space.
            with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        else:
            self._ballast.unlink(missing_ok=True)

    def _name(self, pid: int) -> str:
        """Return the name of a process of the run, without its number."""
        lines = (self._folder / "processes").read_text().splitlines()
        names = dict(line.split(" ", 1) for line in lines)
        return re.sub(r"-\d+$", "", names.get(str(pid), "a process that starts"))


def _processes(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the run's processes except the main one, ordered by pid."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if child.ppid() != process.pid or "spawn_main" in " ".join(child.cmdline()):
                found.append(child)  # one that was forked from the fork server, or spawned
        except psutil.NoSuchProcess:
            continue
    return sorted(found, key=lambda each: each.pid)


def _send(process: psutil.Process, number: int) -> bool:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


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
    """Kill all processes of a run that did not end."""
    if process.poll() is None:
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            each.kill()
        process.wait()


def main() -> int:
    """Run without and with faults, and print the results."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="of each run")
    parser.add_argument("--kills", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--transport", default="flask_fs", help="between the processes")
    args = parser.parse_args()
    arms = {}
    for name, kills in (("left alone", 0), ("under faults", args.kills)):
        with tempfile.TemporaryDirectory() as folder:
            sets = [f"system.transport.type={args.transport}"]
            arms[name] = arm = run(Path(folder), args.seconds, kills, args.seed, sets=sets)
        report(name, arm)
    alone, disturbed = arms.values()
    ratio = disturbed.steps_per_s / max(alone.steps_per_s, 1e-9)
    samples = disturbed.samples.get("acknowledged", 0)
    gone = disturbed.samples.get("evicted", {})
    lost = max(0, disturbed.acknowledged_rows - samples)
    lost += gone.get("missing", 0) + gone.get("corrupt", 0)
    click.echo(
        f"summary: seed {args.seed}, {args.seconds:.0f} s, "
        f"{sum(disturbed.faults.values())} faults; "
        f"{disturbed.acknowledged_rows:,} samples acknowledged, {lost} of them lost; trained on "
        f"{disturbed.most_uses} times at most, {MAX_USE} allowed; env steps a second: {ratio:.2f} "
        "of those without faults, 0.50 to hold"
    )
    return int(bool(alone.problems or disturbed.problems) or ratio < 0.5)


def report(name: str, arm: Arm) -> None:
    """Print the result of a run."""
    click.echo(f"{name}: {arm.steps_per_s:,.0f} env steps/s")
    for kind, count in sorted(arm.faults.items()):
        click.echo(f"  {count:4d} {kind}")
    click.echo(f"  counted beside the run: {arm.acknowledged_rows:,} samples acknowledged")
    click.echo(f"  counted by the run: {json.dumps(arm.samples)}")
    for problem in arm.problems:
        click.echo(f"  PROBLEM: {problem}")


if __name__ == "__main__":
    sys.exit(main())
