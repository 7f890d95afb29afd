"""Train bc and iql on recorded data, and compare them with the policy that recorded it.

    python benchmarks/offline.py feed                 # seconds: only how fast batches are drawn
    python benchmarks/offline.py --env Pendulum-v1    # minutes
    python benchmarks/offline.py                      # Hopper-v5, 20,000 env steps
    python benchmarks/offline.py --steps 300000       # Hopper-v5, hours on two cores

A recorder learns the env and saves checkpoints. Its best checkpoint records the expert data. The
mixed data are equally many episodes of each checkpoint, from the first to the last, with the
exploration of that time. ``bc`` learns from the expert data, ``iql`` from the mixed data; neither
takes an env step. The last policies of both play the same episodes as the recorder.

Goals: bc reaches the recorder's mean return less 5 % of its size. iql is above the mean return of
the mixed data by 10 % of the way from there to the best episode of the mixed data.

Needs plugins/dingsdk-zoo, and the extra mujoco for Hopper-v5. Nothing is downloaded. With
``--folder`` the runs and the data stay, and a recorder that is there is not trained again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import dingsdk
from dingsdk.data import Dataset, SampleBatch
from dingsdk.pipeline.compile import compile_config
from dingsdk.policy import create_policy
from dingsdk.worker import create_buffer, create_serial_collector, write_dataset

STEPS: Final = {"Hopper-v5": 20_000, "Pendulum-v1": 8_000}
"""Env steps of the recorder by env."""
RECORDERS: Final = {"Hopper-v5": "td3", "Pendulum-v1": "sac"}
"""Its policy by env."""
RATES: Final = {"Hopper-v5": 3e-4, "Pendulum-v1": 1e-3}
"""Its learning rate."""
CHECKPOINTS = 10
BATCH, DRAWS, PUSHED = 256, 500, 64
"""Of ``feed``: rows of a batch, batches in a round, and rows of a push."""
SEED = 1000
"""Of the episodes that all policies play in the end; the recorder has not seen them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", nargs="?", default="learn", choices=("learn", "feed"))
    parser.add_argument("--env", default="Hopper-v5", choices=sorted(STEPS))
    parser.add_argument("--recorder", choices=("sac", "td3"), help="default: by env")
    parser.add_argument("--steps", type=int, help="env steps of the recorder")
    parser.add_argument("--iterations", type=int, default=20_000, help="of bc and of iql")
    parser.add_argument("--expert-episodes", type=int, default=100)
    parser.add_argument("--mixed-episodes", type=int, default=200)
    parser.add_argument(
        "--played", type=int, default=100, help="episodes of each policy in the end"
    )
    parser.add_argument("--beta", type=float, default=3.0, help="policy.learn.beta of iql")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep the runs and the data there")
    parser.add_argument("--rows", type=int, default=200_000, help="of the data set of feed")
    parser.add_argument("--rounds", type=int, default=30, help="of feed, each of 500 batches")
    args = parser.parse_args()
    args.recorder = args.recorder or RECORDERS[args.env]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        (feed if args.job == "feed" else compare)(args, args.folder or Path(scratch))


def feed(args: argparse.Namespace, folder: Path) -> None:
    """Print how fast batches of a data set are drawn, and of the same samples after pushes."""
    rng, rows = np.random.default_rng(0), args.rows
    columns = {
        "obs": rng.normal(size=(rows, 11)).astype(np.float32),
        "next_obs": rng.normal(size=(rows, 11)).astype(np.float32),
        "action": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "reward": rng.normal(size=rows),
        "terminated": np.arange(rows) % 200 == 199,
        "truncated": np.zeros(rows, np.bool_),
    }
    path = folder / "feed.npz"
    write_dataset(Dataset(columns), path)
    policy: dict[str, Any] = {
        "type": "sac",
        "learn": {"batch_size": BATCH, "learner": {"train_iterations": 1}},
        "collect": {"collector": {"type": "dataset", "path": str(path)}},
    }
    cfg = compile_config({"policy": policy}).policy
    mode = create_policy(cfg, enable_field=["collect"], seed=0).collect_mode
    collector: Any = create_serial_collector(
        cfg.collect.collector, policy=mode, exp_name=str(folder)
    )
    section = cfg.other.replay_buffer
    from_data, pushed = create_buffer(section), create_buffer(section)
    samples = collector.collect()
    from_data.push(samples, 0)
    for start in range(0, rows, PUSHED):
        pushed.push(samples[start : start + PUSHED], 0)
    rates: dict[str, list[float]] = {"data set": [], "pushes": []}
    for _ in range(args.rounds):
        for name, buffer in (("data set", from_data), ("pushes", pushed)):
            began = time.perf_counter()
            for number in range(DRAWS):
                buffer.sample(BATCH, number)
            rates[name].append(DRAWS / (time.perf_counter() - began))
    for name, found in rates.items():
        sys.stdout.write(f"{name:8} {statistics.median(found):9,.0f} batches of {BATCH} a second\n")
    ratios = [one / other for one, other in zip(*rates.values(), strict=True)]
    sys.stdout.write(f"ratio    {statistics.median(ratios):9.2f}   goal 1\n")
    for each in (collector, from_data, pushed):
        each.close()


def compare(args: argparse.Namespace, folder: Path) -> None:
    """Train the recorder, record, train bc and iql, and print how they compare."""
    recorder = folder / "recorder"
    if not (recorder / "result.json").exists():
        dingsdk.train(recorder_config(args), seed=args.seed, output=folder)
    goal = play(recorder, "best", args.played)
    show(args.recorder, goal, f"{args.steps or STEPS[args.env]:,} env steps, best checkpoint")

    expert, mixed = folder / "expert.npz", folder / "mixed.npz"
    found = dingsdk.record(recorder, args.expert_episodes, expert, overwrite=True)
    show("expert", found.mean, described(found.returns, len(found.dataset)))
    returns, steps = record_mixed(recorder, args.mixed_episodes, mixed)
    mean, best = statistics.fmean(returns), max(returns)
    show("mixed", mean, described(returns, steps))

    cloned = learn(args, "bc", expert, folder)
    verdict("bc", cloned, goal - 0.05 * abs(goal))
    improved = learn(args, "iql", mixed, folder, beta=args.beta)
    verdict("iql", improved, mean + 0.1 * (best - mean))


def recorder_config(args: argparse.Namespace) -> dict[str, Any]:
    """Return the config of the recorder, with an update for each env step."""
    steps, rate = args.steps or STEPS[args.env], RATES[args.env]
    names = {"sac": ("q", "policy", "alpha"), "td3": ("actor", "critic")}[args.recorder]
    hook = {"save_ckpt_after_iter": max(1, steps // CHECKPOINTS)}
    return {
        "exp_name": "recorder",
        "env": {
            "env_id": args.env,
            "collector_env_num": 1,
            "evaluator_env_num": 10,
            "n_evaluator_episode": 10,
        },
        "env_manager": {"type": "in_process"},
        "policy": {
            "type": args.recorder,
            "random_collect_size": min(1000, steps // 20),
            "learn": {
                **{f"learning_rate_{name}": rate for name in names},
                "update_per_collect": 4,
                "learner": {"hook": hook, "keep_last_ckpt": 0},
            },
            "collect": {"n_sample": 4},
            "eval": {"evaluator": {"eval_freq": max(1, steps // 40)}},
            "other": {"replay_buffer": {"type": "naive", "replay_buffer_size": steps}},
        },
        "system": {"max_env_steps": steps, "torch_threads": 1},
    }


def record_mixed(recorder: Path, episodes: int, target: Path) -> tuple[list[float], int]:
    """Record equally many exploring episodes of each checkpoint; return returns and steps."""
    stems = sorted(path.stem for path in (recorder / "ckpt").glob("iteration_*.safetensors"))
    each = max(1, episodes // len(stems))
    found = [
        dingsdk.record(recorder, each, checkpoint=stem, seed=index, explore=True)
        for index, stem in enumerate(stems)
    ]
    batch = SampleBatch.concat(SampleBatch(one.dataset.columns) for one in found)
    starts = np.cumsum([0, *(len(one.dataset) for one in found)])
    ends = [one.dataset.ends + start for one, start in zip(found, starts, strict=False)]
    write_dataset(Dataset(batch.columns, np.concatenate(ends)), target)
    return [value for one in found for value in one.returns], len(batch)


def learn(args: argparse.Namespace, kind: str, data: Path, folder: Path, **extra: Any) -> float:
    """Train on a data set, without env steps; return the mean return of the last policy."""
    config = {
        "exp_name": kind,
        "env": {"env_id": args.env, "evaluator_env_num": 10, "n_evaluator_episode": 10},
        "env_manager": {"type": "in_process"},
        "policy": {
            "type": kind,
            "learn": {
                "update_per_collect": 100,
                "learner": {"train_iterations": args.iterations},
                **extra,
            },
            "collect": {"collector": {"type": "dataset", "path": str(data)}},
            "eval": {"evaluator": {"eval_freq": args.iterations}},
        },
        "system": {"torch_threads": 1},
    }
    run = dingsdk.train(config, seed=args.seed, output=folder).run_dir
    return play(run, "latest", args.played)


def play(run: Path, checkpoint: str, episodes: int) -> float:
    """Return the mean return of a checkpoint in the episodes that all policies play."""
    return dingsdk.evaluate(run, checkpoint, episodes=episodes, seed=SEED).mean


def described(returns: Any, steps: int) -> str:
    return f"{len(returns)} episodes, {steps:,} steps, best {max(returns):.1f}"


def show(name: str, mean: float, text: str) -> None:
    sys.stdout.write(f"{name:8} mean return {mean:9.1f}   {text}\n")
    sys.stdout.flush()


def verdict(name: str, mean: float, goal: float) -> None:
    show(name, mean, f"goal {goal:.1f}: {'reached' if mean >= goal else 'missed'}")


if __name__ == "__main__":
    main()
