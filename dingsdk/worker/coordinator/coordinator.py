"""The coordinator: assigns the commander's tasks to workers and follows each until it ends."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dingsdk.config import Configurable
from dingsdk.errors import ClosedError, TaskTimeoutError
from dingsdk.worker.comm.scheduler import Condition
from dingsdk.worker.comm.slave import RENEWALS
from dingsdk.worker.comm.transport import Transport, WorkerInfo
from dingsdk.worker.commander.base import NO_PROGRESS, PlayerProgress
from dingsdk.worker.coordinator.admission import Admission
from dingsdk.worker.coordinator.clock import RunClock
from dingsdk.worker.coordinator.dispatcher import Dispatcher
from dingsdk.worker.coordinator.journal import (
    EvaluationRecorded,
    Fact,
    Journal,
    Progressed,
    Pushed,
    Settled,
    TrainingBegan,
)
from dingsdk.worker.coordinator.keeper import Keeper
from dingsdk.worker.coordinator.live_payloads import LivePayloads, ServedPayloads, episodes_of
from dingsdk.worker.coordinator.on_policy import OnPolicyPayloads
from dingsdk.worker.coordinator.pace import Pace
from dingsdk.worker.coordinator.recovery import change_limit, restore_state, saved_state
from dingsdk.worker.coordinator.role import Role, create_roles
from dingsdk.worker.coordinator.run_end import RunEnd
from dingsdk.worker.coordinator.scheduler_state import SchedulerState
from dingsdk.worker.coordinator.section import CoordinatorSection
from dingsdk.worker.coordinator.step_limits import StepLimits
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.factory import create_parallel_commander
from dingsdk.worker.policy_lag import PolicyLag
from dingsdk.worker.sample_counts import SampleCounts

_log = logging.getLogger(__name__)

_OF_HOME = (
    *("reports", "is_idle", "trained_rows", "dataset_rows", "counts", "count", "figures"),
    "lag",
)
"""Keys of a learner's info that tell about the home of its buffer."""
TICK_S = 0.02
"""Longest pause between two checks for tasks to assign."""


@dataclass(frozen=True, slots=True)
class CoordinatorStatus:
    """A snapshot of the run, for progress displays."""

    env_steps: int
    train_iter: int
    """With several learners, the lowest train iteration."""
    buffer_count: int
    workers: Mapping[str, int]
    """Joined workers by role; 0 for a role without any."""
    episodes: int
    """Complete episodes of collector tasks that have ended."""
    samples: SampleCounts
    """Counts of the samples, by what happened to them."""
    held_up_by: str
    """Why workers wait for free storage; empty if they do not wait."""
    paces: Mapping[str, Pace]
    """How fast the workers with tasks are, by worker id."""
    policy_lag: PolicyLag | None = None
    """How old trained samples were, in versions of the policy, as a learner reported last."""
    leases: tuple[tuple[WorkerInfo, float], ...] = ()
    """Joined workers, with the seconds until each lease ends."""
    loss: float | None = None
    """The last ``total_loss`` that a learner reported."""
    players: Mapping[str, PlayerProgress] = field(default_factory=dict)
    """The progress of each player, if several train."""


class Coordinator(Configurable):
    """Requests tasks from the commander, assigns them to idle workers, and drives each in a job.

    It reaches workers and payloads only through the transport contract. One condition guards all
    its state, the commander and the buffers; it is not held while messages are sent.

    Args:
        cfg: The compiled config; its own section is ``cfg.system.coordinator``.
        on_collecting: Called once, when the first collector has its task.
        on_collected: Called with the finish info of each collecting task; the info has ``player``
            if the task belongs to another player than the first.
        on_evaluated: Called with (finish info, policy state or None) after each evaluation task,
            before the commander judges it; the info has ``env_steps`` at the start of the task.
        journal: Stores the state of the run, and may hold the state of an earlier coordinator.
        rejoin_s: Seconds that workers of the earlier coordinator may take to join; after that,
            their tasks are given to other workers.
        begins_at: Progress of the checkpoint that the learners load.
        tick_s: Seconds between two requests for tasks while nothing else happens.
    """

    Config: ClassVar[type[CoordinatorSection]] = CoordinatorSection

    def __init__(
        self,
        cfg: Mapping[str, Any],
        transport: Transport,
        *,
        on_collecting: Callable[[], None] | None = None,
        on_collected: Callable[[Mapping[str, Any]], None] = lambda finished: None,
        on_evaluated: Callable[[Mapping[str, Any], Mapping[str, Any] | None], None] | None = None,
        journal: Journal | None = None,
        rejoin_s: float = 0.0,
        begins_at: PlayerProgress = NO_PROGRESS,
        clock: Callable[[], float] | None = None,
        tick_s: float = TICK_S,
    ) -> None:
        self._cfg = cfg
        self.cfg: CoordinatorSection = self.read(cfg["system"].get("coordinator") or {})
        self.scheduler = transport.scheduler
        self.clock = clock = clock or self.scheduler.clock
        self._is_served = _is_served(cfg)
        self.condition: Condition = self.scheduler.condition()
        """Guards the coordinator's state; its waiters are notified at every change."""
        self.data_store = transport.data_store()
        self.policy_store = transport.policy_store()
        self._on_collecting = on_collecting
        self._on_collected, self._on_evaluated = on_collected, on_evaluated
        self.roles: Mapping[str, Role] = create_roles(cfg)
        commander = create_parallel_commander(cfg)
        commander.policy_store = self.policy_store
        commander.begins_at = begins_at
        self._policy_num = type(commander).policy_num(cfg)
        # Renewals come more often than this.
        renewal_s = self.cfg.lease_s / RENEWALS
        self.state = SchedulerState(
            self.roles,
            commander,
            self.cfg,
            RunClock(clock, renewal_s),
            self._new_payloads,
            begins_at.env_steps * self._policy_num,
        )
        """Tasks, workers, buffers and counts; guarded by ``condition``."""
        close_s = self.cfg.answer_timeout_s
        self.end = RunEnd(self.state, self.condition, cfg, close_s, self._policy_num)
        """When the run is over and its tasks end."""
        self.limits = StepLimits(self.state, cfg)
        """How many env steps each collector may take; guarded by ``condition``."""
        self.keeper = Keeper(journal, self.state, clock, renewal_s)
        """Keeps the journal up to date; guarded by ``condition``."""
        if journal is not None:
            self.state.note = self._note_task
        self.dispatcher = Dispatcher(self, transport, tick_s)
        """Watches workers, gives tasks to idle ones, and runs the drivers of tasks."""
        self.master = self.dispatcher.master
        self._rejoin_s = rejoin_s
        self._loss: float | None = None
        self._policy_lag: PolicyLag | None = None
        self._is_started = False

    def start(self) -> str:
        """Accept workers and begin; return the address that workers connect to.

        Raises:
            CheckpointCorruptError, CheckpointVersionError: the journal cannot be used.
            RunFolderError, StorageFullError: the journal cannot be written.
            DingError: the transport cannot be opened.
        """
        address = self._recover()
        self._is_started = True
        self.dispatcher.start()
        return address

    def close(self, timeout_s: float = 10.0) -> list[str]:
        """End every task normally, then close the connections; idempotent, a no-op before start.

        Returns:
            The names of the jobs that did not end in time.
        """
        if self.end.is_closed or not self._is_started:
            return []
        self.end.is_closed = True
        stuck = self.dispatcher.close(timeout_s)
        with self.condition:
            for buffer_id in list(self.state.buffers):
                self.state.close_buffer(buffer_id)
        return stuck

    @property
    def system_shutdown_flag(self) -> bool:
        """Whether the run is over by its own rules: stop value reached, or training finished."""
        return self.end.is_over

    @property
    def is_ending(self) -> bool:
        """Whether no more tasks are started and training tasks end now."""
        return self.end.is_near  # read by every driver at each step

    def must_end(self, state: TaskState) -> bool:
        """Return whether to close the task now; an evaluation may outlive the training."""
        return self.end.must_end(state)

    def status(self) -> CoordinatorStatus:
        """Return the state of the run, for progress displays and logs."""
        with self.condition:
            now = self.state
            return CoordinatorStatus(
                env_steps=now.env_steps,
                train_iter=now.train_iter,
                buffer_count=sum(each.count() for each in now.buffers.values()),
                workers=now.pool.counts(),
                episodes=now.totals.episodes,
                samples=now.samples(),
                held_up_by=now.outage.text,
                paces=now.pace.paces(),
                policy_lag=self._policy_lag,
                leases=tuple(now.pool.leases()),
                loss=self._loss,
                players=now.commander.players(),
            )

    def validate_state(self) -> None:
        """Raise SamplesLostError unless every acknowledged sample is accounted for."""
        with self.condition:
            for payloads in self.state.buffers.values():
                payloads.recounted().check()
            self.state.samples().check()

    def info(self, text: str) -> None:
        """Log a line."""
        _log.info("%s", text)

    def error(self, text: str) -> None:
        """Log an error."""
        _log.error("%s", text)

    def state_dict(self) -> dict[str, Any]:
        """Return tasks, live payloads, commander and counters as plain data."""
        with self.condition:
            return saved_state(self.state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``state_dict``; call before ``start``.

        Raises:
            CheckpointCorruptError: it is not a state, or of another run.
        """
        with self.condition:
            restore_state(self.state, state)

    def note_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """Store an evaluation (plain data), also for a coordinator that resumes this run."""
        with self.condition:
            self.state.totals.evaluations.append(dict(evaluation))
            self.keeper.note(EvaluationRecorded(dict(evaluation)))

    def _note_task(self, fact: Fact) -> None:
        # A resumed run continues the tasks that ended only because the run did.
        if not self.is_ending:
            self.keeper.note(fact)

    def _recover(self) -> str:
        """Restore the run from the journal, if it has one, and open the transport.

        Nothing is removed before both have worked.
        """
        with self.condition:  # a worker that joins waits
            garbage = self.keeper.recover()
            change_limit(self.state, self._cfg["policy"]["learn"]["learner"])
            self.dispatcher.orphans.wait(self.clock() + self._rejoin_s)
            address = self.master.start()
            self.data_store.delete(garbage)
            if not self._rejoin_s:
                # Learners go back to their checkpoints. A store keeps its newest version, so
                # collectors and the last evaluation would use weights that are lost.
                for learner in map(self.state.learner_of, self.state.buffers):
                    self.policy_store.discard(str(learner.task["policy_id"]))
            self.keeper.save_state()  # it includes what was decided here
        return address

    # Called by the drivers of tasks, each in its own job, without holding the condition, unless the
    # docstring says otherwise. So are `is_ending` and `must_end`.
    def ask(
        self, state: TaskState, data: Mapping[str, Any], timeout_key: str = "answer_timeout_s"
    ) -> Mapping[str, Any]:
        """Send a message to the task's worker and return its answer.

        Args:
            data: The message; its ``name`` selects the worker's function.
            timeout_key: Key of ``system.coordinator`` with the longest wait.

        Raises:
            TaskFailedError: the worker's code raised.
            WorkerLostError: the worker is lost.
            TaskTimeoutError: there was no answer in time.
        """
        assert state.worker is not None  # assigned before it is driven
        worker, timeout_s = state.worker, float(getattr(self.cfg, timeout_key))
        try:
            return self.master.ask(worker.worker_id, data, timeout_s, worker.incarnation)
        except TaskTimeoutError as error:
            raise TaskTimeoutError(
                f"{error}, the limit of system.coordinator.{timeout_key}", **error.facts
            ) from error

    def _new_payloads(self, learner: TaskState) -> LivePayloads:
        made = _empty_payloads(self._cfg, getattr(self.state.commander, "max_players", 1))
        made.is_behind = lambda: self.keeper.is_behind
        return made

    def deal_with_task_started(self, state: TaskState) -> None:
        """Record that the worker is ready to work on the task."""
        with self.condition:
            self.state.begin(state)

    def deal_with_collecting(self) -> None:
        """Record that a collector steps its envs; the first call starts the clock of the run."""
        with self.condition:
            first, self._on_collecting = self._on_collecting, None
            self.state.clock.begin()
        if first is not None:
            first()

    def deal_with_storage(self, state: TaskState, held_up_by: str) -> None:
        """Store why a worker waits for free storage; empty if it does not wait."""
        if held_up_by or self.state.outage.text:
            with self.condition:
                self.state.outage.note(state.task_id, held_up_by)

    def deal_with_collector_send_data(
        self, task_id: str, buffer_id: str, data_id: str, data: Mapping[str, Any]
    ) -> bool:
        """Acknowledge a payload; False if the buffer's limiter has no room for it now.

        A payload of an unknown task or a closed buffer is dropped, and so is one that is missing.

        Args:
            data: The announcement of the payload.
        """
        meta = {**data, "data_id": data_id}
        is_stored = self._is_served or self.data_store.has(data_id)
        why, garbage, level = "", list[str](), logging.ERROR
        with self.condition:
            state, payloads = self.state.running.get(task_id), self.state.buffers.get(buffer_id)
            if state is None or payloads is None:
                why = f"is dropped: task {task_id} or buffer {buffer_id} has ended"
                garbage = [data_id] if state is not None else []
            elif not is_stored:
                # Unless it is reported again, after all its rows have left.
                why = "" if payloads.knows(data_id) else "vanished before it was acknowledged"
                level = logging.WARNING
            elif not self._may_push(payloads, state, meta):
                return False
            else:
                payloads.push(meta, self.state.env_steps)
                self.state.outage.note_progress()
                garbage = payloads.take_garbage()
            if state is not None:
                rows = state.waiting.pop(data_id, 0)
                self.state.totals.unacknowledged_rows += rows if why else 0
            self.condition.notify_all()
        if why:
            _log.log(level, "payload %s %s", data_id, why)
        if garbage:
            self.data_store.delete(garbage)
        return True

    def deal_with_collector_judge_finish(self, task_id: str, data: Mapping[str, Any]) -> bool:
        """Process a progress report; return whether the collector is done."""
        with self.condition:
            state = self.state.running.get(task_id)
            if state is None:
                return False
            payloads = self.state.payloads_of(state)
            admission = None if payloads is None else payloads.admission
            if admission is not None and "delivered_steps" in data:
                steps, policy_iter = int(data["delivered_steps"]), int(data["policy_iter"])
                admission.report(task_id, steps, policy_iter)
            before = state.env_steps
            is_done = self.state.progress(state, data)
            if state.env_steps > before:
                elapsed_s = self.state.clock.elapsed_s
                self.keeper.note(Progressed(task_id, state.env_steps, elapsed_s))
            self.condition.notify_all()
            return is_done

    def _may_push(self, payloads: LivePayloads, state: TaskState, meta: Mapping[str, Any]) -> bool:
        """Record in the journal that a payload is acknowledged; False if there is no room."""
        data_id, rows = str(meta["data_id"]), int(meta["rows"])
        if not payloads.can_push(rows):
            return False
        if self._is_served or self.state.note is None:  # without a journal
            return True
        if payloads.knows(data_id):
            return not self.keeper.is_behind
        facts = int(meta["policy_iter"]), self.state.env_steps, meta.get("digest")
        fact = Pushed(state.buffer_id, data_id, rows, *facts, episodes_of(meta))
        return self.keeper.acknowledge(fact)

    def deal_with_collector_finish_task(self, task_id: str, finished: Mapping[str, Any]) -> None:
        """Process the result of a collector task; that of an unknown task is dropped.

        An evaluation that was cut off has no result: only its short episodes had ended.
        """
        state = self.state.running.get(task_id)
        if state is None:
            return
        if state.player is not None:
            finished = {**finished, "player": state.player}
        policy_id = finished.get("policy_id")
        is_cut_off = state.is_evaluation and not finished.get("collector_done", True)
        if state.is_evaluation and self._on_evaluated is not None and not is_cut_off:
            newest = self.policy_store.newest(policy_id) if policy_id else None
            # Other workers have collected during the evaluation.
            found = {**finished, "env_steps": state.run_env_steps}
            self._on_evaluated(found, newest[1] if newest else None)
        if policy_id:
            self.policy_store.discard(policy_id)
        with self.condition:
            steps = int(finished.get("step_count", 0))
            if not state.is_evaluation and steps > state.env_steps:
                self.keeper.note(Progressed(state.task_id, steps, self.state.clock.elapsed_s))
            if is_cut_off:
                self.state.notify_fail(state)
            elif self.state.finish_collector(state, finished):
                self.end.reach_goal()
        if not state.is_evaluation:
            self._on_collected(finished)

    def deal_with_learner_get_data(
        self, task_id: str, buffer_id: str, batch_size: int, cur_learner_iter: int
    ) -> list[dict[str, Any]] | None:
        """Return announcements that the home of a buffer has not had, in order of arrival.

        Differs from the reference, which returns the metadata of a batch that it draws.

        Args:
            batch_size: Most announcements to return. A training of an on-policy learner is
                announced as a whole.
            cur_learner_iter: The learner's iteration.

        Returns:
            None if the buffer is closed, or there is nothing new.

        Raises:
            ClosedError: there is no such learner task.
        """
        with self.condition:
            self._learner(task_id)
            payloads = self.state.buffers.get(buffer_id)
            if payloads is None:
                return None
            news = payloads.take_news(batch_size)
            if news and isinstance(payloads, OnPolicyPayloads):
                self.keeper.note(TrainingBegan(task_id, payloads.began_at))
                self.condition.notify_all()  # collectors may collect for the next training
            return news or None

    def deal_with_learner_send_info(
        self, task_id: str, buffer_id: str, info: Mapping[str, Any]
    ) -> None:
        """Take the learner's progress, and what its home has inserted and no longer needs.

        It is dropped if the buffer is closed.

        Raises:
            ClosedError: there is no such learner task.
        """
        with self.condition:
            state, payloads = self._learner(task_id), self.state.buffers.get(buffer_id)
            if payloads is None:
                return
            train_iter = int(info["learner_step"])
            state.progress = train_iter
            self._loss = info.get("loss", self._loss)
            if payloads.settle(info):
                home = {name: info.get(name) for name in _OF_HOME}
                self.keeper.note(Settled(task_id, train_iter, home))
                if payloads.dataset_rows:
                    self.keeper.note(Progressed(task_id, 0, self.state.clock.elapsed_s))
            garbage = payloads.take_garbage()
            if info.get("lag"):
                self._policy_lag = PolicyLag(*info["lag"])
            self.condition.notify_all()
            progress = {name: info[name] for name in info if name not in _OF_HOME}
            self.state.commander.update_learner_info(task_id, progress)
        if garbage:
            self.data_store.delete(garbage)

    def _learner(self, task_id: str) -> TaskState:
        state = self.state.running.get(task_id)
        if state is None:
            raise ClosedError(f"there is no learner task {task_id!r}, or it is over", what="task")
        return state

    def deal_with_learner_judge_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Return whether the learner task is to end; errors as ``deal_with_learner_send_info``."""
        with self.condition:
            self._learner(task_id)
            return bool(self.state.commander.judge_learner_finish(task_id, info))

    def deal_with_learner_finish_task(
        self, task_id: str, finished: Mapping[str, Any], *, has_trained_out: bool = True
    ) -> None:
        """Process the result of a learner task, and close its buffer.

        Raises:
            ClosedError: there is no such learner task.
        """
        with self.condition:
            state = self._learner(task_id)
            buffer_id = self.state.commander.finish_learner_task(state.task_id, finished)
            self.state.close_buffer(buffer_id)
            self.state.totals.learner_tasks += has_trained_out
            if self.state.totals.learner_tasks >= max(self.cfg.max_learner_tasks, self._policy_num):
                self.end.is_over = True

    def commander_statistics(self) -> dict[str, float]:
        """Return the values that the commander plots as curves."""
        with self.condition:
            return self.state.commander.statistics()

    def deal_with_increase_collector(self) -> None:
        """Let the commander issue one more collector task at a time."""
        with self.condition:
            self.state.commander.increase_collector_task_space()

    def deal_with_decrease_collector(self) -> None:
        """Allow one collector task less at a time."""
        with self.condition:
            self.state.commander.decrease_collector_task_space()


def _is_served(cfg: Mapping[str, Any]) -> bool:
    """Return whether collectors insert their samples into a replay server."""
    return (cfg["system"].get("replay") or {}).get("type") == "server"


def _empty_payloads(cfg: Mapping[str, Any], players: int) -> LivePayloads:
    """Return the empty payloads of a buffer.

    Args:
        cfg: The compiled config.
        players: How many players take turns in an env, at most.
    """
    policy = cfg["policy"]
    collect = policy["collect"]
    if _is_served(cfg):
        if not cfg["system"]["replay"].get("address"):
            return ServedPayloads()
        # Of a shared server, the limiter and the other clients are not known.
        limiter = policy["other"]["replay_buffer"].get("limiter") or {}
        return ServedPayloads(limiter.get("samples_per_insert", 0.0), limiter.get("min_size", 0))
    if not policy.get("on_policy"):
        return LivePayloads(2 * int(collect.get("n_sample") or 1))
    max_lag = policy["other"]["commander"].get("max_policy_lag", 0)
    trainings = int(policy["learn"].get("update_per_collect", 1))
    n_sample, unroll_len = collect["n_sample"], collect["unroll_len"]
    least_steps = row_steps = 1
    if unroll_len > 1:
        # Only here, as it imports the policy.
        from dingsdk.worker.collector.factory import declared_piece

        row_steps = int(unroll_len) if declared_piece(cfg) == "unroll" else 1
        # A player's first step may come last, and it ends with the player's next step.
        turns = unroll_len if players == 1 else players * (unroll_len + 1)
        least_steps = int(turns) * int(cfg["env"]["collector_env_num"])
    lag = math.inf if max_lag is None else int(max_lag)
    return OnPolicyPayloads(Admission(int(n_sample), lag, least_steps, row_steps), trainings)
