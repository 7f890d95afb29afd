"""Speed of several learner processes that train one policy, compared with one process.

    python benchmarks/learners.py [--learners N] [--batch-size N] [--hidden N] [--rounds N]

Trains DQN on batches of the same size with one process and with N, in turns. Each process has one
torch thread. Goal: two processes are at least 1.5 times as fast as one, with batches of 1024 and a
network of 4 x 1024.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dingsdk.data import SampleBatch
from dingsdk.policy import create_policy
from dingsdk.worker import LearnerAggregator

OBS = 16
GOAL = 1.5


def make_batch(size: int) -> SampleBatch:
    """Return a batch of random transitions."""
    random = np.random.default_rng(0)
    return SampleBatch(
        {
            "obs": random.normal(size=(size, OBS)).astype(np.float32),
            "action": random.integers(0, 4, size),
            "reward": random.normal(size=size).astype(np.float32),
            "next_obs": random.normal(size=(size, OBS)).astype(np.float32),
            "discount": np.full(size, 0.99, np.float32),
        }
    )


def measure(train: Callable[[SampleBatch], Any], batch: SampleBatch, iterations: int) -> float:
    """Return training iterations per second."""
    started = time.perf_counter()
    for _ in range(iterations):
        train(batch)
    return iterations / (time.perf_counter() - started)


def main() -> None:
    """Measure both in turns, so that changes of the machine's speed affect both equally."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cfg: dict[str, Any] = {
        "type": "dqn",
        "model": {
            "obs_shape": OBS,
            "action_shape": 4,
            "encoder_hidden_size_list": [args.hidden] * 4,
        },
        "learn": {"batch_size": args.batch_size},
    }
    batch = make_batch(args.batch_size)
    alone = create_policy(cfg, enable_field=["learn"], seed=0).learn_mode
    first = create_policy(cfg, enable_field=["learn"], seed=0).learn_mode
    with LearnerAggregator(first, cfg, args.learners) as ranks:
        arms = {"1 learner": alone.forward, f"{args.learners} learners": ranks.learn_mode.forward}
        rates: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(args.rounds + 1):
            for name, train in arms.items():
                rates[name].append(measure(train, batch, args.iterations))
    # The first round warms up.
    medians = [statistics.median(each[1:]) for each in rates.values()]
    for name, median in zip(rates, medians, strict=True):
        sys.stdout.write(f"{name:12} {median:8.2f} iterations/s\n")
    sys.stdout.write(f"{medians[1] / medians[0]:.2f} times as fast (goal {GOAL})\n")


if __name__ == "__main__":
    main()
