"""``bench_env``: find the fastest env manager and number of envs on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from dingsdk.data.action_mask import legal_action, sample_action
from dingsdk.envs.base import EnvManager
from dingsdk.envs.check import env_maker
from dingsdk.envs.make import create_env_manager
from dingsdk.errors import DingError, EnvError

KINDS = ("vector", "in_process", "subprocess")
COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of envs that are tried."""
TURN_S = 0.15
"""Seconds of one measurement (turn) of a choice."""
TURNS = 3
"""Measurements of a choice; the fastest one counts, as other programs have disturbed it least."""
FASTEST_SHARE = 0.97
"""Of the choices with at least this share of the best speed, the one with the fewest envs wins."""
_DROP = 0.8
"""Fewer envs are not tried if the speed has fallen below this share of the manager's best."""
_MAKING_S = 2.0
"""Time limit for making the envs of one choice."""
_WAITING = 0.5
"""An env waits if the CPU time of its steps is below this share of their time."""
_PROBE_S = 0.1
"""Seconds for which an env is stepped to find that out."""
_POOL = 16
"""Sets of actions that are drawn beforehand."""


@dataclass(frozen=True, slots=True)
class EnvSpeed:
    """Speed of one choice of env manager and number of envs.

    Attributes:
        manager: Type of the env manager.
        env_num: Number of envs that it steps together.
        steps_per_s: Env steps a second, of all envs together, with random actions; 0 if the
            manager cannot step the env.
        error: Why the manager cannot step the env; empty if it can.
        threads: As in the section ``env_manager``.
    """

    manager: str
    env_num: int
    steps_per_s: float
    error: str = ""
    threads: int = 0

    @property
    def config(self) -> str:
        """The config lines that choose it."""
        more = f"  threads: {self.threads}\n" if self.threads else ""
        manager = f"env_manager:\n  type: {self.manager}\n{more}"
        return f"env:\n  collector_env_num: {self.env_num}\n{manager}"


def bench_env(
    env: str | Callable[..., Any],
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Any] = (),
    seconds: float = 12.0,
) -> tuple[EnvSpeed, list[EnvSpeed]]:
    """Find the fastest env manager for an env here, and how many envs it should step together.

    The managers ``vector``, ``in_process`` and ``subprocess`` step 64 envs at first, then fewer as
    long as that is not much slower. If the env waits (for a simulator or a device, say),
    ``in_process`` with a thread for each env is tried too. ``async_subprocess`` is not measured:
    it is like ``subprocess`` except for policies that have only the dict form.

    Args:
        env: As for ``check_env``.
        kwargs: As for ``check_env``.
        wrappers: As for ``check_env``.
        seconds: Approximate time limit. A measurement that has begun is finished, so that envs
            which take seconds to make or to step take longer.

    Returns:
        The fastest choice (if several are as fast, the one with the fewest envs), and all measured
        choices, the fastest first.

    Raises:
        ConfigError: the env cannot be made as described.
        EnvError: no manager can step the env.
    """
    ends = time.perf_counter() + seconds
    env_fn = env_maker(env, kwargs, wrappers)
    making_s, waits = _probe(env_fn)
    counts = [count for count in COUNTS if count == 1 or count * making_s <= _MAKING_S]
    tried = [(kind, False) for kind in KINDS] + [("in_process", True)] * waits
    found: list[EnvSpeed] = []
    for left, (kind, has_threads) in zip(range(len(tried), 0, -1), tried, strict=True):
        now = time.perf_counter()
        found += _measure(kind, has_threads, env_fn, counts, now + (ends - now) / left)
    if not any(each.steps_per_s for each in found):
        raise EnvError(
            "no env manager can step this env: "
            + "; ".join(f"{each.manager}: {each.error}" for each in found),
            env_id=None,
            failures=len(found),
        )
    ranked = sorted(found, key=lambda each: -each.steps_per_s)
    enough = FASTEST_SHARE * ranked[0].steps_per_s
    fast = [each for each in ranked if each.steps_per_s >= enough]
    return min(fast, key=lambda each: each.env_num), ranked


def _probe(env_fn: Callable[[], Any]) -> tuple[float, bool]:
    """Return the seconds to make an env, and whether its steps mostly wait."""
    began = time.perf_counter()
    with closing(env_fn()) as env:
        making_s = time.perf_counter() - began
        obs, _ = env.reset(seed=0)
        started, started_cpu = time.perf_counter(), time.process_time()
        while (taken := time.perf_counter() - started) < _PROBE_S:
            obs, _, terminated, truncated, _ = env.step(sample_action(env.action_space, obs))
            if terminated or truncated:
                obs, _ = env.reset()
        return making_s, time.process_time() - started_cpu < _WAITING * taken


def _measure(
    kind: str,
    has_threads: bool,
    env_fn: Callable[[], Any],
    counts: Sequence[int],
    deadline: float,
) -> list[EnvSpeed]:
    """Measure a manager with the most envs, then with fewer while it is about as fast."""
    found: list[EnvSpeed] = []
    for count in reversed(counts):
        if found and time.perf_counter() > deadline:
            break
        threads = count if has_threads else 0
        try:
            with closing(launched(kind, env_fn, count, threads)) as manager:
                speed = max(step_for(manager, TURN_S) for _ in range(TURNS))
        except DingError as error:
            return found or [EnvSpeed(kind, count, 0.0, str(error), threads)]
        found.append(EnvSpeed(kind, count, speed, "", threads))
        if speed < _DROP * max(each.steps_per_s for each in found):
            break
    return found


def launched(kind: str, env_fn: Callable[[], Any], count: int, threads: int = 0) -> EnvManager:
    """Return an env manager of that type, seeded and launched."""
    more = {"threads": threads} if threads else {}
    manager = create_env_manager({"type": kind, **more}, [env_fn] * count)
    manager.seed(0)
    manager.launch()
    return manager


def step_for(manager: EnvManager, seconds: float) -> float:
    """Return env steps a second, measured over ``seconds`` after one step that does not count."""
    space, count = manager.action_space, manager.env_num
    pool = [np.array([space.sample() for _ in range(count)]) for _ in range(_POOL)]
    obs = manager.step_batch(legal_action(space, pool[0], manager.current_obs())).obs
    steps, rounds, started = 0, 0, time.perf_counter()
    while (taken := time.perf_counter() - started) < seconds:
        step = manager.step_batch(legal_action(space, pool[rounds % _POOL], obs))
        obs = step.obs
        steps += count if step.valid is None else int(np.count_nonzero(step.valid))
        rounds += 1
    return steps / taken
