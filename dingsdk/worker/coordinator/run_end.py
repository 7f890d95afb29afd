"""When a run is over, and its tasks end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dingsdk.errors import DingError
from dingsdk.worker.comm.scheduler import Condition
from dingsdk.worker.coordinator.retries import LOSSES
from dingsdk.worker.coordinator.scheduler_state import SchedulerState
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.replay_buffer.pace import EpisodePace


class RunEnd:
    """Decides when tasks end: after the env steps, by a rule of the run, or by an error.

    Who started the run waits for three phases: until a rule or an error ends it, or its env steps
    are used up (``wait``), then until the learners have trained on the last samples
    (``train_out``), then until the final policies are evaluated (``finish_evaluations``). Callers
    of the other methods hold the condition.

    Args:
        state: The state of the run.
        condition: Guards the state; its waiters are notified at every change.
        cfg: The compiled config.
        close_s: Seconds after the env steps are used up in which collectors end by themselves.
        evaluations: How many final policies are evaluated.

    Attributes:
        last_env_step: Env steps after which collectors end; None if the run does not wait for the
            updates that belong to them.
        is_closed: Whether the caller has ended the run.
        is_over: Whether no more training begins: the stop value is reached, or the training is
            finished.
        has_reached_goal: Whether an evaluation has reached the stop value.
        failure: The error that ended the run, if any.
        owed_evaluations: How many final policies are still to be evaluated.
    """

    def __init__(
        self,
        state: SchedulerState,
        condition: Condition,
        cfg: Mapping[str, Any],
        close_s: float,
        evaluations: int,
    ) -> None:
        self.last_env_step = cfg["system"].get("max_env_steps") if _is_paced(cfg) else None
        self.is_closed = self.is_over = self.has_reached_goal = False
        self.failure: DingError | None = None
        self.owed_evaluations = 0
        self._state = state
        self._condition = condition
        self._close_s = close_s
        self._clock = state.clock
        self._evaluations = evaluations
        self._is_finishing = False
        self._last_collects: dict[str, int] | None = None
        """By buffer id: number of its collects when the env steps are used up."""
        self._collectors_end_at = math.inf

    def wait(self, timeout_s: float) -> bool:
        """Wait until the run ends by its own rules or by an error; return whether it has ended."""
        with self._condition:
            return self._condition.wait_for(lambda: self.is_near, timeout_s)

    def train_out(self, timeout_s: float) -> bool:
        """Wait for the remaining updates after the env steps of the run are used up.

        Collectors then end by themselves, or are closed with their samples after ``close_s``.

        Returns:
            Whether no learner has a batch left to train on, or the run does not wait for that.
        """
        with self._condition:
            return self._condition.wait_for(lambda: self._is_trained_out, timeout_s)

    def finish_evaluations(self, timeout_s: float) -> bool:
        """End the training, and evaluate the final policies; also wait for running evaluations.

        Returns:
            Whether all evaluations have ended. Closing the run cuts off the others, and they do
            not count.
        """
        with self._condition:
            if not self._is_finishing:
                self._is_finishing = self.is_over = True
                self.owed_evaluations = self._evaluations
            self._condition.notify_all()
            return self._condition.wait_for(lambda: self._is_evaluated, timeout_s)

    @property
    def is_halted(self) -> bool:
        """Whether evaluations end too."""
        return self.is_closed or self.failure is not None

    @property
    def is_near(self) -> bool:
        """Whether no more tasks are started and training tasks end now."""
        return self.is_closed or self.failure is not None or self.is_over

    def must_end(self, task: TaskState) -> bool:
        """Return whether to close the task now; an evaluation may outlive the training."""
        if task.is_evaluation:
            return self.is_halted
        return self.is_near or self._clock() >= self._collectors_end_at

    def wants_end_of(self, task: TaskState) -> bool:
        """Return whether a collector task is to end now, before its last episode."""
        # Looked at here too, as the dispatcher looks only now and then.
        if not task.is_evaluation and self.look_at_env_steps():
            return True
        return self._state.commander.wants_end_of(task.task_id)

    def look_at_env_steps(self) -> bool:
        """Return whether collectors are to end: collects that had begun are finished first."""
        if not self._has_used_up_env_steps:
            self._last_collects = None
        elif self._last_collects is None:
            self._last_collects = {
                buffer_id: each.collects + each.is_in_collect
                for buffer_id, each in self._state.buffers.items()
            }
        is_over = self._is_collecting_over
        if not is_over:
            self._collectors_end_at = math.inf
        elif self._collectors_end_at == math.inf:
            self._collectors_end_at = self._clock() + self._close_s
        return is_over

    @property
    def _is_trained_out(self) -> bool:
        if self.is_near or not self._has_used_up_env_steps:
            return True
        if not self._is_collecting_over or self._state.queues["learner"]:
            return False
        for task in self._state.running.values():
            payloads = self._state.payloads_of(task)
            if task.kind == "collector":  # it may still send rows for a batch
                return False
            if task.role == "learner" and (payloads is None or payloads.can_train):
                return False
        return True

    @property
    def _has_used_up_env_steps(self) -> bool:
        return self.last_env_step is not None and self._state.env_steps >= self.last_env_step

    @property
    def _is_collecting_over(self) -> bool:
        return self._last_collects is not None and all(
            each.collects >= self._last_collects.get(buffer_id, 0)
            for buffer_id, each in self._state.buffers.items()
        )

    @property
    def _is_evaluated(self) -> bool:
        tasks = self._state.running.values()
        is_evaluating = self.owed_evaluations or any(task.is_evaluation for task in tasks)
        return self.is_halted or self.has_reached_goal or not is_evaluating

    def assign_evaluation(self) -> TaskState | None:
        """Assign an owed evaluation to a worker, and return it; None if there is none yet.

        It waits until all other tasks have ended, as a learner publishes its last policy at its
        end. Queued collector tasks are withdrawn to free their places.
        """
        state = self._state
        worker = state.idle("collector")
        if state.running or worker is None:
            return None
        for queued in list(state.queues["collector"]):
            state.withdraw(queued)
        task = state.commander.get_last_eval_task()
        if task is None:
            self.owed_evaluations = 0
            return None
        self.owed_evaluations -= 1
        return state.give(TaskState(task["task_id"], "collector", task, state.clock()), worker)

    def note_end(self, task: TaskState, error: DingError | None) -> None:
        """Repeat a final evaluation whose worker was lost."""
        if self._is_finishing and task.is_evaluation and isinstance(error, LOSSES):
            self.owed_evaluations += 1

    def reach_goal(self) -> None:
        """End the run, as an evaluation has reached the stop value."""
        self.has_reached_goal = self.is_over = True


def _is_paced(cfg: Mapping[str, Any]) -> bool:
    """Return whether the buffer limits the learner to as many updates as serial mode makes."""
    policy = cfg["policy"]
    if policy.get("on_policy"):
        return True
    limiter = policy["other"]["replay_buffer"].get("limiter") or {}
    return limiter.get("samples_ahead") == 0 or EpisodePace.of(cfg) is not None
