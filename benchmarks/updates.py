"""CPU time of one update of each policy, compared with Stable-Baselines3 and sb3-contrib.

The peers are left out if they are not installed.

    python benchmarks/updates.py [--only dqn sac ppo qrdqn td3] [--rounds N]

Both do the same work in one process with one torch thread, in turns: sample a batch, take the
gradient steps, update the targets. Networks, batches and learning rates are equal; ratios are
medians over the rounds. DQN: batch 64, 64-64 units, no double DQN, soft target updates. SAC:
batch 256, 256-256 units. PPO: an epoch over 2048 samples in minibatches of 64, 64-64 units. QR-DQN
of dingsdk-rl-zoo: as DQN, with 200 quantiles; the peer is sb3-contrib. TD3 of dingsdk-rl-zoo: as
SAC. Goals: DQN at most 0.6 times the time of the peer, SAC 0.7, PPO 0.8, the others 1. For the
peers see requirements-peers.txt.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from dingsdk.data import SampleBatch
from dingsdk.policy import create_policy
from dingsdk.worker import create_buffer

GOALS = {"dqn": 0.6, "sac": 0.7, "ppo": 0.8, "qrdqn": 1.0, "td3": 1.0}
ENVS = {
    **dict.fromkeys(("dqn", "ppo", "qrdqn"), "CartPole-v1"),
    **dict.fromkeys(("sac", "td3"), "Pendulum-v1"),
}
UPDATES = {"dqn": 50, "sac": 20, "ppo": 1, "qrdqn": 10, "td3": 20}
"""Updates per turn."""
BUFFER_ROWS, PPO_ROWS = 10_000, 2048
PEER_OPTIONS: Mapping[str, Any] = {"buffer_size": BUFFER_ROWS, "device": "cpu"}

Update = Callable[[], Any]


def dqn() -> Update:
    """Return a function that does one DQN update."""
    return off_policy("dqn", {"double": False, "target_theta": 0.005}, batch_size=64)


def sac() -> Update:
    """Return a function that does one SAC update."""
    return off_policy("sac", {"learning_rate_q": 1e-3}, batch_size=256)


def qrdqn() -> Update:
    """Return a function that does one QR-DQN update."""
    return off_policy("qrdqn", {"target_theta": 0.005, "grad_clip_norm": None}, batch_size=64)


def td3() -> Update:
    """Return a function that does one TD3 update."""
    rates = {"learning_rate_actor": 1e-3, "learning_rate_critic": 1e-3}
    return off_policy("td3", rates, batch_size=256)


def off_policy(kind: str, learning: dict[str, Any], batch_size: int) -> Update:
    """Return a function that does one update from a full buffer."""
    cfg = {"type": kind, **spaces(kind), "learn": learning}
    learn = create_policy(cfg, enable_field=["learn"], seed=0).learn_mode
    buffer = create_buffer({"type": "naive", "replay_buffer_size": BUFFER_ROWS})
    rows, count = transitions(kind, BUFFER_ROWS), iter(range(10**9))
    rows["discount"] = np.full(BUFFER_ROWS, 0.99, np.float32)
    buffer.push(SampleBatch(rows), cur_collector_envstep=0)
    return lambda: learn.forward(buffer.sample(batch_size, cur_learner_iter=next(count)))


def ppo() -> Update:
    """Return a function that does one PPO epoch."""
    learn = {"epoch_per_collect": 1, "batch_size": 64}
    cfg = {"type": "ppo", **spaces("ppo"), "learn": learn}
    policy = create_policy(cfg, enable_field=["learn", "collect"], seed=0)
    rows = transitions("ppo", PPO_ROWS)
    rows |= policy.collect_mode.forward_batch(rows["obs"], range(PPO_ROWS))
    samples = policy.collect_mode.make_samples(rows, np.array([PPO_ROWS]))
    return lambda: policy.learn_mode.forward(samples)


def peer_dqn() -> Update:
    """Return the same update of Stable-Baselines3."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.utils import polyak_update

    model: Any = DQN("MlpPolicy", gym.make(ENVS["dqn"]), buffer_size=BUFFER_ROWS, device="cpu")
    model._setup_learn(1)
    fill(model, transitions("dqn", BUFFER_ROWS))
    networks = [list(each.parameters()) for each in (model.q_net, model.q_net_target)]

    def update() -> None:
        model.train(1, 64)
        polyak_update(*networks, 0.005)

    return update


def peer_qrdqn() -> Update:
    """Return the same update of sb3-contrib."""
    from sb3_contrib import QRDQN
    from stable_baselines3.common.utils import polyak_update

    env = gym.make(ENVS["qrdqn"])
    model: Any = QRDQN("MlpPolicy", env, buffer_size=BUFFER_ROWS, learning_rate=1e-3, device="cpu")
    model._setup_learn(1)
    fill(model, transitions("qrdqn", BUFFER_ROWS))
    nets = [list(each.parameters()) for each in (model.quantile_net, model.quantile_net_target)]

    def update() -> None:
        model.train(1, 64)
        polyak_update(*nets, 0.005)

    return update


def peer_sac() -> Update:
    """Return the same update of Stable-Baselines3."""
    from stable_baselines3 import SAC

    return actor_critic(SAC("MlpPolicy", gym.make(ENVS["sac"]), **PEER_OPTIONS))


def peer_td3() -> Update:
    """Return the same update of Stable-Baselines3."""
    from stable_baselines3 import TD3

    sizes = {"net_arch": [256, 256]}
    return actor_critic(
        TD3("MlpPolicy", gym.make(ENVS["td3"]), policy_kwargs=sizes, **PEER_OPTIONS)
    )


def actor_critic(model: Any) -> Update:
    """Return an update of a model whose buffer is filled here."""
    model._setup_learn(1)
    rows = transitions("sac", BUFFER_ROWS)
    fill(model, {**rows, "action": rows["action"] / 2})
    return lambda: model.train(1, 256)


def peer_ppo() -> Update:
    """Return the same epoch with Stable-Baselines3."""
    from stable_baselines3 import PPO

    model: Any = PPO("MlpPolicy", gym.make(ENVS["ppo"]), n_epochs=1, ent_coef=0.01, device="cpu")
    model.learn(PPO_ROWS)  # fills its rollout buffer
    return model.train  # type: ignore[no-any-return]


def fill(model: Any, rows: Mapping[str, Any]) -> None:
    """Add transitions to the replay buffer of a Stable-Baselines3 model."""
    for row in range(BUFFER_ROWS):
        obs, after, action, reward, done = (
            rows[key][row : row + 1] for key in ("obs", "next_obs", "action", "reward", "done")
        )
        model.replay_buffer.add(obs, after, action, reward, done, [{}])


def spaces(name: str) -> dict[str, Any]:
    """Return the section ``model`` of a policy for its env."""
    env = gym.make(ENVS[name])
    from dingsdk.policy import get_policy_cls

    read: Any = get_policy_cls({"type": name})
    return {"model": read.model_from_spaces(env.observation_space, env.action_space)}


def transitions(name: str, count: int) -> dict[str, Any]:
    """Return random transitions."""
    env, random = gym.make(ENVS[name]), np.random.default_rng(0)
    size = env.observation_space.shape
    assert size is not None
    return {
        "obs": random.normal(size=(count, *size)).astype(np.float32),
        "next_obs": random.normal(size=(count, *size)).astype(np.float32),
        "action": (
            random.integers(0, 2, count)
            if name in ("dqn", "qrdqn")
            else random.uniform(-2, 2, (count, 1)).astype(np.float32)
        ),
        "reward": random.normal(size=count).astype(np.float32),
        "done": np.zeros(count, bool),
        "terminated": np.zeros(count, bool),
    }


OURS: Mapping[str, Callable[[], Update]] = {
    "dqn": dqn,
    "sac": sac,
    "ppo": ppo,
    "qrdqn": qrdqn,
    "td3": td3,
}
PEERS: Mapping[str, tuple[str, Callable[[], Update]]] = {
    "dqn": ("stable_baselines3", peer_dqn),
    "sac": ("stable_baselines3", peer_sac),
    "ppo": ("stable_baselines3", peer_ppo),
    "qrdqn": ("sb3_contrib", peer_qrdqn),
    "td3": ("stable_baselines3", peer_td3),
}


def cpu_seconds(update: Update, count: int) -> float:
    """Return the CPU seconds of one update."""
    started = time.process_time()
    for _ in range(count):
        update()
    return (time.process_time() - started) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", nargs="+", default=list(OURS), choices=list(OURS))
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.only:
        package, make_peer = PEERS[name]
        has_peer = find_spec(package) is not None
        makers = [OURS[name], *([make_peer] if has_peer else [])]
        updates = [make() for make in makers]
        seconds: list[list[float]] = [[] for _ in updates]
        for turn in range(args.rounds + 1):
            for update, found in zip(updates, seconds, strict=True):
                taken = cpu_seconds(update, UPDATES[name])
                if turn:  # the first one warms up
                    found.append(taken)
        medians = [statistics.median(found) * 1e3 for found in seconds]
        line = f"{name:5} {medians[0]:8.2f} ms"
        if has_peer:
            ratio = statistics.median(ours / peer for ours, peer in zip(*seconds, strict=True))
            line += f", {package} {medians[1]:8.2f} ms: {ratio:.2f} (goal {GOALS[name]})"
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
