"""When a run is over, and its tasks end."""

from __future__ import annotations

import math
from collections.abc import Callable

from dingsdk.errors import DingError
from dingsdk.worker.coordinator.scheduler_state import LOSSES, SchedulerState
from dingsdk.worker.coordinator.tasks import TaskState


class RunEnd:
    """Decides when tasks end: after the env steps, by a rule of the run, or by an error.

    First the collectors have taken all env steps, then the learners have trained on their samples,
    then the final policies are evaluated. The caller locks.

    Args:
        state: The state of the run.
        last_env_step: Env steps after which collectors end; None if the run does not wait for the
            updates that belong to them.
        close_s: Seconds after the env steps are used up in which collectors end by themselves.
        evaluations: How many final policies are evaluated.

    Attributes:
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
        last_env_step: int | None,
        close_s: float,
        clock: Callable[[], float],
        evaluations: int,
    ) -> None:
        self.last_env_step = last_env_step
        self.is_closed = self.is_over = self.has_reached_goal = False
        self.failure: DingError | None = None
        self.owed_evaluations = 0
        self._state = state
        self._close_s = close_s
        self._clock = clock
        self._evaluations = evaluations
        self._is_finishing = False
        self._last_collects: dict[str, int] | None = None
        """By buffer id: number of its collects when the env steps are used up."""
        self._collectors_end_at = math.inf

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
    def is_trained_out(self) -> bool:
        """Whether no learner has a batch left to train on, or the run does not wait for that."""
        if self.is_near or not self._has_used_up_env_steps:
            return True
        return self._is_collecting_over and self._state.is_trained_out()

    @property
    def _has_used_up_env_steps(self) -> bool:
        return self.last_env_step is not None and self._state.env_steps >= self.last_env_step

    @property
    def _is_collecting_over(self) -> bool:
        return self._last_collects is not None and all(
            each.collects >= self._last_collects.get(buffer_id, 0)
            for buffer_id, each in self._state.buffers.items()
        )

    def finish(self) -> None:
        """End the training; the final policies are to be evaluated."""
        if not self._is_finishing:
            self._is_finishing = self.is_over = True
            self.owed_evaluations = self._evaluations

    @property
    def is_evaluated(self) -> bool:
        """Whether all evaluations have ended after ``finish``."""
        is_evaluating = self.owed_evaluations or self._state.is_evaluating
        return self.is_halted or self.has_reached_goal or not is_evaluating

    def assign_evaluation(self) -> TaskState | None:
        """Assign an owed evaluation if all other tasks have ended and a worker is idle."""
        task, waits = self._state.assign_last_evaluation()
        if not waits:
            self.owed_evaluations = 0 if task is None else self.owed_evaluations - 1
        return task

    def note_end(self, task: TaskState, error: DingError | None) -> None:
        """Repeat a final evaluation whose worker was lost."""
        if self._is_finishing and task.is_evaluation and isinstance(error, LOSSES):
            self.owed_evaluations += 1

    def reach_goal(self) -> None:
        """End the run, as an evaluation has reached the stop value."""
        self.has_reached_goal = self.is_over = True
