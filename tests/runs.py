"""Settings of short runs, and run folders with untrained policies."""

from __future__ import annotations

from pathlib import Path

from dingsdk.config import save_config
from dingsdk.pipeline.run_folder import CHECKPOINT_FOLDER, CONFIG_NAME
from dingsdk.pipeline.train import compile_run
from dingsdk.policy import create_policy
from dingsdk.worker.learner.checkpoint import save_checkpoint

SMALL = (
    "env.collector_env_num=2",
    "env.evaluator_env_num=2",
    "env.n_evaluator_episode=2",
    "env.stop_value=1000",
    "policy.collect.n_sample=8",
    "policy.learn.batch_size=8",
    "policy.learn.update_per_collect=4",
)
"""Settings of a run of CartPole in small steps, without a goal that it could reach."""


def save_run(folder: Path, *sets: str, seed: int = 0) -> Path:
    """Write a CartPole run folder with two untrained policies: the best and the latest."""
    cfg = compile_run("cartpole-dqn", sets=[*sets, "policy.other.eps.decay=1000"])
    save_config(cfg, folder / CONFIG_NAME)
    for stem, iteration in (("ckpt_best", 7), ("iteration_9", 9)):
        policy = create_policy(cfg.policy, enable_field=["learn"], seed=seed + iteration)
        state = policy.learn_mode.state_dict()
        is_latest = stem != "ckpt_best"
        path = folder / CHECKPOINT_FOLDER
        save_checkpoint(path, stem, state, iteration=iteration, envstep=500, is_latest=is_latest)
    return folder
