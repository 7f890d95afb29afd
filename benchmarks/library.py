"""The library loop of the documentation compared with ``train`` with the same parts.

    python benchmarks/library.py [--env-steps 60000] [--repeats 5] [--threads 20]

Both train DQN on CartPole-v1 for ``--env-steps`` steps, with one update per 32 steps, and evaluate
every 1000 iterations. They run in turns, each in a new process. The loop's time includes the
construction of its parts; the time of ``train`` runs from the first env step to the end. Prints
env steps per second and CPU seconds of each turn, and the median of the ratios. Goal: the loop has
at least 0.95 times the speed of ``train``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


def loop(env_steps: int, seed: int) -> tuple[float, int]:
    """Run the library loop; return its seconds and env steps."""
    import library_loop

    started = time.perf_counter()
    library_loop.main(env_steps, float("inf"), seed)
    return time.perf_counter() - started, env_steps


def train(env_steps: int, seed: int) -> tuple[float, int]:
    """Do the same with ``train``."""
    import library_loop

    import dingsdk

    learn = {**library_loop.DQN["learn"], "update_per_collect": 16}
    evaluator = {"evaluator": {"type": "interaction"}}
    buffer = {"replay_buffer": {"type": "naive", "replay_buffer_size": 10_000}}
    other = {**library_loop.DQN["other"], **buffer}
    policy = {**library_loop.DQN, "learn": learn, "eval": evaluator, "other": other}
    env = {"env_id": "CartPole-v1", "collector_env_num": 8, "evaluator_env_num": 8}
    config = {
        "env": {**env, "n_evaluator_episode": 10},
        "policy": policy,
        "system": {"max_env_steps": env_steps},
    }
    result = dingsdk.train(config, seed=seed)
    return result.elapsed_s, result.env_steps


CONTENDERS: dict[str, Callable[[int, int], tuple[float, int]]] = {"loop": loop, "train": train}


def measure(name: str, env_steps: int, seed: int, threads: int) -> tuple[float, float]:
    """Return env steps per second and CPU seconds of one contender, run in a new process."""
    command = [sys.executable, __file__, "--contender", name, "--env-steps", str(env_steps)]
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [*command, "--first-seed", str(seed)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(EXAMPLES), "OMP_NUM_THREADS": str(threads)},
            stdout=subprocess.PIPE,
            check=True,
        )
    found = json.loads(ran.stdout.splitlines()[-1])
    return found["steps"] / found["seconds"], found["cpu_s"]


def main() -> None:
    """Measure both in turns, so that changes of the machine's speed affect both equally."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-steps", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="OpenMP's")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contender:
        cpu = time.process_time()
        seconds, steps = CONTENDERS[args.contender](args.env_steps, args.first_seed)
        cpu = time.process_time() - cpu
        sys.stdout.write(json.dumps({"seconds": seconds, "steps": steps, "cpu_s": cpu}) + "\n")
        return
    ratios = []
    for seed in range(args.first_seed, args.first_seed + args.repeats):
        found = {
            name: measure(name, args.env_steps, seed, args.threads)
            for name in (list(CONTENDERS)[:: 1 if seed % 2 else -1])
        }
        for name in CONTENDERS:
            speed, cpu_s = found[name]
            sys.stdout.write(
                f"seed {seed} {name:6s} {speed:9,.0f} env steps/s {cpu_s:6.1f} CPU seconds\n"
            )
            sys.stdout.flush()
        ratios.append(found["loop"][0] / found["train"][0])
    sys.stdout.write(f"median ratio {statistics.median(ratios):.2f} (goal 0.95)\n")


if __name__ == "__main__":
    main()
