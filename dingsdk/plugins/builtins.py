"""What dingsdk itself provides. The switches that turn plugins off do not reach it."""

from __future__ import annotations

_WORKER = "dingsdk.worker"
_BUFFER = f"{_WORKER}.replay_buffer"

BUILTINS: tuple[tuple[str, str, str], ...] = (
    ("buffers", "naive", f"{_BUFFER}.buffers:NaiveReplayBuffer"),
    ("buffers", "elastic", f"{_BUFFER}.buffers:ElasticReplayBuffer"),
    ("buffers", "episode", f"{_BUFFER}.buffers:EpisodeReplayBuffer"),
    ("buffers", "sequence", f"{_BUFFER}.buffers:SequenceReplayBuffer"),
    ("buffers", "advanced", f"{_BUFFER}.advanced:AdvancedReplayBuffer"),
    ("buffers", "deque", f"{_BUFFER}.advanced:AdvancedReplayBuffer"),
    ("storages", "auto", f"{_BUFFER}.storage:AutoStorage"),
    ("storages", "array", f"{_BUFFER}.storage.arrays:ArrayStorage"),
    ("storages", "memmap", f"{_BUFFER}.storage.memmap:MemmapStorage"),
    ("storages", "object", f"{_BUFFER}.storage.objects:ObjectStorage"),
    ("samplers", "uniform", f"{_BUFFER}.sampler.uniform:UniformSampler"),
    ("samplers", "sequence", f"{_BUFFER}.sampler.sequence:SequenceSampler"),
    ("samplers", "proportional", f"{_BUFFER}.sampler.priority:ProportionalSampler"),
    ("samplers", "rank", f"{_BUFFER}.sampler.priority:RankSampler"),
    ("removers", "fifo", f"{_BUFFER}.remover:FifoRemover"),
    ("limiters", "min_size", f"{_BUFFER}.limiter:MinSizeLimiter"),
    ("limiters", "samples_per_insert", f"{_BUFFER}.limiter:SamplesPerInsertLimiter"),
    ("limiters", "push_sample_rate", f"{_BUFFER}.limiter:PushSampleRateLimiter"),
    ("collectors", "sample", f"{_WORKER}.collector.sample:SampleSerialCollector"),
    ("parallel_collectors", "zergling", f"{_WORKER}.collector.zergling:ZerglingParallelCollector"),
    ("comm_collectors", "base", f"{_WORKER}.comm.collector:BaseCommCollector"),
    ("comm_learners", "base", f"{_WORKER}.comm.learner:BaseCommLearner"),
    ("evaluators", "interaction", f"{_WORKER}.evaluator.interaction:InteractionSerialEvaluator"),
    ("learners", "base", f"{_WORKER}.learner.base:BaseLearner"),
    ("learner_hooks", "load_ckpt", f"{_WORKER}.learner.hooks:LoadCkptHook"),
    ("learner_hooks", "save_ckpt", f"{_WORKER}.learner.hooks:SaveCkptHook"),
    ("learner_hooks", "log_show", f"{_WORKER}.learner.hooks:LogShowHook"),
    ("learner_hooks", "log_reduce", f"{_WORKER}.learner.hooks:LogReduceHook"),
    ("commanders", "naive", f"{_WORKER}.commander.naive:NaiveCommander"),
    ("commanders", "solo", f"{_WORKER}.commander.solo:SoloCommander"),
    ("serial_commanders", "base", f"{_WORKER}.commander.serial:BaseSerialCommander"),
    ("policies", "dqn", "dingsdk.policy.dqn:DQNPolicy"),
    ("policies", "ppo", "dingsdk.policy.ppo:PPOPolicy"),
    ("env_managers", "in_process", "dingsdk.envs.in_process:InProcessEnvManager"),
    ("env_managers", "base", "dingsdk.envs.in_process:InProcessEnvManager"),
    ("env_managers", "vector", "dingsdk.envs.vector:VectorEnvManager"),
    ("roles", "learner", f"{_WORKER}.coordinator.roles:LearnerRole"),
    ("roles", "collector", f"{_WORKER}.coordinator.roles:CollectorRole"),
    ("commands", "train", "dingsdk.cli.train:train"),
    ("commands", "config", "dingsdk.cli.config:group"),
    ("commands", "coordinator", "dingsdk.cli.roles:coordinator"),
    ("commands", "eval", "dingsdk.cli.eval:evaluate"),
    ("commands", "plugins", "dingsdk.cli.plugins:plugins"),
)
"""Rows of (kind, type key, ``module:attribute``), imported when a config names the type."""
