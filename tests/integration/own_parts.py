"""Parts that a config of these tests may name: a policy, a remover and an evaluator."""

from __future__ import annotations

from typing import Any, ClassVar

from dingsdk.worker import ISerialEvaluator

from ..unit.replay_buffer.random_remover import RandomRemover
from .test_ordered_buffers import EpisodePolicy

_BUFFER = "policy.other.replay_buffer"
EPISODES = (
    *("policy.type=episodes", "policy.nstep=1", f"{_BUFFER}.type=episode"),
    *(f"{_BUFFER}.replay_buffer_size=32", "policy.collect.collector.type=episode"),
    *("policy.collect.n_sample=null", "policy.collect.n_episode=8", "policy.learn.batch_size=16"),
)
OWN_PARTS = {"policies": {"episodes": EpisodePolicy}, "removers": {"random": RandomRemover}}
RANDOM_REMOVER = (f"{_BUFFER}.remover.type=random", f"{_BUFFER}.replay_buffer_size=1024")


class FixedEvaluator(ISerialEvaluator):
    """Reports the same returns each time; it has no ``resumes`` attribute."""

    class Config(ISerialEvaluator.Config, frozen=True, kw_only=True):
        """Its section."""

        type: str = "fixed"
        value: float = 1.0

    _config_path: ClassVar[str] = "policy.eval.evaluator"

    def eval(self, *args: Any, **kwargs: Any) -> tuple[bool, dict[str, Any]]:
        assert self.env.env_num == 2
        return False, {"eval_episode_return": [self._cfg.value, 3 * self._cfg.value]}
