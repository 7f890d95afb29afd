"""The hooks by which a comm learner publishes its policy and reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dingsdk.worker.learner.hooks import LearnerHook


class SendPolicyHook(LearnerHook):
    """Publishes the policy every ``send_policy_freq`` iterations.

    The version is the number of updates that the weights have seen. (The reference stamps
    the weights of update k+1 with k, because after_iter hooks run before the counter moves.)
    """

    def __init__(
        self,
        name: str,
        priority: float = 100,
        *,
        position: str,
        ext_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, priority, position=position)
        self._freq = int((ext_args or {}).get("send_policy_freq", 1))

    def __call__(self, engine: Any) -> None:
        updates = engine.train_iter + (1 if self.position == "after_iter" else 0)
        if engine.rank == 0 and updates % self._freq == 0:
            engine.send_policy({"model": engine.policy.state_dict()["model"], "iter": updates})


class SendLearnInfoHook(LearnerHook):
    """Reports ``learn_info`` after each iteration and at the end."""

    def __call__(self, engine: Any) -> None:
        engine.send_learn_info(engine.learn_info)
