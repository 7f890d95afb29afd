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

    def trained(self, policy_iters: NDArray[np.int64], train_iter: int) -> None:
        """Count the lag of the rows that were trained on, and begin a new version.

        Args:
            policy_iters: int64[n], train iteration of the policy that collected each row.
            train_iter: The learner's train iteration after the training.
        """
        found, counts = np.unique(policy_iters, return_counts=True)
        for policy_iter, count in zip(found.tolist(), counts.tolist(), strict=True):
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
    """Keeps the rows of payloads until they are trained on, in the order of their arrival.

    It is used in place of a replay buffer.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._batches: list[SampleBatch] = []
        self._drawn = 0
        """Number of batches, from the oldest, that the learner trains on now."""
        self._returned = 0
        """Number of batches, from the oldest, that a lost learner may have trained on."""
        self._on_removed: list[Callable[[SampleBatch, str], None]] = []

    def columns_needed(self) -> tuple[str, ...]:
        """Return an empty tuple: the queue needs no columns of the samples."""
        return ()

    def add_remove_listener(self, listener: Callable[[SampleBatch, str], None]) -> None:
        """Call ``listener(rows, reason)`` when rows are removed."""
        self._on_removed.append(listener)

    def count(self) -> int:
        """Return the number of rows, including those in training."""
        return sum(map(len, self._batches))

    @property
    def waiting(self) -> int:
        """Rows for the next training."""
        return sum(map(len, self._batches[self._drawn :]))

    @property
    def is_training(self) -> bool:
        """Whether drawn rows are not removed or put back yet."""
        return self._drawn > 0

    def can_push(self, n: int) -> bool:
        """Return True: there is always room for admitted rows."""
        return True

    def push(self, rows: SampleBatch, envstep: int) -> None:
        """Append rows."""
        self._batches.append(rows)

    def can_sample(self, size: int) -> bool:
        """Return whether the next training may begin; ``size`` is ignored."""
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
            is_known: Whether it is certain that the learner did not train on them.
        """
        self._drawn, self._returned = 0, 0 if is_known else self._drawn

    def remove_returned(self, train_iter: int) -> None:
        """Remove rows that were put back although the learner had trained on them."""
        if self._returned:
            self._drawn, self._returned = self._returned, 0
            self.remove_drawn(train_iter)

    def discard(self, lost: Mapping[int, str]) -> None:
        """Remove rows of unreadable payloads, ``{number: reason}``, except drawn rows."""
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
        """Do nothing: rows that are trained on only once need no priority."""

    def clear(self) -> None:
        """Remove everything."""
        batches, self._batches, self._drawn, self._returned = self._batches, [], 0, 0
        for batch in batches:
            self._removed(batch, "cleared")

    def close(self) -> None:
        """Drop all rows without calling the listeners."""
        self._batches.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the rows as plain data, and the state of the admission."""
        batches = [batch.columns for batch in self._batches]
        counts = {"drawn": self._drawn, "returned": self._returned}
        return {"batches": batches, **counts, **self._admission.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``state_dict``."""
        self._batches = [SampleBatch(columns) for columns in state["batches"]]
        self._drawn, self._returned = int(state["drawn"]), int(state.get("returned", 0))
        self._admission.load_state_dict(state)

    def _removed(self, rows: SampleBatch, reason: str) -> None:
        for listener in self._on_removed:
            listener(rows, reason)


class OnPolicyExperience(Experience):
    """The samples of an on-policy learner; each training takes all rows, each row once.

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

        ``admitted_steps`` is how many env steps it may take in total. ``policy_iter`` is the train
        iteration of the policy that it must have before it takes them.
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
            # The learner saved a checkpoint after the training, and was lost before its report.
            self.buffer.remove_returned(train_iter)
        self.admission.begin(train_iter)
        leased = super().lease(state, batch_size, 1, train_iter)
        if leased is not None:
            leased["batches"] *= self.trainings
        return leased

    def settle(self, state: TaskState, info: Mapping[str, Any] | None = None) -> bool:
        """End the lease of a learner; rows that it did not train on wait for the next training."""
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
