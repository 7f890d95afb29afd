"""Settings that make a run of CartPole short."""

from __future__ import annotations

_SMALL = (
    "env.collector_env_num=4",
    "env.evaluator_env_num=2",
    "env.n_evaluator_episode=2",
    "policy.collect.n_sample=16",
    "policy.nstep=4",
    "policy.learn.batch_size=16",
    "policy.learn.update_per_collect=2",
    "policy.other.replay_buffer.replay_buffer_size=500",
)
QUICK = (
    *_SMALL,
    "env.collector_episode_num=2",
    "policy.learn.learner.train_iterations=200",
    "policy.eval.evaluator.eval_interval_s=0.2",
    "env.stop_value=1000",
)
"""A run that ends after 200 iterations. The stop value is out of reach (CartPole returns at most
500), so that a lucky evaluation cannot end the run earlier."""

ENDLESS = (
    *_SMALL,
    "env.collector_episode_num=50",
    "policy.learn.learner.hook.save_ckpt_after_iter=50",
    "policy.eval.evaluator.eval_freq=null",
)
"""A run in small steps that continues until it is stopped."""

SIXTY = (
    "policy.learn.learner.train_iterations=60",
    "policy.eval.evaluator.eval_freq=25",
    "env.stop_value=1000",
    "env.n_evaluator_episode=3",
    "env.evaluator_env_num=3",
    "env.collector_env_num=4",
    "policy.collect.n_sample=32",
    "policy.learn.update_per_collect=4",
    "policy.learn.batch_size=32",
)
"""A serial run of 60 iterations with a few evaluations."""
