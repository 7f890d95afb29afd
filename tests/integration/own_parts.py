"""Parts that a config of these tests may name: a policy of episodes and a random remover."""

from __future__ import annotations

from dingsdk.plugins import PluginManager

from ..unit.replay_buffer.random_remover import RandomRemover
from .test_ordered_buffers import EpisodePolicy

_BUFFER = "policy.other.replay_buffer"
EPISODES = (
    *("policy.type=episodes", "policy.nstep=1", f"{_BUFFER}.type=episode"),
    *(f"{_BUFFER}.replay_buffer_size=32", "policy.collect.collector.type=episode"),
    *("policy.collect.n_sample=null", "policy.collect.n_episode=8", "policy.learn.batch_size=16"),
)
RANDOM_REMOVER = (f"{_BUFFER}.remover.type=random", f"{_BUFFER}.replay_buffer_size=1024")


def manager_with_own_parts() -> PluginManager:
    """Return a plugin manager with both parts."""
    manager = PluginManager()
    manager.registry("policies").register("episodes", EpisodePolicy)
    manager.registry("removers").register("random", RandomRemover)
    return manager
