"""On-policy training in parallel mode: who may collect, and when the learner may train."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dingsdk.worker.coordinator.live_payloads import LivePayloads, Payload
from dingsdk.worker.policy_lag import PolicyLag
from dingsdk.worker.replay_buffer.home import TRAINED


@dataclass(slots=True)
class _Grant:
    """The env steps that a collector may take, and its last report.

    Attributes:
        admitted: Env steps that the task may take in total.
        used: Env steps that it reported.
        policy_iter: Train iteration of the policy that it acts with, or of an older one.
        is_dropped: Whether it may act with a policy that its restarted learner does not have.
    """

    admitted: int = 0
    used: int = 0
    policy_iter: int = 0
    is_dropped: bool = False

    @property
    def outstanding(self) -> int:
        return max(0, self.admitted - self.used)

    def drop_after(self, train_iter: int) -> None:
        """Record that policies after ``train_iter`` are dropped; it loads an older one next."""
        self.policy_iter = min(self.policy_iter, train_iter)
        self.is_dropped = True


class Admission:
    """Limits the env steps of collectors so that no sample is too old when it is trained on.

    Version k is the policy after k trainings. Each training takes all rows in the queue. A training
    needs ``n_sample`` rows, and waits for collectors with a version so old that their rows would be
    too old for the training after it. Collectors get no more steps than the next training needs, so
    they wait while the learner is slower; none of their rows is thrown away.

    With ``max_lag`` 0 collectors stop while the learner trains: a training has all rows of the
    newest version and no others. The caller locks.

    Args:
        n_sample: Rows that a training needs, >= 1.
        max_lag: Versions that a row may be behind the newest when it is trained on, >= 0.
        least_steps: Smallest number of env steps to admit at once, >= 1. A collector cuts
            trajectories when its steps are used up, and a trajectory that is shorter than a train
            sample gives no sample.
    """

    def __init__(self, n_sample: int, max_lag: float, least_steps: int = 1) -> None:
        self.n_sample = n_sample
        self.max_lag = max_lag
        self._least_steps = least_steps
        self._began_at = [0]
        """Train iteration at which each version began."""
        self._grants: dict[str, _Grant] = {}
        self._lags: Counter[int] = Counter()

    def version_of(self, policy_iter: int) -> int:
        """Return the version of a policy by its train iteration."""
        return bisect.bisect_right(self._began_at, policy_iter) - 1

    @property
    def newest_iter(self) -> int:
        """Train iteration of the newest version."""
        return self._began_at[-1]

    @property
    def newest(self) -> int:
        """The newest version."""
        return len(self._began_at) - 1

    def admit(self, task_id: str, rows_waiting: int, *, is_training: bool) -> int:
        """Return how many env steps a collector's task may take in total.

        Args:
            task_id: The task.
            rows_waiting: Rows in the queue for the next training.
            is_training: Whether the learner trains now.
        """
        grant = self._grants.setdefault(task_id, _Grant())
        if is_training and not self.max_lag:
            # An earlier coordinator may have admitted steps for the policy after this training.
            grant.admitted = min(grant.admitted, grant.used)
            return grant.admitted
        missing = self.n_sample - rows_waiting
        if not self.max_lag:
            # With max_lag > 0, other collectors take over the share of a slow one.
            missing -= sum(each.outstanding for each in self._grants.values())
        if missing > 0 and not grant.outstanding:
            # ``used`` may exceed the last grant by up to one step of each of its envs.
            more = min(missing, math.ceil(self.n_sample / len(self._grants)))
            grant.admitted = max(grant.admitted, grant.used) + max(more, self._least_steps)
            grant.policy_iter = self.newest_iter
        return grant.admitted

    def report(self, task_id: str, used: int, policy_iter: int | None) -> None:
        """Store a collector's count of env steps, and the policy that it acts with."""
        grant = self._grants.get(task_id)
        if grant is not None:
            grant.used = max(grant.used, used)
            if policy_iter is not None and not (
                grant.is_dropped and policy_iter > self.newest_iter
            ):
                grant.policy_iter, grant.is_dropped = policy_iter, False

    def has_outstanding(self, task_id: str) -> bool:
        """Whether this collector has steps left to take or to report."""
        grant = self._grants.get(task_id)
        return grant is not None and grant.outstanding > 0

    @property
    def is_any_outstanding(self) -> bool:
        """Whether any collector has steps left to take or to report."""
        return any(grant.outstanding for grant in self._grants.values())

    def expect(self, task_id: str) -> None:
        """Delay trainings until a task of an earlier coordinator rejoins or is forgotten.

        Its collector may have collected rows with any policy.
        """
        self._grants[task_id] = _Grant(admitted=1)

    def rejoin(self, task_id: str, admitted: int, used: int, policy_iter: int) -> None:
        """Restore the grant that an earlier coordinator gave; the collector reports its values."""
        self._grants[task_id] = grant = _Grant(admitted, used, policy_iter)
        if policy_iter > self.newest_iter:
            grant.drop_after(self.newest_iter)

    def forget(self, task_id: str) -> None:
        """Withdraw the grant of a task that has ended or whose worker is gone."""
        self._grants.pop(task_id, None)

    def may_train(self, rows_waiting: int) -> bool:
        """Whether there are enough rows, and no collector whose rows the training must wait for."""
        oldest = self.newest + 1 - self.max_lag
        return rows_waiting >= self.n_sample and not any(
            grant.outstanding and self.version_of(grant.policy_iter) < oldest
            for grant in self._grants.values()
        )

    def begin(self, train_iter: int) -> None:
        """Drop versions after ``train_iter``: a restarted learner goes back to its checkpoint.

        Collectors that act with a dropped policy load an older one next.
        """
        newest_before = self.newest_iter
        while len(self._began_at) > 1 and self._began_at[-1] > train_iter:
            self._began_at.pop()
        for grant in self._grants.values():
            if max(newest_before, grant.policy_iter) > self.newest_iter:
                grant.drop_after(self.newest_iter)

    def trained(self, versions: Iterable[tuple[int, int]], train_iter: int) -> None:
        """Count the lag of the rows that were trained on, and begin a new version.

        Args:
            versions: (train iteration of a policy, rows that it collected).
            train_iter: The learner's train iteration after the training.
        """
        for policy_iter, count in versions:
            self._lags[self.newest - self.version_of(policy_iter)] += count
        self._began_at.append(train_iter)

    def state_dict(self) -> dict[str, Any]:
        """Return versions and lags; grants are not saved, as they end with their tasks."""
        return {"began_at": list(self._began_at), "lags": list(self._lags.items())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``state_dict``."""
        self._began_at = [int(each) for each in state["began_at"]]
        self._lags = Counter({int(lag): int(count) for lag, count in state["lags"]})

    @property
    def lag(self) -> PolicyLag | None:
        """The lag of all rows trained on; None before the first training."""
        return PolicyLag.of(self._lags)


class OnPolicyPayloads(LivePayloads):
    """The payloads of an on-policy learner: a training takes all that wait, each payload once.

    Args:
        n_sample: Rows that a training needs, >= 1.
        max_lag: See ``Admission``.
        trainings: How many times the learner trains on the same rows, >= 1.
        least_steps: See ``Admission``.
        note: Called with the learner's train iteration when a training begins.
    """

    admission: Admission

    def __init__(
        self,
        n_sample: int,
        max_lag: float,
        trainings: int = 1,
        least_steps: int = 1,
        note: Callable[[int], None] = lambda train_iter: None,
    ) -> None:
        super().__init__(math.inf)
        self.admission = Admission(n_sample, max_lag, least_steps)
        self._note_training = note
        self._trainings = trainings
        self._drawn: dict[str, None] = {}
        """Payloads of the training under way."""
        self._returned: dict[str, None] = {}
        """Payloads that a lost learner may have trained on."""
        self._trained: list[tuple[int, int]] = []
        """Versions of the rows that the home reports as trained on."""
        self._train_iter: int | None = None
        """The learner's iteration; None before its first report."""
        self._began_at = 0
        """Iteration at which the newest training began."""

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
    def has_news(self) -> bool:
        """Whether a training may begin now."""
        return self._train_iter is not None and self.can_train and not self.is_training

    @property
    def can_train(self) -> bool:
        return self.is_training or self.admission.may_train(self.waiting)

    def admit(self, task_id: str) -> dict[str, int]:
        """Return the limits to send to a collector.

        ``admitted_steps`` is how many env steps it may take in total. ``policy_iter`` is the train
        iteration of the policy that it must have before it takes them.
        """
        admission = self.admission
        steps = admission.admit(task_id, self.waiting, is_training=self.is_training)
        return {"admitted_steps": steps, "policy_iter": admission.newest_iter}

    def take_news(self) -> list[dict[str, Any]]:
        """Return the announcements of a training that begins now, else an empty list."""
        if not self.has_news:
            return []
        train_iter = self._train_iter or 0
        self._note_training(train_iter)
        self.begin_training(train_iter)
        number = self.admission.newest + 1
        return [msgspec.to_builtins(self._announcement(name, number)) for name in self._drawn]

    def begin_training(self, train_iter: int) -> None:
        """Let the learner, which is at ``train_iter``, train on all live payloads."""
        self._began_at = train_iter
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
        has_changed = super().settle(info)
        if is_first:
            if self._train_iter >= self._began_at + self._trainings:
                # The learner saved a checkpoint after the training, and was lost before its report.
                for name in self._returned:
                    if (payload := self._live.get(name)) is not None:
                        self._leave(name, payload, TRAINED, payload.rows)
            self._returned = {}
        if self._trained:
            self.admission.trained(self._trained, self._train_iter)
            self._trained = []
            self.lag = self.admission.lag
        if is_first:
            self.admission.begin(self._train_iter)
        return has_changed or is_first

    def _leave(self, name: str, payload: Payload, reason: str, rows: int) -> None:
        super()._leave(name, payload, reason, rows)
        self._drawn.pop(name, None)
        if reason == TRAINED:
            self._trained += payload.versions

    def count(self) -> int:
        """Return the number of rows that were not trained on."""
        return self.count_rows()

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "drawn": list(self._drawn),
            "returned": list(self._returned),
            "train_iter": self._train_iter,
            "began_at": self._began_at,
            "admission": self.admission.state_dict(),
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        self._drawn = dict.fromkeys(map(str, state["drawn"]))
        self._returned = dict.fromkeys(map(str, state["returned"]))
        self._train_iter, self._began_at = state["train_iter"], int(state["began_at"])
        self.admission.load_state_dict(state["admission"])
        self.lag = self.admission.lag
