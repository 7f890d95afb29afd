"""What the coordinator knows of one running task."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.comm.transport import WorkerInfo


@dataclass(slots=True)
class TaskState:
    """One task of a commander, from production to its end.

    Attributes:
        start_time: Monotonic seconds when it was produced.
        attempt: How many workers have tried it; without those that left of their own will.
        losses: When workers were lost over it without progress, monotonic seconds.
        began_at: When this attempt had built what it needs, monotonic seconds; infinite before.
        progress: Env steps of this attempt, or train iterations of a learner.
        waits_for: What its driver waits for, other than an answer of its worker; empty for nothing.
        wanted: Samples in the batch that the driver of a learner waits for; 0 while it does not.
        mark: Progress that earlier attempts reached.
        env_steps: Env steps reported by this attempt (collector tasks).
        lost_env_steps: Env steps of the attempts before, whose workers were lost.
        collect_setting: What the collect policy is now called with, where the commander renews it.
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
    wanted: int = 0
    mark: int = 0
    env_steps: int = 0
    lost_env_steps: int = 0
    collect_setting: Mapping[str, Any] = field(default_factory=dict)
    payload_prefix: str = field(default_factory=lambda: secrets.token_hex(6))
    """Begins the ids of this attempt's payloads, up to a ``-``: whose they are."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Rows of the payloads that were announced and are not acknowledged yet."""
    announced: set[int] = field(default_factory=set)
    """Payload numbers that the learner of this attempt has been told of."""
    dropped: list[int] = field(default_factory=list)
    """Of these, the ones deleted since the learner was last told."""
    kept: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    """The rows that are still needed of some of these, where others were freed since then."""
    buffer_id: str = field(init=False)
    """Of the learner task that the task works for; empty for one that works for none."""
    is_evaluation: bool = field(init=False)
    """Whether a collector evaluates the policy instead of collecting samples."""

    def __post_init__(self) -> None:
        # Computed once: they are read several times for each message, and a task keeps both.
        self.buffer_id = str(self.task.get("buffer_id", ""))
        self.is_evaluation = bool(self.task.get("collector_cfg", {}).get("eval_flag"))

    @property
    def player(self) -> str | None:
        """The player that it trains or evaluates; None for the first one, or the only one."""
        return self.task.get("player")

    @property
    def kind(self) -> str:
        """What it does, in a word: its role, or ``evaluator``."""
        return "evaluator" if self.is_evaluation else self.role
