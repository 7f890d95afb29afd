"""Serial collection compared with a bare loop: CartPole-v1, 64-64 MLP, epsilon-greedy.

    python benchmarks/collect.py [--envs 8 64] [--seconds 0.2] [--repeats 25] [--peers]

The bare loop is what most people would write by hand: the same native vector env, the same
network, epsilon-greedy in numpy, five columns stored by index. It stores the rows in which
gymnasium only resets an env, but neither side counts them. ``ours`` is
``SampleSerialCollector.collect`` with the manager ``vector`` and the policy ``dqn``, from
``collect()`` to the SampleBatch. Both run in turns in one process; the ratio is the median
over the turns of (ours / bare). Every contender acts with a network of this shape and stores its
samples. Before the timing, the network calls of each are counted: one for each step of all its
envs, except rounds in which epsilon-greedy does not need the network.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows

from dingsdk.envs import create_env_manager, make_env_fns
from dingsdk.policy import create_policy
from dingsdk.policy.networks import QNetwork, frozen
from dingsdk.worker.collector.sample import SampleSerialCollector

EPS = 0.1
Runner = Callable[[float], float]
"""Runs for about the given seconds, returns env steps per second."""


def bare_loop(envs: int, rounds: int, forward: Callable[[Any], Any]) -> Runner:
    """Return a loop that steps and stores by index, and restarts at row 0 after ``rounds``."""
    env = gym.make_vec("CartPole-v1", num_envs=envs, vectorization_mode="vector_entry_point")
    rng = np.random.default_rng(0)
    obs_column = np.empty((rounds, envs, 4), np.float32)
    next_column = np.empty((rounds, envs, 4), np.float32)
    action_column = np.empty((rounds, envs), np.int64)
    reward_column = np.empty((rounds, envs), np.float32)
    done_column = np.empty((rounds, envs), np.bool_)
    obs, _ = env.reset(seed=0)

    def run(seconds: float) -> float:
        nonlocal obs
        steps = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            for row in range(rounds):
                action = forward(torch.from_numpy(obs)).numpy().argmax(1)
                action = np.where(rng.random(envs) < EPS, rng.integers(0, 2, envs), action)
                next_obs, reward, terminated, truncated, _ = env.step(action)
                obs_column[row] = obs
                action_column[row] = action
                reward_column[row] = reward
                next_column[row] = next_obs
                done_column[row] = terminated | truncated
                obs = next_obs
            # The step after an episode end is only a reset in gymnasium's env: no transition.
            steps += rounds * envs - int(np.count_nonzero(done_column))
        return steps / (time.perf_counter() - started)

    return run


def make_policy(n_sample: int) -> Any:
    """Return the policy of ``ours``."""
    return create_policy(
        {
            "type": "dqn",
            "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [64, 64]},
            "collect": {"n_sample": n_sample, "unroll_len": 1},
        },
        enable_field=["collect"],
        seed=0,
    )


def ours(envs: int, policy: Any, root: str) -> Runner:
    """Return a runner of the serial collector, with the policy's number of samples per call."""
    manager = create_env_manager({"type": "vector"}, make_env_fns({"env_id": "CartPole-v1"}, envs))
    manager.seed(0)
    collector = SampleSerialCollector(
        SampleSerialCollector.default_config(),
        env=manager,
        policy=policy.collect_mode,
        exp_name=root,
    )

    def run(seconds: float) -> float:
        before = collector.envstep
        started = time.perf_counter()
        train_iter = 0
        while time.perf_counter() - started < seconds:
            collector.collect(train_iter=train_iter, policy_kwargs={"eps": EPS})
            train_iter += 1
        return (collector.envstep - before) / (time.perf_counter() - started)

    return run


def same_network(policy: Any) -> QNetwork:
    """Return a network with the policy's weights, because episode lengths depend on them."""
    network = QNetwork(4, 2, (64, 64))
    network.load_state_dict(policy.collect_mode.state_dict()["model"])
    return network


def sequential_forward(network: QNetwork) -> Callable[[Any], Any]:
    """Return the network as torch modules, as most people would write the bare loop."""
    modules = torch.nn.Sequential(
        torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(),
        torch.nn.Linear(64, 2),
    )  # fmt: skip
    torch.nn.utils.vector_to_parameters(
        torch.nn.utils.parameters_to_vector(network.parameters()), modules.parameters()
    )
    return torch.inference_mode()(modules.forward)


def peers(envs: int, rounds: int) -> dict[str, Runner]:
    """Return the installed peers; print the names of missing ones."""
    found: dict[str, Runner] = {}
    for name, build in (("stable_baselines3", _stable_baselines3), ("tianshou", _tianshou)):
        try:
            found[name] = build(envs, rounds)
        except ImportError as error:
            _say(f"  {name}: skipped ({error}); pip install -r benchmarks/requirements-peers.txt")
    return found


def _stable_baselines3(envs: int, rounds: int) -> Runner:
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_vec_env

    # Configured to act with its network from the first step, without gradient steps.
    model = DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=envs),
        learning_starts=0,
        gradient_steps=0,
        buffer_size=50_000,
        train_freq=rounds,
        exploration_initial_eps=EPS,
        exploration_final_eps=EPS,
        policy_kwargs={"net_arch": [64, 64]},
        device="cpu",
    )

    def run(seconds: float) -> float:
        steps = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            model.learn(rounds * envs * 10, reset_num_timesteps=False)
            steps += rounds * envs * 10
        return steps / (time.perf_counter() - started)

    return run


def _tianshou(envs: int, rounds: int) -> Runner:
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.policy import DQNPolicy
    from tianshou.utils.net.common import Net

    network = Net(state_shape=4, action_shape=2, hidden_sizes=[64, 64])
    policy = DQNPolicy(
        model=network,
        optim=torch.optim.Adam(network.parameters()),
        action_space=gym.make("CartPole-v1").action_space,
    )
    policy.set_eps(EPS)
    collector = Collector(
        policy,
        DummyVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(envs)]),
        VectorReplayBuffer(50_000, envs),
        exploration_noise=True,
    )
    collector.reset()

    def run(seconds: float) -> float:
        steps = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            collector.collect(n_step=rounds * envs)
            steps += rounds * envs
        return steps / (time.perf_counter() - started)

    return run


def check_work(name: str, run: Runner, envs: int, seconds: float) -> None:
    """Raise RuntimeError unless a contender calls its network once per step of all its envs."""
    calls, linear = 0, F.linear

    def counted(inputs: Any, weight: Any, bias: Any = None) -> Any:
        nonlocal calls
        calls += weight.shape[1] == 4  # the first layer, whose input is observations
        return linear(inputs, weight, bias)

    F.linear = counted
    try:
        started = time.perf_counter()
        steps = run(seconds) * (time.perf_counter() - started)
    finally:
        F.linear = linear
    rounds = steps / envs
    # Stable-Baselines3 decides about exploration once for all envs, the others per env.
    if not (1 - 2 * EPS) * rounds <= calls <= 1.3 * rounds:
        raise RuntimeError(f"{name}: {calls} calls of the network in about {rounds:.0f} rounds")


def compare(envs: int, rounds: int, seconds: float, repeats: int, has_peers: bool) -> float:
    """Print the speeds for one setting; return the median ratio of ours to the bare loop."""
    _say(f"{envs} envs, {rounds * envs} samples a collect:")
    with tempfile.TemporaryDirectory() as root:
        policy = make_policy(rounds * envs)
        network = same_network(policy)
        runners: dict[str, Runner] = {
            "bare": bare_loop(envs, rounds, frozen(network).forward),
            "ours": ours(envs, policy, root),
            "bare, nn.Sequential": bare_loop(envs, rounds, sequential_forward(network)),
        }
        if has_peers:
            runners |= peers(envs, rounds)
        for name, run in runners.items():
            run(seconds / 5)
            check_work(name, run, envs, max(0.1, seconds / 5))
        speeds: dict[str, list[float]] = {name: [] for name in runners}
        for _ in range(repeats):
            for name, run in runners.items():
                speeds[name].append(run(seconds))
    ratios = {
        name: statistics.median(a / b for a, b in zip(found, speeds["bare"], strict=True))
        for name, found in speeds.items()
    }
    for name, found in speeds.items():
        _say(f"  {name:22s} {statistics.median(found):10,.0f} env steps/s   {ratios[name]:.2f}")
    return ratios["ours"]


def main() -> None:
    """Run the comparison from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--envs", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--rounds", type=int, nargs="+", default=[10, 64], help="rounds a collect")
    parser.add_argument("--seconds", type=float, default=0.2, help="per turn")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--peers", action="store_true", help="also peers that are installed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for envs in args.envs:
        for rounds in args.rounds:
            compare(envs, rounds, args.seconds, args.repeats, args.peers)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
