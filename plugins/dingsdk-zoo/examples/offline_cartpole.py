"""Learn CartPole-v1 from recorded episodes, without a step of training in the env.

    python offline_cartpole.py bc|iql [FOLDER]

A rule that balances the pole records the episodes; in each of them another share of its actions is
replaced by random ones. With a folder, the samples are saved there, or loaded if they are there
already. It ends with the mean return of ten episodes; 475 is solved.
"""

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np

from dingsdk.envs import create_env_manager, make_env_fns
from dingsdk.policy import create_policy
from dingsdk.worker import BaseLearner, NaiveReplayBuffer, create_serial_evaluator


def record(env, random_share, rng):
    """Return the columns of one episode."""
    obs, _ = env.reset(seed=int(rng.integers(2**31)))
    is_done, rows = False, []
    while not is_done:
        is_random = rng.random() < random_share
        action = int(rng.integers(2)) if is_random else int(obs[2] + obs[3] > 0)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        is_done = terminated or truncated
        rows.append((obs, action, np.float32(reward), next_obs, terminated, is_done))
        obs = next_obs
    names = ("obs", "action", "reward", "next_obs", "terminated", "done")
    return {
        name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def fill(buffer, policy, episodes):
    """Push the samples of recorded episodes into a buffer."""
    env, rng = gym.make("CartPole-v1"), np.random.default_rng(0)
    for _ in range(episodes):
        columns = record(env, rng.uniform(0, 0.5), rng)
        buffer.push(policy.samples(columns, np.array([len(columns["done"])])), 0)


def main(kind, folder=None, episodes=50, iterations=4000):
    """Train and return the mean return of ten episodes."""
    env_fns = make_env_fns({"env_id": "CartPole-v1"}, 5)
    learn = {"learning_rate": 1e-3, "batch_size": 128}
    model = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [64, 64]}
    policy = create_policy({"type": kind, "model": model, "learn": learn}, seed=0)
    buffer = NaiveReplayBuffer({"replay_buffer_size": 50_000, "seed": 0})
    if folder is not None and Path(folder).exists():
        buffer.load_data(folder)
    else:
        # Rows of IQL have the columns of both algorithms.
        fill(buffer, create_policy({"type": "iql", "model": model}, seed=0), episodes)
        if folder is not None:
            buffer.save_data(folder)
    learner = BaseLearner({}, policy=policy.learn_mode)
    for _ in range(iterations):
        learner.train(buffer.sample(128, learner.train_iter))
    envs = create_env_manager({"type": "vector"}, env_fns)
    envs.seed(0)
    evaluator = create_serial_evaluator({"n_episode": 10}, env=envs, policy=policy.eval_mode)
    _, found = evaluator.eval(learner.save_checkpoint, learner.train_iter)
    for part in (learner, evaluator, buffer):
        part.close()
    return found["eval_episode_return_mean"]


if __name__ == "__main__":
    print(main(*sys.argv[1:3]))
