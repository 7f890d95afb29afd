"""The choice of ``bench_env``, compared with the best of all env managers and numbers of envs.

    python benchmarks/bench_env.py [--envs CartPole-v1 Pendulum-v1] [--step-us 100 2000]
        [--seconds 0.25] [--repeats 8]

Measures every manager with every number of envs that ``bench_env`` tries, in turns. The speed of
each is that of its best turn. Goals: ``bench_env`` takes less than 20 s, and its choice has at
least 0.9 of the best speed. The env ``busy`` computes for ``--step-us`` microseconds per step.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from envs import Busy

from dingsdk.envs import bench_env
from dingsdk.envs.bench import COUNTS, KINDS, launched, step_for
from dingsdk.envs.check import env_maker
from dingsdk.errors import DingError


def measure_all(
    env_fn: Callable[[], Any], counts: list[int], seconds: float, repeats: int
) -> dict[tuple[str, int], float]:
    """Return env steps per second of every choice, in its best turn."""
    speeds: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        managers = {}
        for kind in KINDS:
            for count in counts:
                try:
                    manager = launched(kind, env_fn, count)
                except DingError:
                    continue
                managers[kind, count] = stack.enter_context(closing(manager))
        for _ in range(repeats):
            for choice, manager in managers.items():
                speeds.setdefault(choice, []).append(step_for(manager, seconds))
    return {choice: max(found) for choice, found in speeds.items()}


def main() -> None:
    """Compare the choice and the best for each env."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", nargs="*", default=["CartPole-v1", "Pendulum-v1"])
    parser.add_argument("--step-us", type=float, nargs="*", default=[100, 2000])
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--seconds", type=float, default=0.25, help="per turn")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--budget", type=float, default=12.0, help="seconds of bench_env")
    args = parser.parse_args()
    envs: dict[str, Any] = {name: name for name in args.envs}
    envs |= {f"busy {us:g} us": functools.partial(Busy, us) for us in args.step_us}
    for name, env in envs.items():
        started = time.perf_counter()
        choice, _ = bench_env(env, seconds=args.budget)
        taken = time.perf_counter() - started
        counts = sorted({*args.counts, choice.env_num})
        speeds = measure_all(env_maker(env), counts, args.seconds, args.repeats)
        best = max(speeds, key=lambda each: speeds[each])
        ratio = speeds[choice.manager, choice.env_num] / speeds[best]
        sys.stdout.write(
            f"{name:14s} chose {choice.manager} x {choice.env_num} in {taken:.1f} s, best is "
            f"{best[0]} x {best[1]} with {speeds[best]:,.0f} env steps/s: {ratio:.2f} of it\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
