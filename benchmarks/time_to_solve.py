"""Time from the first env step to the stop value, serial compared with parallel, seed by seed.

    python benchmarks/time_to_solve.py --seeds 5
    python benchmarks/time_to_solve.py --seeds 5 --transports in_memory flask_fs
    /tmp/peers/bin/python benchmarks/time_to_solve.py --peer --config lunarlander-dqn --seeds 3

All contenders train a shipped example in one run, in turns, so that slow minutes of the machine
affect all. Prints every run, the medians of seconds and of env steps with their ratios to each
other, and the time that each run took before its first env step and after its end.

With ``--peer`` Stable-Baselines3 learns the same env, with rl-zoo3's parameters. The same code then
evaluates the peer and the serial contender every 1,000 env steps: 20 greedy episodes, whose time
does not count. The env is solved when the mean reaches ``GOALS``; an unsolved run counts as 10
minutes. Parallel contenders evaluate by themselves, within their time. For the peer see
requirements-peers.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import numpy as np
import torch

from dingsdk.config import load_config
from dingsdk.pipeline.train import train
from dingsdk.policy import create_policy

LOOK_ENV_STEPS, LOOK_EPISODES, CAP_S = 1_000, 20, 600.0
GOALS: Final = {"CartPole-v1": 475.0, "LunarLander-v3": 200.0, "Pendulum-v1": -200.0}
PEERS: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "cartpole-dqn": (
        "DQN",
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1_000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_steps": 0.16 * 5e4,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    "cartpole-ppo": (
        "PPO",
        {
            "n_envs": 8,
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
            "decay_steps": 1e5,
        },
    ),
    "lunarlander-dqn": (
        "DQN",
        {
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "gamma": 0.99,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_steps": 0.12 * 1e5,
            "exploration_final_eps": 0.1,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    "pendulum-sac": ("SAC", {"learning_rate": 1e-3}),
}
"""Algorithm and parameters of rl-zoo3 by example. ``exploration_steps`` and ``decay_steps`` are env
steps; learning rate and clip range fall to 0 within ``decay_steps``."""

Act = Callable[[Any], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--config", default="cartpole-dqn")
    parser.add_argument("--transports", nargs="*", default=["in_memory"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="A.B=C")
    parser.add_argument("--peer", action="store_true", help="beside Stable-Baselines3")
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    args = parser.parse_args()

    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {}
    steps: dict[str, list[int]] = {}
    rows = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for contender in ("serial", *(["sb3"] if args.peer else []), *args.transports):
            if args.peer and contender in ("serial", "sb3"):
                learn = learn_serially if contender == "serial" else learn_with_peer
                row = solve_under_looks(contender, learn, args.config, seed, args.sets)
            else:
                row = solve(contender, args.config, seed, args.sets)
            rows.append(row)
            cap = CAP_S if args.peer else float("inf")
            seconds.setdefault(contender, []).append(row["elapsed_s"] if row["reached"] else cap)
            steps.setdefault(contender, []).append(row["env_steps"])
            sys.stdout.write(
                f"seed {seed} {contender:<10} {'solved' if row['reached'] else row['reason']:<8} "
                f"{row['elapsed_s']:7.1f} s {row['env_steps']:>8,} env steps"
                + (
                    f" and {row['train_iter']:,} iterations, {row['around_s']:.1f} s around it"
                    if "around_s" in row
                    else ""
                )
                + "\n"
            )
            sys.stdout.flush()
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    env_steps = {name: statistics.median(taken) for name, taken in steps.items()}
    for name in medians:
        shown = (
            _ratios(name, medians, "7.1f", "s"),
            _ratios(name, env_steps, "9,.0f", "env steps"),
        )
        sys.stdout.write(f"median {name:<10} {'; '.join(shown)}\n")
    if args.json is not None:
        found = {"runs": rows, "medians": medians, "median_env_steps": env_steps}
        args.json.write_text(json.dumps(found))


def _ratios(name: str, medians: Mapping[str, float], shape: str, unit: str) -> str:
    own = medians[name]
    ratios = ", ".join(f"{own / other:.2f} x {of}" for of, other in medians.items())
    return f"{own:{shape}} {unit} = {ratios}"


def solve(contender: str, config: str, seed: int, sets: list[str]) -> dict[str, Any]:
    """Train once, in serial mode or in parallel over the transport named by ``contender``."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        if contender == "serial":
            result = train(config, sets=sets, seed=seed, output=folder)
        else:
            result = train(
                config, mode="parallel", transport=contender, sets=sets, seed=seed, output=folder
            )
        around_s = time.perf_counter() - began - result.elapsed_s
    return {
        "seed": seed,
        "contender": contender,
        "reached": result.reached,
        "reason": result.reason,
        "elapsed_s": result.elapsed_s,
        "around_s": around_s,
        "env_steps": result.env_steps,
        "train_iter": result.train_iter,
    }


class Over(Exception):  # noqa: N818 - no error: it ends a run
    """The run is solved, or its time is up."""


class Looks:
    """Evaluates a policy during training, and measures the time between evaluations.

    Args:
        config: Config of the example.
        seed: Seed of the evaluation episodes.
    """

    def __init__(self, config: Mapping[str, Any], seed: int) -> None:
        env = config["env"]
        self._goal = GOALS[env["env_id"]]
        self._envs = [gym.make(env["env_id"]) for _ in range(LOOK_EPISODES)]
        self._seed, self._next = seed, LOOK_ENV_STEPS
        self.elapsed_s, self._since = 0.0, time.perf_counter()
        self.reached, self.env_steps = False, 0

    def start(self) -> None:
        """Start the clock."""
        self._since = time.perf_counter()

    def look(self, env_steps: int, act: Act) -> None:
        """Evaluate if due; raise Over when the goal is reached or the time is up."""
        now = time.perf_counter()
        if env_steps < self._next and self.elapsed_s + now - self._since < CAP_S:
            return
        self.elapsed_s += now - self._since
        self.env_steps = env_steps
        self._next = (env_steps // LOOK_ENV_STEPS + 1) * LOOK_ENV_STEPS
        self.reached = self.elapsed_s <= CAP_S and self._mean_return(act) >= self._goal
        if self.reached or self.elapsed_s >= CAP_S:
            raise Over
        self.start()

    def _mean_return(self, act: Act) -> float:
        firsts = [env.reset(seed=self._seed + row)[0] for row, env in enumerate(self._envs)]
        obs, total = np.stack(firsts), 0.0
        alive = list(range(LOOK_EPISODES))
        while alive:
            still = []
            for row, action in zip(alive, act(obs[alive]), strict=True):
                obs[row], reward, terminated, truncated, _ = self._envs[row].step(action)
                total += float(reward)
                if not (terminated or truncated):
                    still.append(row)
            alive = still
        return total / LOOK_EPISODES


def solve_under_looks(
    contender: str, learn: Callable[..., None], config: str, seed: int, sets: list[str]
) -> dict[str, Any]:
    """Train a contender until it has solved the env or its time is up."""
    looks = Looks(load_config(config), 10_000 * (seed + 1))
    with contextlib.suppress(Over):
        learn(config, seed, sets, looks)
    return {
        "seed": seed,
        "contender": contender,
        "reached": looks.reached,
        "reason": "cap",
        "elapsed_s": looks.elapsed_s,
        "env_steps": looks.env_steps,
    }


def learn_serially(config: str, seed: int, sets: list[str], looks: Looks) -> None:
    """Train an example in serial mode."""
    from dingsdk.worker.learner.hooks import LearnerHook

    class Begin(LearnerHook):
        def __call__(self, engine: Any) -> None:
            looks.start()

    class Look(LearnerHook):
        policy: Any = None

        def __call__(self, engine: Any) -> None:
            looks.look(engine.collector_envstep, lambda obs: self.act(engine, obs))

        def act(self, engine: Any, obs: Any) -> Any:
            if self.policy is None:
                cfg = engine.policy.get_attribute("cfg")
                self.policy = create_policy(cfg, enable_field=["eval"]).eval_mode
            if len(obs) == LOOK_EPISODES:  # the first step
                self.policy.load_state_dict({"model": engine.policy.state_dict()["model"]})
            return self.policy.forward_batch(obs, range(len(obs)))["action"]

    never = ["policy.eval.evaluator.eval_freq=null", "system.max_env_steps=100000000"]
    hooks = (Begin("begin", 0, position="before_run"), Look("look", 0, position="after_iter"))
    with tempfile.TemporaryDirectory() as folder:
        train(config, sets=[*never, *sets], seed=seed, output=folder, callbacks=hooks)


def learn_with_peer(config: str, seed: int, sets: list[str], looks: Looks) -> None:
    """Train Stable-Baselines3 with rl-zoo3's parameters."""
    import stable_baselines3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    total = 10**8

    class Look(BaseCallback):
        def _on_training_start(self) -> None:
            looks.start()

        def _on_step(self) -> bool:
            model: Any = self.model
            looks.look(self.num_timesteps, lambda obs: model.predict(obs, deterministic=True)[0])
            return True

    name, given = PEERS[config]
    parameters = dict(given)
    if (steps := parameters.pop("exploration_steps", None)) is not None:
        parameters["exploration_fraction"] = steps / total
    if (steps := parameters.pop("decay_steps", None)) is not None:
        # A schedule gets the remaining share of the training.
        for key in ("learning_rate", "clip_range"):
            parameters[key] = lambda left, first=parameters[key]: (
                first * max(0.0, 1 - (1 - left) * total / steps)
            )
    env_id = load_config(config)["env"]["env_id"]
    env = make_vec_env(env_id, parameters.pop("n_envs", 1), seed=seed)
    algorithm: Any = getattr(stable_baselines3, name)
    model = algorithm("MlpPolicy", env, seed=seed, device="cpu", **parameters)
    model.learn(total, callback=Look())


if __name__ == "__main__":
    main()
