"""The payloads of an on-policy learner: which of them belong to which training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dingsdk.worker.coordinator.admission import Admission
from dingsdk.worker.coordinator.live_payloads import MOST_ANNOUNCED, LivePayloads, Payload
from dingsdk.worker.replay_buffer.home import TRAINED


class OnPolicyPayloads(LivePayloads):
    """The payloads of an on-policy learner: a training takes all that wait, each payload once.

    Args:
        admission: Says who may collect, and when a training may begin.
        trainings: How many times the learner trains on the same rows, >= 1.

    Attributes:
        began_at: The learner's train iteration when the newest training began.
    """

    admission: Admission

    def __init__(self, admission: Admission, trainings: int = 1) -> None:
        super().__init__(math.inf)
        self.admission = admission
        self._trainings = trainings
        self._drawn: dict[str, None] = {}
        """Payloads of the training under way."""
        self._returned: dict[str, None] = {}
        """Payloads that a lost learner may have trained on."""
        self._has_trained = False
        """Whether the home reports rows as trained on."""
        self._train_iter: int | None = None
        """The learner's iteration; None before its first report."""
        self.began_at = 0

    @property
    def waiting(self) -> int:
        """Rows for the next training."""
        return sum(each.rows for name, each in self._live.items() if name not in self._drawn)

    @property
    def is_training(self) -> bool:
        """Whether the learner trains."""
        return bool(self._drawn)

    @property
    def collects(self) -> int:  # type: ignore[override]
        has_rows = self.waiting >= self.admission.n_sample
        return self.admission.newest + self.is_training + has_rows

    @property
    def is_in_collect(self) -> bool:  # type: ignore[override]
        is_begun = self.waiting > 0 or self.admission.is_any_outstanding
        return is_begun and self.waiting < self.admission.n_sample

    @property
    def _has_news(self) -> bool:
        """Whether a training may begin now."""
        return self._train_iter is not None and self.can_train and not self.is_training

    @property
    def can_train(self) -> bool:
        return self.is_training or self.admission.may_train(self.waiting)

    def admit(self, task_id: str) -> dict[str, int]:
        """Return the limits to send to a collector, as ``StepLimits.of``."""
        admission = self.admission
        steps = admission.admit(task_id, self.waiting, is_training=self.is_training)
        return {"step_limit": steps, "policy_iter": admission.newest_iter}

    def take_news(self, limit: int = MOST_ANNOUNCED) -> list[dict[str, Any]]:
        """Return all announcements of a training that begins now, else an empty list."""
        if not self.has_news:
            return []
        self.begin_training(self._train_iter or 0)
        number = self.admission.newest + 1
        return [msgspec.to_builtins(self._announcement(name, number)) for name in self._drawn]

    def begin_training(self, train_iter: int) -> None:
        """Let the learner, which is at ``train_iter``, train on all live payloads."""
        self.began_at = train_iter
        self._drawn, self._returned = dict.fromkeys(self._live), {}

    def restart(self) -> None:
        """Keep the payloads of a training that a lost learner may have ended."""
        super().restart()
        self._returned |= self._drawn
        self._drawn, self._train_iter = {}, None

    def rejoin(self, known: Iterable[str]) -> None:
        """Record which payloads a learner trains on that has survived its coordinator."""
        self._drawn = dict.fromkeys(name for name in known if name in self._live)

    def settle(self, info: Mapping[str, Any]) -> bool:
        is_first, self._train_iter = self._train_iter is None, int(info["learner_step"])
        has_news = super().settle(info)
        if is_first:
            if self._train_iter >= self.began_at + self._trainings:
                # The learner saved a checkpoint after the training, and was lost before its report.
                for name in self._returned:
                    if (payload := self._live.get(name)) is not None:
                        self._leave(name, payload, TRAINED, payload.rows)
            self._returned = {}
        if self._has_trained:
            self.admission.trained(self._train_iter)
            self._has_trained = False
        if is_first:
            self.admission.begin(self._train_iter)
        return has_news or is_first

    def _leave(self, name: str, payload: Payload, reason: str, rows: int) -> None:
        super()._leave(name, payload, reason, rows)
        self._drawn.pop(name, None)
        self._has_trained |= reason == TRAINED

    def count(self) -> int:
        """Return the number of rows that were not trained on."""
        return self.counts().live

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "drawn": list(self._drawn),
            "returned": list(self._returned),
            "train_iter": self._train_iter,
            "began_at": self.began_at,
            "admission": self.admission.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._drawn = dict.fromkeys(map(str, state["drawn"]))
        self._returned = dict.fromkeys(map(str, state["returned"]))
        self._train_iter, self.began_at = state["train_iter"], int(state["began_at"])
        self.admission.load_state_dict(state["admission"])
