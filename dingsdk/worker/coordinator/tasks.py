"""The coordinator's state of one task."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dingsdk.worker.comm.transport import WorkerInfo


@dataclass(slots=True)
class TaskState:
    """One task of a commander, from production to its end.

    Attributes:
        start_time: Monotonic seconds when it was produced.
        attempt: How many workers have tried it, except workers that left voluntarily.
        losses: When workers were lost while they ran it without progress, monotonic seconds.
        began_at: When the worker of this attempt was ready to work, monotonic seconds; infinite
            before.
        progress: Env steps of this attempt, or train iterations of a learner.
        waits_for: What its driver waits for, other than an answer of its worker; empty if nothing.
        mark: Progress that earlier attempts reached.
        env_steps: Env steps reported by this attempt (collector tasks).
        run_env_steps: Of an evaluation: env steps of the run (with several players, those of its
            player) when this attempt began.
        lost_env_steps: Env steps of earlier attempts, whose workers were lost.
        step_limit: Env steps that this attempt may take in total (collector tasks); infinite until
            a collector of an earlier coordinator has reported it.
        collect_setting: The newest keyword arguments for the collect policy that the commander
            sent during the task.
    """

    task_id: str
    role: str = ""
    task: Mapping[str, Any] = field(default_factory=dict)
    start_time: float = field(default_factory=time.monotonic)
    worker: WorkerInfo | None = None
    attempt: int = 0
    losses: tuple[float, ...] = ()
    began_at: float = math.inf
    progress: int = 0
    waits_for: str = ""
    mark: int = 0
    env_steps: int = 0
    run_env_steps: int = 0
    lost_env_steps: int = 0
    step_limit: float = 0
    collect_setting: Mapping[str, Any] = field(default_factory=dict)
    payload_prefix: str = field(default_factory=lambda: secrets.token_hex(6))
    """Prefix of the ids of this attempt's payloads, followed by ``-``; it identifies the owner."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Row counts of the payloads that are announced but not acknowledged yet, by payload id."""
    buffer_id: str = field(init=False)
    """Replay buffer of the learner task that this task belongs to; empty if there is none."""
    is_evaluation: bool = field(init=False)
    """Whether a collector evaluates the policy instead of collecting samples."""

    def __post_init__(self) -> None:
        # Computed once: they are read several times for each message and never change.
        self.buffer_id = str(self.task.get("buffer_id", ""))
        self.is_evaluation = bool(self.task.get("collector_cfg", {}).get("eval_flag"))

    @property
    def owns_buffer(self) -> bool:
        """Whether its worker holds the rows of the replay buffer: it is the task of a learner."""
        return "replay_buffer_cfg" in self.task

    @property
    def player(self) -> str | None:
        """The player that it trains or evaluates; None for the first or the only player."""
        return self.task.get("player")

    @property
    def kind(self) -> str:
        """The kind of work: its role, or ``evaluator``."""
        return "evaluator" if self.is_evaluation else self.role
