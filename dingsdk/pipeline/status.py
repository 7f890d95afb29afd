"""What a run reports about itself: a snapshot for progress, a record for afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of the policy.

    Attributes:
        elapsed_s: Seconds since the first env step of the run.
        env_steps: Env steps collected for training by then.
        train_iter: Iterations that the evaluated policy was trained for.
        mean: Mean undiscounted return of the episodes.
        min: Lowest return.
        max: Highest return.
        episodes: Episodes played.
    """

    elapsed_s: float
    env_steps: int
    train_iter: int
    mean: float
    min: float
    max: float
    episodes: int


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A snapshot of a run for the progress display; None where a value is not known yet.

    Attributes:
        env_steps: Env steps collected for training.
        env_steps_per_s: Their recent rate, or None to let the display work it out.
        train_iter: Iterations trained.
        last_return: Mean return of the latest evaluation.
        best_return: Best mean return so far.
        buffer_fill: Samples in the replay buffer.
        buffer_capacity: Samples that it can hold.
        workers: Workers connected; 1 in serial mode.
        policy_version: Version of the newest policy that collectors use.
        elapsed_s: Seconds since the first env step, 0 before it.
        held_up_by: Why the run stands still, where it does.
    """

    env_steps: int = 0
    env_steps_per_s: float | None = None
    train_iter: int = 0
    last_return: float | None = None
    best_return: float | None = None
    buffer_fill: int = 0
    buffer_capacity: int = 0
    workers: int = 1
    policy_version: int = 0
    elapsed_s: float = 0.0
    held_up_by: str = ""


class RunRecorder:
    """Collects the evaluations of a run, from any thread.

    Args:
        clock: Monotonic seconds; replaced in tests.
        on_evaluation: Called with each evaluation, outside the lock.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_evaluation: Callable[[Evaluation], None] | None = None,
    ) -> None:
        self._clock = clock
        self._on_evaluation = on_evaluation
        self._lock = threading.Lock()
        self._first_step_at: float | None = None
        self._evaluations: list[Evaluation] = []

    def mark_first_step(self) -> None:
        """Start the clock of the run, right before its first env step; later calls do nothing."""
        with self._lock:
            if self._first_step_at is None:
                self._first_step_at = self._clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first env step, 0 before it."""
        started = self._first_step_at
        return 0.0 if started is None else self._clock() - started

    def add_evaluation(self, returns: list[float], env_steps: int, train_iter: int) -> Evaluation:
        """Record the returns (one per episode, at least one) of one evaluation."""
        evaluation = Evaluation(
            elapsed_s=self.elapsed_s,
            env_steps=int(env_steps),
            train_iter=int(train_iter),
            mean=sum(returns) / len(returns),
            min=min(returns),
            max=max(returns),
            episodes=len(returns),
        )
        with self._lock:
            self._evaluations.append(evaluation)
        if self._on_evaluation is not None:
            self._on_evaluation(evaluation)
        return evaluation

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """All evaluations so far, oldest first."""
        with self._lock:
            return tuple(self._evaluations)

    @property
    def last_return(self) -> float | None:
        """Mean return of the latest evaluation."""
        evaluations = self.evaluations
        return evaluations[-1].mean if evaluations else None

    @property
    def best_return(self) -> float | None:
        """Best mean return so far."""
        return max((each.mean for each in self.evaluations), default=None)
