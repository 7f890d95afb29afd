"""Whole training runs of ``train(config)``, compared with the same job in Stable-Baselines3.

    /tmp/peers/bin/python benchmarks/train.py [--jobs dqn ppo sac pong] [--seeds 5]
    /tmp/peers/bin/python benchmarks/train.py --contenders serial sb3 in_memory shared_memory
    python benchmarks/train.py --jobs ppo --contenders serial normalized

A job is an env, a network, a batch, a replay buffer and a number of env steps and updates, defined
once in ``JOBS`` for both. Each run is a new process with one torch thread. Contenders take turns,
seed by seed, so that slow minutes of the machine affect all. Time runs from the first env step to
the last update; the time before, with imports, is printed as start-up. The return is that of greedy
episodes after the run, whose time does not count. Our logs, hooks and checkpoints are those of a
default run; Stable-Baselines3 logs without output, which is its default.

Ratios of ours to Stable-Baselines3 are medians over the seeds. For env steps and updates per second
above 1 is faster; for CPU seconds below 1 is cheaper. The script fails if the serial run or
Stable-Baselines3 did not do the work of the job, or if the two trained different numbers of
parameters. In parallel mode the updates are not tied to the env steps; its time is that of the
whole run with the last evaluation, and its CPU seconds are those of all processes with start-up.
``normalized`` is the serial run with ``policy.normalize`` of observations and rewards; its ratios
are to the serial run, and its goal is 1.03 times the CPU seconds of PPO.
For the peer see requirements-peers.txt; without it, only ours runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

JOBS: Final[Mapping[str, dict[str, Any]]] = {
    "dqn": {
        "env_id": "CartPole-v1",
        "env_steps": 10_000,
        "hidden": [64, 64],
        "learning_rate": 5e-4,
        "batch_size": 64,
        "buffer_size": 50_000,
        "learning_starts": 500,
        "train_freq": 4,
        "gradient_steps": 4,
        "target_interval": 200,
        "decay_steps": 3_000,
        "episodes": 20,
    },
    "ppo": {
        "env_id": "CartPole-v1",
        "env_steps": 30 * 1_024,
        "hidden": [64, 64],
        "learning_rate": 1e-3,
        "batch_size": 256,
        "env_num": 8,
        "rollout": 128,
        "epochs": 10,
        "episodes": 20,
    },
    "sac": {
        "env_id": "Pendulum-v1",
        "env_steps": 2_500,
        "hidden": [256, 256],
        "learning_rate": 1e-3,
        "batch_size": 256,
        "buffer_size": 50_000,
        "learning_starts": 256,
        "train_freq": 1,
        "gradient_steps": 1,
        "episodes": 20,
    },
    "pong": {
        "env_id": "ALE/Pong-v5",
        "env_steps": 1_500,
        "hidden": [512],
        "learning_rate": 1e-4,
        "batch_size": 32,
        "buffer_size": 5_000,
        "learning_starts": 500,
        "train_freq": 4,
        "gradient_steps": 1,
        "target_interval": 1_000,
        "decay_steps": 1_500,
        "episodes": 1,
    },
}
"""``target_interval`` and ``decay_steps`` are env steps; within ``decay_steps`` the chance of a
random action falls from 1 to 0.05. After every ``train_freq`` env steps come ``gradient_steps``
updates. ``rollout`` is in steps per env. ``learning_starts`` must be a batch or more for ours."""
PARALLEL: Final = ("in_memory", "shared_memory")
NORMALIZED: Final = "normalized"


class Clock:
    """Wall and CPU seconds of a run, from its first env step to its last update.

    Args:
        spawned_at: ``time.time()`` when the process was started.
    """

    def __init__(self, spawned_at: float) -> None:
        self._spawned_at = spawned_at

    def start(self) -> None:
        """Record the time before the first env step."""
        self.startup_s, self.startup_cpu_s = time.time() - self._spawned_at, time.process_time()
        self._began = self._last = time.perf_counter(), time.process_time()

    def note(self) -> None:
        """Record the time after an update."""
        self._last = time.perf_counter(), time.process_time()

    def figures(self) -> dict[str, float]:
        """Return the measurements."""
        wall_s, cpu_s = (last - began for last, began in zip(self._last, self._began, strict=True))
        return {
            "startup_s": self.startup_s,
            "startup_cpu_s": self.startup_cpu_s,
            "wall_s": wall_s,
            "cpu_s": cpu_s,
        }


def config_of(name: str, job: Mapping[str, Any], is_normalized: bool = False) -> dict[str, Any]:
    """Return the config of a job; ``is_normalized``: with running statistics."""
    env_num = job.get("env_num", 1)
    learn = {"batch_size": job["batch_size"]}
    if name == "sac":
        rates = [f"learning_rate_{part}" for part in ("q", "policy", "alpha")]
        learn |= dict.fromkeys(rates, job["learning_rate"])
    else:
        learn |= {"learning_rate": job["learning_rate"]}
    other: dict[str, Any] = {}
    policy = {
        "type": "dqn" if name == "pong" else name,
        "model": {"encoder_hidden_size_list": job["hidden"]},
        "learn": learn,
        "other": other,
        "eval": {"evaluator": {"eval_freq": None}},
        "normalize": {"obs": is_normalized, "reward": is_normalized},
    }
    if name == "ppo":
        learn |= {"epoch_per_collect": job["epochs"], "entropy_weight": 0.0}
        policy["collect"] = {"n_sample": env_num * job["rollout"]}
    else:
        learn["update_per_collect"] = job["gradient_steps"]
        policy["collect"] = {"n_sample": job["train_freq"]}
        other["replay_buffer"] = {
            "replay_buffer_size": job["buffer_size"],
            # Stable-Baselines3 begins after this number of env steps, not at it.
            "limiter": {"type": "min_size", "min_size": job["learning_starts"] + 1},
        }
    if "target_interval" in job:
        collects = job["target_interval"] // job["train_freq"]
        target_update_freq = collects * job["gradient_steps"]
        learn |= {"double": False, "target_update_freq": target_update_freq}
        other["eps"] = {"type": "linear", "start": 1.0, "end": 0.05, "decay": job["decay_steps"]}
    if name == "sac":
        policy["random_collect_size"] = job["learning_starts"]
    env = {
        "env_id": job["env_id"],
        "collector_env_num": env_num,
        "evaluator_env_num": min(10, job["episodes"]),
        "n_evaluator_episode": job["episodes"],
    }
    if name == "pong":
        other["replay_buffer"]["storage"] = {"type": "array", "next_of": "obs"}
        env |= {
            "env_id": f"ale_py:{job['env_id']}",
            "kwargs": {"frameskip": 1, "repeat_action_probability": 0.0},
            "wrappers": ["atari", {"type": "frame_stack", "stack_size": 4}],
        }
    return {
        "env": env,
        "env_manager": {"type": "in_process"},
        "policy": policy,
        "system": {"max_env_steps": job["env_steps"], "torch_threads": 1},
    }


def run_serial(
    name: str, job: Mapping[str, Any], seed: int, clock: Clock, is_normalized: bool = False
) -> dict[str, Any]:
    """Train in one thread; ``is_normalized`` as for ``config_of``."""
    import dingsdk
    from dingsdk.worker.learner.hooks import LearnerHook

    found: dict[str, Any] = {}

    class Start(LearnerHook):
        def __call__(self, engine: Any) -> None:
            clock.start()

    class Note(LearnerHook):
        def __call__(self, engine: Any) -> None:
            clock.note()

    class Count(LearnerHook):
        def __call__(self, engine: Any) -> None:
            state = engine.policy.state_dict()
            weights = [*state["model"].values(), *state.get("critic", {}).values()]
            found["parameters"] = sum(each.numel() for each in weights)

    with tempfile.TemporaryDirectory() as folder:
        hooks = [
            Start("start", 100, position="before_run"),
            Note("note", 100, position="after_iter"),
            Count("count", 100, position="after_run"),
        ]
        config = config_of(name, job, is_normalized)
        result = dingsdk.train(config, seed=seed, output=folder, callbacks=hooks)
    if is_normalized:
        del found["parameters"]  # the statistics are not trained
    return {**found, **clock.figures(), **counts(result)}


def run_parallel(
    transport: str, name: str, job: Mapping[str, Any], seed: int, spawned_at: float
) -> dict[str, Any]:
    """Train with a coordinator, collectors and a learner."""
    import dingsdk

    config = config_of(name, job)
    with tempfile.TemporaryDirectory() as folder:
        result = dingsdk.train(config, "parallel", transport, seed=seed, output=folder)
    around_s = time.time() - spawned_at - result.elapsed_s
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu_s = sum(each.ru_utime + each.ru_stime for each in used)
    return {"startup_s": around_s, "wall_s": result.elapsed_s, "cpu_s": cpu_s, **counts(result)}


def counts(result: Any) -> dict[str, Any]:
    """Return the compared fields of a result."""
    return {
        "env_steps": result.env_steps,
        "updates": result.train_iter,
        "return": result.last_return,
    }


def run_sb3(name: str, job: Mapping[str, Any], seed: int, clock: Clock) -> dict[str, Any]:
    """Train with Stable-Baselines3."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecFrameStack

    torch.set_num_threads(1)

    class Mark(BaseCallback):
        def _on_training_start(self) -> None:
            clock.start()

        def _on_step(self) -> bool:
            return True

        def _on_training_end(self) -> None:
            clock.note()

    def make_env(count: int) -> Any:
        if name != "pong":
            return make_vec_env(job["env_id"], count, seed=seed)
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        kwargs = {"frameskip": 1, "repeat_action_probability": 0.0}
        return VecFrameStack(make_atari_env(job["env_id"], count, seed, env_kwargs=kwargs), 4)

    given: dict[str, Any] = {
        "learning_rate": job["learning_rate"],
        "batch_size": job["batch_size"],
        "seed": seed,
        "device": "cpu",
    }
    if name != "pong":
        given["policy_kwargs"] = {"net_arch": job["hidden"]}
    if name == "ppo":
        given |= {"n_steps": job["rollout"], "n_epochs": job["epochs"]}
    else:
        names = ("buffer_size", "learning_starts", "train_freq", "gradient_steps")
        given |= {key: job[key] for key in names}
    if "target_interval" in job:
        given |= {
            "target_update_interval": job["target_interval"],
            "exploration_fraction": job["decay_steps"] / job["env_steps"],
            "exploration_final_eps": 0.05,
        }
    algorithm: Any = getattr(stable_baselines3, "DQN" if name == "pong" else name.upper())
    network = "CnnPolicy" if name == "pong" else "MlpPolicy"
    model = algorithm(network, make_env(job.get("env_num", 1)), **given)
    model.learn(job["env_steps"], callback=Mark())
    parts = {"dqn": ["q_net"], "pong": ["q_net"], "sac": ["actor", "critic"]}.get(name)
    trained = [model.policy] if parts is None else [getattr(model, part) for part in parts]
    minibatches = 1
    if name == "ppo":
        minibatches = job["env_num"] * job["rollout"] // job["batch_size"]
    mean, _ = evaluate_policy(model, make_env(min(10, job["episodes"])), job["episodes"])
    return {
        "parameters": sum(each.numel() for part in trained for each in part.parameters()),
        **clock.figures(),
        "env_steps": model.num_timesteps,
        "updates": model._n_updates * minibatches,
        "return": float(mean),
    }


def measure(contender: str, name: str, seed: int, env_steps: int | None) -> dict[str, Any]:
    """Run a contender in a new process; return its figures."""
    command = [sys.executable, __file__, "--run", contender, "--jobs", name]
    command += ["--first-seed", str(seed), "--spawned-at", repr(time.time())]
    if env_steps is not None:
        command += ["--env-steps", str(env_steps)]
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(contender: str, name: str, job: Mapping[str, Any], seed: int, spawned_at: float) -> None:
    """Run a contender in this process, check its work, and print its figures."""
    if contender in PARALLEL:
        found = run_parallel(contender, name, job, seed, spawned_at)
    else:
        given = name, job, seed, Clock(spawned_at)
        if contender == "sb3":
            found = run_sb3(*given)
        else:
            found = run_serial(*given, is_normalized=contender == NORMALIZED)
        # Our trajectory pieces end with an episode: one collect can be longer, the next shorter.
        is_in_reach = 0 <= found["env_steps"] - job["env_steps"] < job.get("train_freq", 1)
        if not is_in_reach or found["updates"] != updates_of(job):
            raise SystemExit(f"{contender} made {found}, not {updates_of(job):,} updates: {job}")
    sys.stdout.write(json.dumps(found) + "\n")


def updates_of(job: Mapping[str, Any]) -> int:
    """Return the number of updates of a job."""
    if "rollout" in job:
        rows = job["env_num"] * job["rollout"]
        collects = -(-job["env_steps"] // rows)
        return int(collects * job["epochs"] * (rows // job["batch_size"]))
    collects = (job["env_steps"] - job["learning_starts"]) // job["train_freq"]
    return int(collects * job["gradient_steps"])


def show(name: str, runs: Mapping[str, list[dict[str, Any]]]) -> None:
    """Print the medians of a job's runs and their ratios to the contender to compare with."""
    for contender, found in runs.items():
        peers = runs.get("serial" if contender == NORMALIZED else "sb3")
        line = f"{name:4} {contender:13}"
        line += f" return {statistics.mean(each['return'] for each in found):8.1f}"
        startup_s = statistics.median(each["startup_s"] for each in found)
        line += f" start-up {startup_s:5.1f} s"
        if peers is not None and contender != "sb3":
            for label, of in (
                ("env steps/s", lambda each: each["env_steps"] / each["wall_s"]),
                ("updates/s", lambda each: each["updates"] / each["wall_s"]),
                ("CPU seconds", lambda each: each["cpu_s"]),
            ):
                ratio = statistics.median(
                    of(ours) / of(theirs) for ours, theirs in zip(found, peers, strict=True)
                )
                line += f"  {label} {ratio:.2f} x"
        sys.stdout.write(f"{line}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    contenders = ("serial", "sb3", *PARALLEL, NORMALIZED)
    parser.add_argument("--contenders", nargs="+", choices=contenders, help="default: serial sb3")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--env-steps", type=int, help="instead of those of the jobs")
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    parser.add_argument("--run", choices=contenders, help=argparse.SUPPRESS)
    parser.add_argument("--spawned-at", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        job = {**JOBS[args.jobs[0]]}
        if args.env_steps is not None:
            job["env_steps"] = args.env_steps
        run(args.run, args.jobs[0], job, args.first_seed, args.spawned_at)
        return
    has_peer = find_spec("stable_baselines3") is not None
    chosen = args.contenders or ["serial", *(["sb3"] if has_peer else [])]
    results: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name in args.jobs:
        runs: dict[str, list[dict[str, Any]]] = {contender: [] for contender in chosen}
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            for contender in chosen if seed % 2 else chosen[::-1]:
                found = measure(contender, name, seed, args.env_steps)
                runs[contender].append(found)
                sys.stdout.write(
                    f"{name:4} seed {seed} {contender:13} {found['env_steps']:>7,} env steps, "
                    f"{found['updates']:>6,} updates in {found['wall_s']:6.1f} s, "
                    f"{found['cpu_s']:6.1f} CPU seconds: "
                    f"{found['env_steps'] / found['wall_s']:7,.0f} env steps/s, "
                    f"{found['updates'] / found['wall_s']:6,.0f} updates/s; "
                    f"return {found['return']:.1f}, start-up {found['startup_s']:.1f} s\n"
                )
                sys.stdout.flush()
        show(name, runs)
        results[name] = runs
        measured = [each for found in runs.values() for each in found]
        sizes = {each["parameters"] for each in measured if "parameters" in each}
        if len(sizes) > 1:
            raise SystemExit(f"{name}: networks of {sizes} parameters")
    if args.json is not None:
        args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
