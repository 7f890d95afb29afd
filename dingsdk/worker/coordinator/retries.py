"""Whether a task whose worker was lost is tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dingsdk.errors import DingError, PoisonTaskError, TaskTimeoutError, WorkerLostError
from dingsdk.worker.comm.transport import LEFT
from dingsdk.worker.coordinator.tasks import TaskState

LOSSES = (WorkerLostError, TaskTimeoutError)
"""Errors that end a task because its worker was lost."""
LOSS_WINDOW_S = 600.0
"""How long a lost worker counts against its task."""


class Retries:
    """Counts the lost workers of each task, and the tasks that were given up in a row.

    A task is given up after ``max_attempts`` lost workers. A loss does not count if the worker left
    voluntarily, if the task made progress after it, or if it is older than ``LOSS_WINDOW_S``. The
    caller locks.

    Args:
        max_attempts: Also the number of tasks of a kind, given up in a row, that end the run.
        lease_s: Least seconds of an attempt whose progress counts.
    """

    def __init__(self, max_attempts: int, lease_s: float, clock: Callable[[], float]) -> None:
        self._max_attempts = max_attempts
        self._lease_s = lease_s
        self._clock = clock
        self._given_up: Counter[str] = Counter()
        """By kind: number of tasks given up since a task of the kind last finished."""

    def note_finished(self, state: TaskState) -> None:
        """Note that a task has finished normally."""
        self._given_up[state.kind] = 0

    def allows(self, state: TaskState, error: DingError) -> bool:
        """Count the lost worker of a task; return whether another worker may try the task."""
        if error.facts.get("reason") == LEFT:
            state.attempt -= 1
        else:
            state.losses = self._losses(state)
        return len(state.losses) < self._max_attempts

    def _losses(self, state: TaskState) -> tuple[float, ...]:
        """Return the losses that count against a task whose worker was just lost."""
        now = self._clock()
        has_progressed = state.progress > state.mark and now - state.began_at >= self._lease_s
        before = () if has_progressed else state.losses
        return (*(at for at in before if now - at < LOSS_WINDOW_S), now)

    def give_up(self, state: TaskState, cause: DingError) -> tuple[PoisonTaskError, bool]:
        """Return the final error of a task that is not allowed again, and whether to end the run.

        The run is to end if ``max_attempts`` tasks of the kind were given up in a row.
        """
        self._given_up[state.kind] += 1
        worker_id = "" if state.worker is None else state.worker.worker_id
        error = PoisonTaskError(
            f"{state.kind} task {state.task_id} is given up: {len(state.losses)} workers were lost "
            f"over it, at last {worker_id!r} ({cause})",
            task_id=state.task_id,
            attempts=len(state.losses),
            worker_id=worker_id,
        )
        error.__cause__ = cause
        return error, self._given_up[state.kind] >= self._max_attempts
