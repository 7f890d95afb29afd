"""What a pipeline is given, and what it gives back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dingsdk.pipeline.run_folder import find_checkpoints
from dingsdk.pipeline.status import Evaluation, RunRecorder, RunStatus

Mode = Literal["serial", "parallel"]
Reason = Literal["stop_value", "limit", "interrupted", "error"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Attributes:
        reached: Whether an evaluation reached ``env.stop_value``.
        reason: ``stop_value``, ``limit`` (train iterations or env steps used up),
            ``interrupted`` (asked to stop) or ``error``.
        mode: The pipeline that ran.
        best_return: Best mean return of an evaluation, None without one.
        last_return: Mean return of the last evaluation.
        env_steps: Env steps collected for training.
        train_iter: Iterations trained.
        elapsed_s: Seconds from the first env step to the end.
        run_dir: The run folder.
        evaluations: All evaluations, oldest first.
        checkpoints: ``{"latest": path, "best": path}``, only those that exist.
        signal: Number of the signal that interrupted the run, else None.
    """

    reached: bool
    reason: Reason
    mode: Mode
    best_return: float | None
    last_return: float | None
    env_steps: int
    train_iter: int
    elapsed_s: float
    run_dir: Path
    evaluations: tuple[Evaluation, ...] = ()
    checkpoints: Mapping[str, Path] = field(default_factory=dict)
    signal: int | None = None


@dataclass(slots=True)
class RunContext:
    """One run as its pipeline sees it: ``serial_pipeline(context) -> RunResult`` and likewise.

    Attributes:
        cfg: The compiled config (EasyDict); ``cfg.seed`` is the root of the seed tree.
        run_dir: The run folder, which exists; workers get ``str(run_dir)`` as ``exp_name``.
        recorder: Takes the first-step mark and every evaluation.
        stop: Set when the run shall end early: save a checkpoint and return within seconds
            with reason ``interrupted``.
        is_breakable: Whether a KeyboardInterrupt may be raised in the main thread now, to stop
            a run that does not look at ``stop``.
        on_address: None where the run starts its own workers. Otherwise they come by
            themselves, and it is told the coordinator's address and what else they need.
    """

    cfg: Any
    run_dir: Path
    recorder: RunRecorder = field(default_factory=RunRecorder)
    stop: threading.Event = field(default_factory=threading.Event)
    is_breakable: bool = False
    on_address: Callable[[str, str], None] | None = None
    _status_source: Callable[[], RunStatus] | None = None

    def set_status_source(self, source: Callable[[], RunStatus]) -> None:
        """Name the callable that progress asks for a snapshot; it runs in another thread."""
        self._status_source = source

    def status(self) -> RunStatus:
        """Return the newest snapshot; an empty one before the pipeline named a source."""
        source = self._status_source
        return RunStatus() if source is None else source()

    def is_limit_reached(self, env_steps: int, train_iter: int) -> bool:
        """Whether ``system.max_env_steps`` or the learner's ``train_iterations`` are used up."""
        max_env_steps = self.cfg.system.max_env_steps
        if max_env_steps is not None and env_steps >= max_env_steps:
            return True
        return bool(train_iter >= self.cfg.policy.learn.learner.train_iterations)

    def finish(self, reason: Reason, mode: Mode, env_steps: int, train_iter: int) -> RunResult:
        """Build the result from the recorder and from the checkpoints that exist."""
        return RunResult(
            reached=reason == "stop_value",
            reason=reason,
            mode=mode,
            best_return=self.recorder.best_return,
            last_return=self.recorder.last_return,
            env_steps=int(env_steps),
            train_iter=int(train_iter),
            elapsed_s=self.recorder.elapsed_s,
            run_dir=self.run_dir,
            evaluations=self.recorder.evaluations,
            checkpoints=find_checkpoints(self.run_dir),
        )
