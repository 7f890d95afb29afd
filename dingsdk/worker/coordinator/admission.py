"""On-policy training in parallel mode: who may collect, and when the learner may train."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
        row_steps: Env steps of a row, >= 1; more than 1 for unrolls.
    """

    def __init__(
        self, n_sample: int, max_lag: float, least_steps: int = 1, row_steps: int = 1
    ) -> None:
        self.n_sample = n_sample
        self.max_lag = max_lag
        self._least_steps = least_steps
        self._row_steps = row_steps
        self._began_at = [0]
        """Train iteration at which each version began."""
        self._grants: dict[str, _Grant] = {}

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
        missing = (self.n_sample - rows_waiting) * self._row_steps
        if not self.max_lag:
            # With max_lag > 0, other collectors take over the share of a slow one.
            missing -= sum(each.outstanding for each in self._grants.values())
        if missing > 0 and not grant.outstanding:
            # ``used`` may exceed the last grant by up to one step of each of its envs.
            share = math.ceil(self.n_sample * self._row_steps / len(self._grants))
            more = min(missing, share)
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

    @property
    def is_any_outstanding(self) -> bool:
        """Whether any collector has steps left to take or to report."""
        return any(grant.outstanding for grant in self._grants.values())

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

    def trained(self, train_iter: int) -> None:
        """Begin the version that a training, which ended at ``train_iter``, has made."""
        self._began_at.append(train_iter)

    def state_dict(self) -> dict[str, Any]:
        """Return the versions; grants are not saved, as they end with their tasks."""
        return {"began_at": list(self._began_at)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``state_dict``."""
        self._began_at = [int(each) for each in state["began_at"]]
