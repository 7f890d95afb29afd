"""The hooks by which a comm learner publishes its policy, reports and saves checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dingsdk.worker.learner.checkpoint import save_pause
from dingsdk.worker.learner.hooks import LearnerHook, SaveCkptHook


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


def sending_hooks(send_policy_freq: int | None) -> list[LearnerHook]:
    """Return the hooks that make a learner send its policy and report.

    Args:
        send_policy_freq: Train iterations from one policy to the next; None for only the policies
            before the first and after the last iteration.
    """
    hooks: list[LearnerHook] = [
        SendPolicyHook("send_policy", position="before_run"),
        SendPolicyHook("send_policy", position="after_run"),
        SendLearnInfoHook("send_learn_info", 100, position="after_iter"),
        SendLearnInfoHook("send_learn_info", 100, position="after_run"),
    ]
    if send_policy_freq is None:
        return hooks
    freq = {"send_policy_freq": send_policy_freq}
    return [SendPolicyHook("send_policy", position="after_iter", ext_args=freq), *hooks]


class SaveAtIntervalsHook(SaveCkptHook):
    """Saves a checkpoint at intervals, from which a run continues whose learner was killed.

    Args:
        every_s: Seconds from one checkpoint to the next, or more if saving would take over 2 % of
            the time.
        clock: Returns the time in seconds.
    """

    def __init__(self, every_s: float, clock: Callable[[], float]) -> None:
        # After the hooks that publish the policy and report.
        super().__init__("save_at_intervals", 200, position="after_iter")
        self._every_s, self._clock = every_s, clock
        self._save_at = clock() + every_s

    def __call__(self, engine: Any) -> None:
        began = self._clock()
        if began >= self._save_at:
            super().__call__(engine)
            now = self._clock()
            self._save_at = now + save_pause(self._every_s, now - began)
