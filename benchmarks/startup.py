"""Start-up times: medians over new processes.

    python benchmarks/startup.py [--repeats N]

Goals: ``import dingsdk`` under 0.15 s, ``dingsdk plugins`` under 0.6 s, both including the start
of the interpreter. Compare with the bare interpreter, measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

CLI = "import sys; from dingsdk.cli import main; sys.exit(main())"
CASES: dict[str, tuple[list[str], float | None]] = {
    "python -c pass": (["-c", "pass"], None),
    "import dingsdk": (["-c", "import dingsdk"], 0.15),
    "dingsdk --help": (["-c", CLI, "--help"], None),
    "dingsdk plugins": (["-c", CLI, "plugins"], 0.6),
}


def measure(arguments: list[str]) -> float:
    """Return the seconds of one process from start to exit."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    """Measure all cases in turns, so that changes of the machine's speed affect all equally."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(repeats + 1):
        for name, (arguments, _) in CASES.items():
            times[name].append(measure(arguments))
    for name, (_, goal_s) in CASES.items():
        # The first round compiled the bytecode and filled the disk cache.
        median_s = statistics.median(times[name][1:])
        wanted = "" if goal_s is None else f"   goal {goal_s:.2f} s"
        sys.stdout.write(f"{name:18} {median_s:6.3f} s{wanted}\n")


if __name__ == "__main__":
    main()
