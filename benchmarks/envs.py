"""Envs in child processes, compared with gymnasium's AsyncVectorEnv and PufferLib, if installed.

    python benchmarks/envs.py [--envs 8] [--step-us 0 100 5000] [--seconds 1] [--repeats 5]
        [--peers]

An env computes for ``--step-us`` microseconds per step, and ends after 200 steps. All managers get
the same actions, in lock-step, and run in turns in one process. ``spread``: the envs wait instead
of computing, one of them 100 times as long as the others; ``async_subprocess`` returns the envs
that have finished their step, ``subprocess`` waits for all.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from dingsdk.envs import create_env_manager

Runner = Callable[[float], float]
"""Runs for about the given seconds, returns env steps per second."""


class Busy(gym.Env[Any, Any]):
    """Computes or waits ``step_us`` microseconds per step; observations are four numbers."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, step_us: float = 0.0, waits: bool = False) -> None:
        self._step_s, self._waits = step_us / 1e6, waits
        self._obs = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._waits:
            time.sleep(self._step_s)
        elif self._step_s:
            end = time.perf_counter() + self._step_s
            while time.perf_counter() < end:
                pass
        self._time += 1
        return self._obs, 1.0, self._time >= 200, False, {}


def ours(env_fns: Sequence[Callable[[], Any]], close: list[Any]) -> Runner:
    manager = create_env_manager({"type": "subprocess"}, env_fns)
    manager.launch()
    close.append(manager.close)
    count = len(env_fns)
    actions = np.arange(count) % 2
    return _timed(lambda: manager.step_batch(actions), count)


def gymnasium(env_fns: Sequence[Callable[[], Any]], close: list[Any]) -> Runner:
    vec = gym.vector.AsyncVectorEnv(env_fns, copy=False, context="spawn")
    vec.reset(seed=0)
    close.append(functools.partial(vec.close, terminate=True))
    actions = np.arange(len(env_fns)) % 2
    return _timed(lambda: vec.step(actions), len(env_fns))


def pufferlib(env_fns: Sequence[Callable[[], Any]], close: list[Any]) -> Runner:
    import pufferlib.emulation
    import pufferlib.vector

    count = len(env_fns)
    cores = len(os.sched_getaffinity(0))
    makers = [
        functools.partial(pufferlib.emulation.GymnasiumPufferEnv, env_creator=fn) for fn in env_fns
    ]
    vec = pufferlib.vector.make(
        makers,
        env_args=[[]] * count,
        env_kwargs=[{}] * count,
        backend=pufferlib.vector.Multiprocessing,
        num_envs=count,
        num_workers=min(count, cores),
        batch_size=count,
        overwork=True,
    )
    vec.reset(seed=0)
    close.append(vec.close)
    actions = np.arange(count) % 2
    return _timed(lambda: vec.step(actions), count)


def in_dict_form(kind: str, env_fns: Sequence[Callable[[], Any]], close: list[Any]) -> Runner:
    config = {"type": kind, "envs_per_process": 1}
    manager = create_env_manager(config, env_fns)
    manager.launch()
    close.append(manager.close)

    def run(seconds: float) -> float:
        steps, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            steps += len(manager.step(dict.fromkeys(manager.ready_obs, 0)))
        return steps / (time.perf_counter() - started)

    return run


def _timed(step: Callable[[], Any], count: int) -> Runner:
    def run(seconds: float) -> float:
        steps, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            for _ in range(4):
                step()
            steps += 4 * count
        return steps / (time.perf_counter() - started)

    return run


def compare(name: str, makers: dict[str, Callable[[list[Any]], Runner]], args: Any) -> None:
    """Print all speeds and their ratios to the first."""
    close: list[Any] = []
    runners = {}
    for key, make in makers.items():
        try:
            runners[key] = make(close)
        except ImportError as error:
            _say(f"  {key}: skipped ({error})")
    speeds: dict[str, list[float]] = {key: [] for key in runners}
    try:
        for run in runners.values():
            run(args.seconds / 5)
        for _ in range(args.repeats):
            for key, run in runners.items():
                speeds[key].append(run(args.seconds))
    finally:
        for each in close:
            each()
    _say(f"{name}:")
    first = next(iter(speeds))
    for key, found in speeds.items():
        ratio = statistics.median(a / b for a, b in zip(speeds[first], found, strict=True))
        against = "" if key == first else f"   {first} / {key}: {ratio:.2f}"
        _say(f"  {key:18s} {statistics.median(found):10,.0f} env steps/s{against}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--step-us", type=float, nargs="+", default=[0, 100, 5000])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", action="store_true")
    args = parser.parse_args(argv)
    for step_us in args.step_us:
        env_fns = [functools.partial(Busy, step_us)] * args.envs
        makers = {
            "subprocess": functools.partial(ours, env_fns),
            "AsyncVectorEnv": functools.partial(gymnasium, env_fns),
        }
        if args.peers:
            makers["pufferlib"] = functools.partial(pufferlib, env_fns)
        compare(f"{args.envs} envs, {step_us:g} us a step", makers, args)
    spread = [functools.partial(Busy, 100 if i else 10_000, waits=True) for i in range(args.envs)]
    kinds = ("async_subprocess", "subprocess")
    makers = {kind: functools.partial(in_dict_form, kind, spread) for kind in kinds}
    compare(f"{args.envs} envs, 100 us a step, one of them 10 ms (spread)", makers, args)


if __name__ == "__main__":
    main(sys.argv[1:])
