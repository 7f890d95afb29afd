"""The cost of bounding the age of on-policy samples, compared with dropping old samples.

    python benchmarks/policy_lag.py [--seconds 20] [--lags 1 4 null] [--repeats 3]

Four collectors with one env each, whose steps take between 0.5 and 50 ms, feed a learner whose
trainings take 40 ms, over in_memory with threads. ``admission`` is what dingsdk does
(``policy.other.commander.max_policy_lag``). ``discarding`` exists only in this file: it never
makes a collector wait, and before a training it drops rows that are too old; it needs a limit. The
script prints the share of the time in which the learner trains, the mean and the largest age of the
rows trained on, and the number of dropped rows of finished trajectories.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import dingsdk.pipeline.parallel as parallel
from dingsdk.pipeline.context import RunContext
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.policy import PPOPolicy
from dingsdk.worker import Coordinator
from dingsdk.worker.coordinator.on_policy import Admission, OnPolicyPayloads

STEP_S = (0.0005, 0.0023, 0.0108, 0.05)
"""Step duration of each env; the slowest is 100 times the fastest."""
TRAINING_S = 0.04
_numbers = itertools.count()
_trainings: list[tuple[float, float]] = []
"""Start and end time of each training of a run."""
_dropped: list[int] = []


class PacedEnv(gym.Env[Any, Any]):
    """Random observations, episodes of 20 steps; the n-th env has the n-th step duration."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._pace_s = 0.0
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if not self._pace_s:
            self._pace_s = STEP_S[next(_numbers) % len(STEP_S)]
        self._step = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        time.sleep(self._pace_s)
        self._step += 1
        return self.observation_space.sample(), 1.0, self._step == 20, False, {}


class PacedPPO(PPOPolicy):
    """PPO whose trainings take a fixed time."""

    config = {"type": "paced"}  # noqa: RUF012 - as users write it

    def learn(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        started = time.perf_counter()
        logs = super().learn(batch)
        time.sleep(max(0.0, TRAINING_S - (time.perf_counter() - started)))
        _trainings.append((started, time.perf_counter()))
        return logs


class _Free(Admission):
    """Always admits everything."""

    def admit(self, task_id: str, rows_waiting: int, *, is_training: bool) -> int:
        super().admit(task_id, rows_waiting, is_training=is_training)
        self._grants[task_id].admitted = self._grants[task_id].used + 64
        return self._grants[task_id].admitted

    def may_train(self, rows_waiting: int) -> bool:
        return rows_waiting >= self.n_sample


class DiscardingPayloads(OnPolicyPayloads):
    """Bounds the age of rows by dropping the old ones before a training."""

    def __init__(self, n_sample: int, max_lag: int) -> None:
        super().__init__(_Free(n_sample, max_lag))
        self._oldest: dict[str, int] = {}  # train iteration of a payload's oldest policy, by id

    def push(self, meta: Mapping[str, Any], envstep: int) -> bool:
        self._oldest[str(meta["data_id"])] = int(meta["policy_iter"])
        return super().push(meta, envstep)

    @property
    def can_train(self) -> bool:
        if not self.is_training:
            self._drop()
        return super().can_train

    def _drop(self) -> None:
        admission = self.admission
        for name, payload in list(self._live.items()):
            if admission.newest - admission.version_of(self._oldest[name]) > admission.max_lag:
                _dropped.append(payload.rows)
                self._leave(name, payload, "stale", payload.rows)


class DiscardingCoordinator(Coordinator):
    """A coordinator with `DiscardingPayloads`."""

    def _new_payloads(self, state: Any) -> OnPolicyPayloads:
        policy = self._cfg["policy"]
        lag = int(policy["other"]["commander"]["max_policy_lag"])
        return DiscardingPayloads(int(policy["collect"]["n_sample"]), lag)


def run(seconds: float, max_lag: str, coordinator: type[Coordinator]) -> dict[str, float]:
    """Train for some seconds; return the learner's busy share, the lag and the dropped rows."""
    _trainings.clear()
    _dropped.clear()
    sets = [
        "env.env_id=Paced-v0",
        "env.collector_env_num=1",
        "env.collector_episode_num=100000",
        "env.evaluator_env_num=1",
        "env.n_evaluator_episode=1",
        "env_manager.type=in_process",
        "policy.type=paced",
        "policy.collect.n_sample=64",
        "policy.learn.epoch_per_collect=1",
        "policy.learn.batch_size=64",
        f"policy.other.commander.max_policy_lag={max_lag}",
        "policy.other.commander.eval_interval=10000",
        f"system.collector_num={len(STEP_S)}",
        "system.transport.concurrency=threads",
    ]
    parallel.Coordinator = coordinator  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder, use_manager(PluginManager()) as manager:
        manager.registry("policies").register("paced", PacedPPO)
        cfg = compile_run("cartpole-ppo", "parallel", "in_memory", sets, 0)
        context = RunContext(cfg=cfg, run_dir=Path(folder))
        timer = threading.Timer(seconds, context.stop.set)
        timer.start()
        result = parallel.parallel_pipeline(context)
    parallel.Coordinator = Coordinator  # type: ignore[misc]
    assert result.policy_lag is not None
    return {
        # Measure from the first training: workers take a while to start.
        "busy": sum(end - start for start, end in _trainings)
        / (_trainings[-1][1] - _trainings[0][0]),
        "mean lag": result.policy_lag["mean"],
        "largest lag": result.policy_lag["largest"],
        "rows trained": result.env_steps - sum(_dropped),
        "rows dropped": sum(_dropped),
    }


gym.register("Paced-v0", entry_point=PacedEnv)


def main() -> None:
    """Run both variants in turns and print their medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="per run")
    parser.add_argument("--lags", nargs="+", default=["2"], help="of max_policy_lag, with null")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    arms = [("admission", lag, Coordinator) for lag in args.lags]
    arms += [("discarding", lag, DiscardingCoordinator) for lag in args.lags if lag != "null"]
    found: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for _ in range(args.repeats):
        for name, lag, coordinator in arms:
            found[name, lag].append(run(args.seconds, lag, coordinator))
    for (name, lag), runs in found.items():
        medians = {key: statistics.median(each[key] for each in runs) for key in runs[0]}
        figures = ", ".join(f"{key} {value:.3g}" for key, value in medians.items())
        sys.stdout.write(f"max_policy_lag {lag}, {name:11} {figures}\n")
    for lag in args.lags:
        pairs = zip(found["admission", lag], found["discarding", lag], strict=lag != "null")
        if ratios := [ours["busy"] / theirs["busy"] for ours, theirs in pairs]:
            ratio = statistics.median(ratios)
            text = f"max_policy_lag {lag}: busy, admission / discarding: {ratio:.2f}"
            sys.stdout.write(f"{text}   goal >= 0.90\n")


if __name__ == "__main__":
    main()
