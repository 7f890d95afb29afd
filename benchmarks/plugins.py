"""The time to list plugins, call hooks, build a buffer by name, and write a plugin.

    python benchmarks/plugins.py [--installed 200] [--repeats 5]

Goals: listing 200 installed plugins in a new process takes under 0.3 s and imports none of them; a
hook call with 5 observers takes under 5 us; ``create_buffer`` by name takes under 1 ms once the
buffer is loaded; ``dingsdk new plugin policy mine`` and a passing ``dingsdk check`` take under
60 s. Repeated measurements report the lowest time. The hooks do nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dingsdk import hookimpl
from dingsdk.plugins import PluginManager, observe, use_manager
from dingsdk.worker import create_buffer


def run(command: Sequence[str], site: Path) -> float:
    """Run a command with a folder of packages on the path; return its seconds."""
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return seconds


def listing(count: int, repeats: int) -> float:
    """Return the seconds of ``dingsdk plugins`` with this number of additional plugins."""
    with tempfile.TemporaryDirectory() as folder:
        site, mark = Path(folder, "site"), Path(folder, "imported")
        for number in range(count):
            info = site / f"acme_part_{number}-1.0.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: acme-part-{number}\nVersion: 1.0\n"
            )
            (info / "entry_points.txt").write_text(
                f"[dingsdk.samplers]\npart_{number} = acme_part_{number}\n"
            )
            (site / f"acme_part_{number}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
        best = min(run([sys.executable, "-m", "dingsdk", "plugins"], site) for _ in range(repeats))
        if mark.exists():
            sys.exit("a plugin was imported")
        return best


class Idle:
    """An observer that does nothing."""

    @hookimpl
    def dingsdk_after_episode(self, env_id: int, episode_return: float) -> None:
        """Do nothing."""


def per_call(call: Callable[[], object], repeats: int, calls: int = 2000) -> float:
    """Return the seconds of one call in the fastest repeat."""
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - began) / calls)
    return best


def hook_call(observers: int, repeats: int) -> float:
    """Return the seconds of a hook call with this number of observers."""
    with use_manager(PluginManager()) as manager:
        for number in range(observers):
            manager.register_plugin(Idle(), f"idle-{number}")

        def call() -> None:
            observe().after_episode(source="a", env_id=0, episode_return=1.0, length=9, numbers={})

        return per_call(call, repeats)


def build(repeats: int) -> float:
    """Return the seconds to build a buffer by its name."""
    return per_call(lambda: create_buffer({"type": "naive"}).close(), repeats, calls=200)


def write_one() -> float:
    """Return the seconds to create a policy package and pass its check."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder, "site")
        dingsdk = [sys.executable, "-m", "dingsdk"]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        package = str(Path(folder, "dingsdk-rl-mine"))
        began = time.perf_counter()
        run([*dingsdk, "new", "plugin", "policy", "mine", "--into", folder], site)
        run([*pip, "--no-build-isolation", "--target", str(site), package], site)
        run([*dingsdk, "check", "policies:mine"], site)
        return time.perf_counter() - began


def main() -> None:
    """Print the figures with their goals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--installed", type=int, default=200, help="plugins to list")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    figures = [
        (
            f"list {args.installed} installed plugins",
            listing(args.installed, args.repeats),
            1.0,
            "s",
            0.3,
        ),
        ("hook call, no observer", hook_call(0, args.repeats), 1e6, "us", 1.0),
        ("hook call, 5 observers", hook_call(5, args.repeats), 1e6, "us", 5.0),
        ("create_buffer by name", build(args.repeats), 1e3, "ms", 1.0),
        ("new plugin to passing check", write_one(), 1.0, "s", 60.0),
    ]
    for what, seconds, scale, unit, goal in figures:
        sys.stdout.write(f"{what:32} {seconds * scale:8.3f} {unit:2}   goal {goal:g} {unit}\n")


if __name__ == "__main__":
    main()
