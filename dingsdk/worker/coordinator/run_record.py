"""The coordinator's state of a run, and how it is restored from the journal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dingsdk.errors import (
    CheckpointCorruptError,
    ConflictError,
    DingError,
    ProtocolError,
    SchemaMismatchError,
)
from dingsdk.worker.coordinator.journal import (
    Assigned,
    BufferClosed,
    BufferOpened,
    EvaluationRecorded,
    Fact,
    Progressed,
    Pushed,
    Queued,
    Recovered,
    Restarted,
    Settled,
    TaskEnded,
    TrainingBegan,
)
from dingsdk.worker.coordinator.live_payloads import LivePayloads
from dingsdk.worker.coordinator.on_policy import OnPolicyPayloads
from dingsdk.worker.coordinator.scheduler_state import SchedulerState
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.policy_lag import PolicyLag

_log = logging.getLogger(__name__)


class RunRecord:
    """Tasks, replay buffers, commander and counters of a run. The caller locks.

    Attributes:
        learner_tasks: How many learner tasks have finished their training.
        unheard: Learner tasks that have not reported their iteration since the journal was read:
            a learner that was killed goes back to its checkpoint.
        policy_lag: How old trained rows were; None if it is not measured.
    """

    def __init__(
        self,
        scheduler: SchedulerState,
        new_payloads: Callable[[TaskState], LivePayloads],
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._new_payloads = new_payloads
        self._clock = clock
        self._collecting_since: float | None = None
        self._iterations: dict[str, int] = {}  # of learner tasks that are out, or were given up
        self._ended_iter = 0
        self.learner_tasks = 0
        self.unheard: set[str] = set()
        self.policy_lag: PolicyLag | None = None
        self.evaluations: list[Mapping[str, Any]] = []

    @property
    def train_iter(self) -> int:
        """The learner's newest iteration; with several learners, the lowest of them."""
        out = (n for task_id, n in self._iterations.items() if self._scheduler.has_task(task_id))
        return min(out, default=max(self._ended_iter, *self._iterations.values(), 0))

    def note_iteration(self, task_id: str, train_iter: int) -> None:
        """Store the iteration of a learner task."""
        self._iterations[task_id] = train_iter
        self.unheard.discard(task_id)

    @property
    def is_train_iter_known(self) -> bool:
        """Whether all learners with unfinished tasks have reported their iteration."""
        return not any(map(self._scheduler.has_task, self.unheard))

    def end_learner(self, task_id: str) -> None:
        """Record that a learner task has ended, and is not tried again."""
        self._ended_iter = self._iterations.pop(task_id, self._ended_iter)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first collector got its task, with earlier coordinators; 0 before."""
        since = self._collecting_since
        return 0.0 if since is None else self._clock() - since

    def begin_collecting(self) -> None:
        """Start the clock, unless it is running."""
        if self._collecting_since is None:
            self._collecting_since = self._clock()

    def open_buffer(self, state: TaskState) -> bool:
        """Create the replay buffer of a learner's task; return False if it exists already."""
        buffers = self._scheduler.buffers
        if state.buffer_id in buffers:
            return False
        buffers[state.buffer_id] = self._new_payloads(state)
        self._iterations.setdefault(state.task_id, 0)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the whole record as plain data."""
        buffers = self._scheduler.buffers
        return {
            "iterations": dict(self._iterations),
            "ended_iter": self._ended_iter,
            "learner_tasks": self.learner_tasks,
            "elapsed_s": self.elapsed_s,
            "evaluations": [dict(each) for each in self.evaluations],
            "scheduler": self._scheduler.state_dict(),
            "buffers": {name: each.state_dict() for name, each in buffers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``state_dict`` into this new record.

        Raises:
            CheckpointCorruptError, CheckpointVersionError: it is not a state, or of another run.
        """
        try:
            self._iterations = {name: int(each) for name, each in state["iterations"].items()}
            self._ended_iter, self.learner_tasks = state["ended_iter"], state["learner_tasks"]
            self._set_elapsed(float(state["elapsed_s"]))
            self.evaluations = [dict(each) for each in state["evaluations"]]
            self._scheduler.load_state_dict(state["scheduler"])
            for buffer_id, content in state["buffers"].items():
                payloads = self._new_payloads(self._scheduler.learner_of(buffer_id))
                payloads.load_state_dict(content)
                self._scheduler.buffers[buffer_id] = payloads
        except DingError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointCorruptError(
                f"this is no state of a coordinator: {type(error).__name__}: {error}"
            ) from error

    def recover(self, recovered: Recovered) -> list[str]:
        """Restore the content of a journal; return ids of payloads to delete.

        Raises:
            CheckpointCorruptError, CheckpointVersionError: as ``load_state_dict``, or a fact does
                not fit the facts before it.
        """
        if recovered.state is not None:
            self.load_state_dict(recovered.state)
        scheduler = self._scheduler
        settled: dict[str, int] = {}
        closed: list[str] = []
        note, scheduler.note = scheduler.note, None
        for fact in recovered.facts:
            try:
                self._apply(fact)
            except (LookupError, ValueError) as error:
                raise CheckpointCorruptError(
                    f"the journal has a fact that does not fit those before it: {fact!r:.200}"
                ) from error
            if isinstance(fact, Settled):
                settled[fact.task_id] = fact.train_iter
            elif isinstance(fact, BufferClosed):
                closed.append(fact.buffer_id)
        for buffer_id in closed:
            # The coordinator may have died before it recorded the end of the task.
            scheduler.end_closed(buffer_id)
        scheduler.note = note
        if recovered.state is not None or recovered.facts:
            scheduler.commander.resume()
        for task_id, train_iter in settled.items():
            info = {"learner_step": train_iter, "learner_done": False, "priority_info": {}}
            scheduler.commander.update_learner_info(task_id, info)
        for state in scheduler.running.values():
            if not state.is_evaluation and state.env_steps:
                report = {"cur_step": state.env_steps + state.lost_env_steps}
                scheduler.commander.update_collector_info(state.task_id, report)
        self.note_policy_lag()
        self.unheard = set(self._iterations)
        return [name for each in scheduler.buffers.values() for name in each.take_garbage()]

    def _apply(self, fact: Fact) -> None:
        scheduler = self._scheduler
        if isinstance(fact, Queued | Assigned | TaskEnded):
            scheduler.apply(fact)
        elif isinstance(fact, BufferOpened):
            self.open_buffer(scheduler.running[fact.task_id])
        elif isinstance(fact, BufferClosed):
            self.learner_tasks = fact.learner_tasks
            self.end_learner(scheduler.learner_of(fact.buffer_id).task_id)
            scheduler.close_buffer(fact.buffer_id)
        elif isinstance(fact, EvaluationRecorded):
            self.evaluations.append(fact.evaluation)
        elif isinstance(fact, Progressed):
            self._set_elapsed(fact.elapsed_s)
            scheduler.running[fact.task_id].env_steps = fact.env_steps
        elif isinstance(fact, Pushed):
            payloads = scheduler.buffers[fact.buffer_id]
            try:
                payloads.push(msgspec.structs.asdict(fact), fact.env_steps)
            except (ConflictError, ProtocolError, SchemaMismatchError) as error:
                _log.debug("refused, as it was before: %s", error)
        elif isinstance(fact, Restarted | Settled | TrainingBegan):
            self._apply_training(fact)

    def _apply_training(self, fact: Restarted | Settled | TrainingBegan) -> None:
        payloads = self._scheduler.buffers[self._scheduler.running[fact.task_id].buffer_id]
        if isinstance(fact, Restarted):
            payloads.restart()
            return
        self.note_iteration(fact.task_id, fact.train_iter)
        if isinstance(fact, TrainingBegan):
            if not isinstance(payloads, OnPolicyPayloads):
                raise ValueError("the journal is of an on-policy run")
            payloads.begin_training(fact.train_iter)
        else:
            payloads.settle({**fact.info, "learner_step": fact.train_iter})
            payloads.recorded, payloads.is_unrecorded = payloads.confirmed, False

    def note_policy_lag(self) -> None:
        """Store the lag of trained rows; with several learners, the largest mean lag."""
        found = [each.lag for each in self._scheduler.buffers.values()]
        lags = [lag for lag in found if lag is not None]
        self.policy_lag = max(lags, key=lambda lag: lag.mean, default=self.policy_lag)

    def _set_elapsed(self, seconds: float) -> None:
        self._collecting_since = self._clock() - seconds if seconds > 0 else None
