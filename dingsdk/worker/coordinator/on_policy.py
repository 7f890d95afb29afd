"""On-policy training in parallel mode: who may collect, and when the learner may train."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.worker.coordinator.experience import Experience, PolicyLag
from dingsdk.worker.coordinator.tasks import TaskState


@dataclass(slots=True)
class _Grant:
    """Rows that a collector may collect, and what it has reported.

    Attributes:
        admitted: Env steps that the task may have taken in all.
        used: Env steps that it reported.
        policy_iter: Train iteration of the policy that it acts with.
    """

    admitted: int = 0
    used: int = 0
    policy_iter: int = 0

    @property
    def outstanding(self) -> int:
        return max(0, self.admitted - self.used)


class Admission:
    """Admits env steps to collectors so that no sample is too old when it is trained on.

    Version k is the policy after k trainings. Each training takes all rows that are there. The
    next one needs ``n_sample`` rows, and waits for collectors that act with a version so old that
    their rows would come too late for it. Collectors get no more steps than it needs, so they are
    held back while the learner is slower; nothing that they collect is thrown away.

    With ``max_lag`` 0 collectors stop while the learner trains: a training has the rows of the
    newest version, all of them and no others. The caller locks.

    Args:
        n_sample: Rows that a training needs, >= 1.
        max_lag: Versions that a row may be behind the newest when it is trained on, >= 0.
        least_steps: Env steps that a collector is admitted at least, >= 1: it cuts trajectories at
            their end, and those that are shorter than a train sample give none.
    """

    def __init__(self, n_sample: int, max_lag: int, least_steps: int = 1) -> None:
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
        """Return how many env steps a collector's task may have taken in all.

        Args:
            task_id: The task.
            rows_waiting: Rows for the next training that are there.
            is_training: Whether the learner trains now.
        """
        grant = self._grants.setdefault(task_id, _Grant())
        if is_training and not self.max_lag:
            return grant.admitted
        missing = self.n_sample - rows_waiting
        if not self.max_lag:
            # With a lag to spare, a slow collector's share is not waited for.
            missing -= sum(each.outstanding for each in self._grants.values())
        if missing > 0 and not grant.outstanding:
            # What it took beyond its last grant, up to one step of all its envs, is reported.
            more = min(missing, math.ceil(self.n_sample / len(self._grants)))
            grant.admitted = max(grant.admitted, grant.used) + max(more, self._least_steps)
            grant.policy_iter = self.newest_iter
        return grant.admitted

    def report(self, task_id: str, used: int, policy_iter: int | None) -> None:
        """Take a collector's count of env steps, and the policy that it acts with."""
        grant = self._grants.get(task_id)
        if grant is not None:
            grant.used = max(grant.used, used)
            if policy_iter is not None:
                grant.policy_iter = max(grant.policy_iter, policy_iter)

    def has_outstanding(self, task_id: str) -> bool:
        """Whether a collector has steps left to take, or to report."""
        grant = self._grants.get(task_id)
        return grant is not None and grant.outstanding > 0

    @property
    def is_any_outstanding(self) -> bool:
        """Whether a collector has steps left to take, or to report."""
        return any(grant.outstanding for grant in self._grants.values())

    def expect(self, task_id: str) -> None:
        """Hold trainings back for a task of an earlier coordinator, until it is back or forgotten.

        It may have taken rows with any policy.
        """
        self._grants[task_id] = _Grant(admitted=1)

    def rejoin(self, task_id: str, admitted: int, used: int, policy_iter: int) -> None:
        """Take over what an earlier coordinator granted a collector, as this one knows it."""
        self._grants[task_id] = _Grant(admitted, used, policy_iter)

    def forget(self, task_id: str) -> None:
        """Take back what a task was granted: its worker is gone, or it has ended."""
        self._grants.pop(task_id, None)

    def may_train(self, rows_waiting: int) -> bool:
        """Whether there are enough rows, and none to come that the next training has to have."""
        oldest = self.newest + 1 - self.max_lag
        return rows_waiting >= self.n_sample and not any(
            grant.outstanding and self.version_of(grant.policy_iter) < oldest
            for grant in self._grants.values()
        )

    def begin(self, train_iter: int) -> None:
        """Note the iteration at which the learner asks for rows; a restarted one went back."""
        while len(self._began_at) > 1 and self._began_at[-1] > train_iter:
            self._began_at.pop()

    def trained(self, policy_iters: NDArray[np.int64], train_iter: int) -> None:
        """Count the lag of rows that were trained on, and begin a version.

        Args:
            policy_iters: int64[n], train iteration of the policy that collected each row.
            train_iter: The learner's after the training.
        """
        found, counts = np.unique(policy_iters, return_counts=True)
        for policy_iter, count in zip(found.tolist(), counts.tolist(), strict=True):
            self._lags[self.newest - self.version_of(policy_iter)] += count
        self._began_at.append(train_iter)

    def state_dict(self) -> dict[str, Any]:
        """Return versions and lags; grants end with the tasks that have them."""
        return {"began_at": list(self._began_at), "lags": list(self._lags.items())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state of ``state_dict``."""
        self._began_at = [int(each) for each in state["began_at"]]
        self._lags = Counter({int(lag): int(count) for lag, count in state["lags"]})

    @property
    def lag(self) -> PolicyLag | None:
        """The lag of all rows trained on; None before the first training."""
        total = self._lags.total()
        if not total:
            return None
        mean = sum(lag * count for lag, count in self._lags.items()) / total
        seen, p99 = 0, 0
        for p99 in sorted(self._lags):
            seen += self._lags[p99]
            if seen >= 0.99 * total:
                break
        return PolicyLag(mean, p99, max(self._lags))


class RowQueue:
    """The rows of payloads until they are trained on, in the order of their arrival.

    It stands where off-policy training has its replay buffer.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._batches: list[SampleBatch] = []
        self._drawn = 0
        """Batches, the oldest ones, that the learner trains on now."""
        self._returned = 0
        """Batches, the oldest ones, of which it is not known whether a lost learner has."""
        self._on_removed: list[Callable[[SampleBatch, str], None]] = []

    def columns_needed(self) -> tuple[str, ...]:
        """Return the columns that it looks at: none."""
        return ()

    def add_remove_listener(self, listener: Callable[[SampleBatch, str], None]) -> None:
        """Call ``listener(rows, reason)`` for rows that leave."""
        self._on_removed.append(listener)

    def count(self) -> int:
        """Rows held, those in training included."""
        return sum(map(len, self._batches))

    @property
    def waiting(self) -> int:
        """Rows for the next training."""
        return sum(map(len, self._batches[self._drawn :]))

    @property
    def is_training(self) -> bool:
        """Whether rows were drawn and have not left."""
        return self._drawn > 0

    def can_push(self, n: int) -> bool:
        """True: what was admitted has room."""
        return True

    def push(self, rows: SampleBatch, envstep: int) -> None:
        """Append rows."""
        self._batches.append(rows)

    def can_sample(self, size: int) -> bool:
        """Whether the next training may begin; ``size`` has no part in it."""
        return not self._drawn and self._admission.may_train(self.waiting)

    def sample(self, size: int, train_iter: int) -> SampleBatch | None:
        """Draw all rows; they stay until ``remove_drawn`` or ``put_back``."""
        if not self.can_sample(size):
            return None
        self._drawn, self._returned = len(self._batches), 0
        return SampleBatch.concat(self._batches)

    def remove_drawn(self, train_iter: int) -> None:
        """Remove the rows that were trained on."""
        drawn, self._batches = self._batches[: self._drawn], self._batches[self._drawn :]
        self._drawn = 0
        rows = SampleBatch.concat(drawn)
        self._admission.trained(np.asarray(rows.columns["collect_iter"]), train_iter)
        self._removed(rows, "trained")

    def put_back(self, *, is_known: bool) -> None:
        """Keep drawn rows for the next training.

        Args:
            is_known: Whether it is certain that this one did not take place.
        """
        self._drawn, self._returned = 0, 0 if is_known else self._drawn

    def remove_returned(self, train_iter: int) -> None:
        """Remove rows that were put back, as the training did take place."""
        if self._returned:
            self._drawn, self._returned = self._returned, 0
            self.remove_drawn(train_iter)

    def discard(self, lost: Mapping[int, str]) -> None:
        """Remove the rows of payloads that cannot be read, ``{number: reason}``, unless drawn."""
        kept, is_lost = self._batches[: self._drawn], list[bool]()
        for batch in self._batches[self._drawn :]:
            is_lost.append(int(batch.columns["payload"][0]) in lost)
            if is_lost[-1]:
                self._removed(batch, "lost")
            else:
                kept.append(batch)
        self._batches = kept
        self._returned -= sum(is_lost[: self._returned])

    def update(self, info: Any) -> None:
        """Do nothing: rows that are trained on once need no priority."""

    def clear(self) -> None:
        """Remove everything."""
        batches, self._batches, self._drawn, self._returned = self._batches, [], 0, 0
        for batch in batches:
            self._removed(batch, "cleared")

    def close(self) -> None:
        """Forget everything."""
        self._batches.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the rows as plain data, and the state of the admission."""
        batches = [batch.columns for batch in self._batches]
        counts = {"drawn": self._drawn, "returned": self._returned}
        return {"batches": batches, **counts, **self._admission.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state of ``state_dict``."""
        self._batches = [SampleBatch(columns) for columns in state["batches"]]
        self._drawn, self._returned = int(state["drawn"]), int(state.get("returned", 0))
        self._admission.load_state_dict(state)

    def _removed(self, rows: SampleBatch, reason: str) -> None:
        for listener in self._on_removed:
            listener(rows, reason)


class OnPolicyExperience(Experience):
    """What an on-policy learner trains on: each row once, all that are there at a time.

    Args:
        n_sample: Rows that a training needs, >= 1.
        max_lag: See ``Admission``.
        trainings: How many times the learner trains on the same rows, >= 1.
        least_steps: See ``Admission``.
    """

    buffer: RowQueue
    admission: Admission

    def __init__(
        self, n_sample: int, max_lag: int, trainings: int = 1, least_steps: int = 1
    ) -> None:
        self.trainings = trainings
        self.admission = Admission(n_sample, max_lag, least_steps)
        self._train_iter = 0
        super().__init__(RowQueue(self.admission))

    @property
    def collects(self) -> int:
        has_rows = self.buffer.waiting >= self.admission.n_sample
        return self.admission.newest + self.buffer.is_training + has_rows

    @property
    def is_in_collect(self) -> bool:
        waiting = self.buffer.waiting
        is_begun = waiting > 0 or self.admission.is_any_outstanding
        return is_begun and waiting < self.admission.n_sample

    def admit(self, state: TaskState) -> dict[str, int]:
        """Return the limits to send to a collector.

        ``admitted_steps`` is how many env steps it may take in all. ``policy_iter`` is the train
        iteration of the policy that it waits for first.
        """
        queue, admission = self.buffer, self.admission
        steps = admission.admit(state.task_id, queue.waiting, is_training=queue.is_training)
        return {"admitted_steps": steps, "policy_iter": admission.newest_iter}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "train_iter": self._train_iter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._train_iter = int(state["train_iter"])

    def lease(
        self, state: TaskState, batch_size: int, batches: int, train_iter: int
    ) -> dict[str, Any] | None:
        """Draw all rows; None while the training may not begin."""
        if train_iter >= self._train_iter + self.trainings:
            # Its learner saved what it had trained, and was lost before it could report that.
            self.buffer.remove_returned(train_iter)
        self.admission.begin(train_iter)
        leased = super().lease(state, batch_size, 1, train_iter)
        if leased is not None:
            leased["batches"] *= self.trainings
        return leased

    def settle(self, state: TaskState, info: Mapping[str, Any] | None = None) -> bool:
        """End the lease of a learner; rows that it did not train on wait for the next."""
        had_leases = super().settle(state, info)
        if had_leases and self.buffer.is_training:
            if info is not None and int(info["learner_step"]) > self._train_iter:
                self.buffer.remove_drawn(int(info["learner_step"]))
            else:
                self.buffer.put_back(is_known=info is not None)
        if self._lost:
            self.buffer.discard(dict(self._lost))
        return had_leases

    def _draw(self, batch_size: int, train_iter: int) -> dict[str, Any] | None:
        self._train_iter = train_iter
        sample = self.buffer.sample(batch_size, train_iter)
        return None if sample is None else dict(sample.columns)
