"""RLlib's DQN with one env runner on the job ``dqn``; run by the interpreter that has RLlib.

    PYTHON benchmarks/_rllib.py JOB SEED

JOB is a job of ``train.py`` as JSON. For how RLlib is installed see requirements-rllib.txt.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import ray
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def train(job: dict[str, Any], seed: int) -> dict[str, int]:
    """Train for the job's env steps; mark the times of the first step and of the last update."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    every = job["train_freq"]
    config = (
        DQNConfig()
        .environment(job["env_id"])
        .debugging(seed=seed, log_level="ERROR")
        .env_runners(num_env_runners=1, num_envs_per_env_runner=1, rollout_fragment_length=every)
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=job["hidden"], head_fcnet_hiddens=[])
        )
        .training(
            lr=job["learning_rate"],
            gamma=0.99,
            train_batch_size_per_learner=job["batch_size"],
            num_steps_sampled_before_learning_starts=job["learning_starts"],
            target_network_update_freq=job["target_interval"],
            double_q=False,
            dueling=False,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": job["buffer_size"]},
            epsilon=[(0, 1.0), (job["decay_steps"], 0.05)],
            # RLlib counts its own process as one that collects, which it does not.
            training_intensity=job["gradient_steps"] * job["batch_size"] / every / 2,
        )
        .reporting(min_sample_timesteps_per_iteration=500, min_time_s_per_iteration=0)
    )
    algorithm = config.build_algo()
    marks = Path(os.environ["DINGSDK_BENCHMARK_MARKS"])
    (marks / "first").touch()
    steps = 0
    while steps < job["env_steps"]:
        result = algorithm.train()
        steps = int(result["env_runners"]["num_env_steps_sampled_lifetime"])
    (marks / "last").touch()
    trained = result["learners"]["default_policy"]["num_module_steps_trained_lifetime"]
    algorithm.stop()
    ray.shutdown()
    return {"env_steps": steps, "updates": int(trained) // job["batch_size"]}


if __name__ == "__main__":
    found = train(json.loads(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.write("\n" + json.dumps(found) + "\n")
