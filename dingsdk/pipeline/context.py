"""The inputs, status reports and results of the pipelines, which run a training."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from dingsdk.config.section import Number
from dingsdk.pipeline.run_folder import find_checkpoints
from dingsdk.pipeline.saved_run import SavedRun
from dingsdk.pipeline.signals import StopOnSignal
from dingsdk.plugins import ask
from dingsdk.runtime.files import Patience
from dingsdk.worker.collector.episode_numbers import Summaries
from dingsdk.worker.commander.base import NO_PROGRESS, PlayerProgress
from dingsdk.worker.player_folder import player_folder
from dingsdk.worker.run_view import NO_LIMIT
from dingsdk.worker.sample_counts import SampleCounts

if TYPE_CHECKING:
    from dingsdk.pipeline.worker import WorkerGroup
    from dingsdk.worker import LearnerHook
    from dingsdk.worker.comm.master import Master

_log = logging.getLogger(__name__)

RECENT_EPISODES = 100
"""Training episodes whose numbers a run shows."""
RATE_S = 10.0
"""The rates of a run are averages over the last so many seconds."""

Mode = Literal["serial", "parallel"]
Reason = Literal["stop_value", "limit", "stopped", "interrupted", "error"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of the policy, over ``episodes`` undiscounted returns.

    Attributes:
        elapsed_s: Seconds since the first env step of the run.
        env_steps: Env steps collected for training before the evaluation.
        train_iter: Iterations that the evaluated policy was trained for.
        player: The evaluated player; None for the first player, or the only one.
        opponent: Who played the others, of ``env.eval_opponents``; None if no games were played.
        numbers: The numbers that the env told of the episodes, by name: ``mean``, ``min`` and
            ``max`` over the episodes that have it.
    """

    elapsed_s: float
    env_steps: int
    train_iter: int
    mean: float
    min: float
    max: float
    episodes: int
    player: str | None = None
    opponent: str | None = None
    numbers: Summaries = field(default_factory=dict)

    @property
    def number_means(self) -> dict[str, float]:
        """The means of ``numbers``."""
        return {name: each["mean"] for name, each in self.numbers.items()}


@dataclass(frozen=True, slots=True)
class PlayerStatus:
    """The progress of one of several players; fields as in ``RunResult``, None: not known yet."""

    train_iter: Number
    env_steps: Number
    last_return: float | None
    best_return: float | None


@dataclass(frozen=True, slots=True)
class PlayerResult:
    """The result of one of several players of a run."""

    status: PlayerStatus
    evaluations: tuple[Evaluation, ...]
    checkpoints: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task that a worker has.

    Attributes:
        task_id: The id that the commander gave it.
        kind: ``collector``, ``evaluator``, ``learner`` or another role.
        progress: Env steps of this attempt; for a learner, iterations.
        per_s: Env steps (for a learner, iterations) per second in the last time window; None
            before the end of the first window.
        is_straggler: Whether the worker is much slower than the others of its kind.
        attempt: 1 for the first worker that gets the task, 2 for the next, and so on.
        waits_for: What it waits for, other than an answer of its worker; empty for nothing.
        player: As in ``Evaluation``.
    """

    task_id: str
    kind: str
    worker_id: str
    progress: Number
    per_s: float | None
    is_straggler: bool
    attempt: Number
    waits_for: str
    player: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker that has joined.

    Attributes:
        lease_s: Seconds until its next message is due; negative if the message is late.
    """

    worker_id: str
    role: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A snapshot of a run for the progress display. A value that is not known yet is None.

    It is also read from ``status.json``, which another program may have changed: its types are
    checked, and there None also replaces a number that is not finite.
    Fields with the name of a field of ``RunResult`` have the same meaning, up to now.

    Attributes:
        train_iter: Iterations trained; with several players, the lowest number among them.
        buffer_fill: Samples in the replay buffer, which can hold ``buffer_capacity``.
        workers: Workers connected; 1 in serial mode.
        held_up_by: Why the run makes no progress; empty if it does.
        tasks: The tasks of the workers (parallel mode).
        connected: The workers that have joined (parallel mode).
        loss: The ``total_loss`` of the latest iteration.
        exploration: Numeric settings of the collect policy, such as ``eps``.
        max_env_steps, max_train_iter: Limits at which the run ends; None for no limit.
        goal: Mean return that ends the run; infinite for none.
        loaded_env_steps, loaded_train_iter: Counts of the checkpoint that the run began with,
            which ``env_steps`` and ``train_iter`` include; 0 for new weights.
        env_steps_per_s, updates_per_s: Rates over the last ``RATE_S`` seconds.
        left_s: Seconds until the first limit is reached at these rates; None without a limit.
        players: If several players train, the status of each by its id, in order.
        numbers: Means of the ``numbers`` of the last evaluation.
        training_numbers: The same of the last ``RECENT_EPISODES`` training episodes.
    """

    env_steps: Number = 0
    train_iter: Number = 0
    last_return: float | None = None
    best_return: float | None = None
    buffer_fill: Number = 0
    buffer_capacity: Number = 0
    workers: Number = 1
    elapsed_s: float = 0.0
    held_up_by: str = ""
    samples: SampleCounts = field(default_factory=SampleCounts)
    tasks: tuple[RunningTask, ...] = ()
    policy_lag: Mapping[str, float] | None = None
    connected: tuple[WorkerStatus, ...] = ()
    loss: float | None = None
    exploration: Mapping[str, float | None] = field(default_factory=dict)
    max_env_steps: Number | None = None
    max_train_iter: Number | None = None
    goal: float | None = math.inf
    loaded_env_steps: Number = 0
    loaded_train_iter: Number = 0
    players: Mapping[str, PlayerStatus] = field(default_factory=dict)
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    training_numbers: Mapping[str, float | None] = field(default_factory=dict)
    env_steps_per_s: float | None = 0.0
    updates_per_s: float | None = 0.0
    left_s: float | None = None


class RunRecorder:
    """Collects the evaluations of a run, and what its envs told of the last training episodes.

    Thread-safe. ``on_evaluation`` is called with each evaluation.
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
        self.training: list[tuple[int, dict[str, float]]] = []
        """Of training episodes that ended together: how many, and the means of their numbers."""

    def mark_first_step(self) -> None:
        """Start the clock of the run, right before its first env step; later calls do nothing."""
        with self._lock:
            if self._first_step_at is None:
                self._first_step_at = self._clock()

    def resume(
        self,
        evaluations: Iterable[Evaluation],
        elapsed_s: float,
        training: Iterable[tuple[int, dict[str, float]]] = (),
    ) -> None:
        """Restore what an earlier process of the run recorded, and its elapsed time."""
        with self._lock:
            self._evaluations, self.training = list(evaluations), [*training]
            self._first_step_at = self._clock() - elapsed_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first env step; 0 before it."""
        started = self._first_step_at
        return 0.0 if started is None else self._clock() - started

    def take(self, evaluation: Evaluation) -> None:
        """Record an evaluation."""
        with self._lock:
            self._evaluations.append(evaluation)
        if self._on_evaluation is not None:
            self._on_evaluation(evaluation)

    def add_evaluation(
        self,
        returns: list[float],
        env_steps: int,
        train_iter: int,
        player: str | None = None,
        opponent: str | None = None,
        numbers: Summaries = MappingProxyType({}),
    ) -> Evaluation:
        """Record one evaluation from its returns: one per episode, at least one."""
        evaluation = Evaluation(
            elapsed_s=self.elapsed_s,
            env_steps=int(env_steps),
            train_iter=int(train_iter),
            mean=sum(returns) / len(returns),
            min=min(returns),
            max=max(returns),
            episodes=len(returns),
            player=player,
            opponent=opponent,
            numbers={name: dict(each) for name, each in numbers.items()},
        )
        self.take(evaluation)
        return evaluation

    def add_training(self, episodes: int, numbers: Summaries) -> None:
        """Record the numbers of training episodes of the first player, which ended together."""
        if not numbers:
            return
        means = {name: each["mean"] for name, each in numbers.items()}
        with self._lock:
            ended = [*self.training, (episodes, means)]
            while sum(count for count, _ in ended[1:]) >= RECENT_EPISODES:
                del ended[0]
            self.training = ended

    @property
    def training_numbers(self) -> dict[str, float]:
        """Means of the numbers of the last training episodes, ``RECENT_EPISODES`` or a few more."""
        ended = self.training
        found = {}
        for name in dict.fromkeys(name for _, means in ended for name in means):
            own = [(count, means[name]) for count, means in ended if name in means]
            found[name] = sum(n * mean for n, mean in own) / sum(n for n, _ in own)
        return found

    @property
    def all_evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations of all players so far, oldest first."""
        with self._lock:
            return tuple(self._evaluations)

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations of the first player, or the only one."""
        return self.of(None)

    def of(self, player: str | None) -> tuple[Evaluation, ...]:
        """Return the evaluations of one player."""
        return tuple(each for each in self.all_evaluations if each.player == player)

    def progress_of(self, player: str | None, train_iter: int, env_steps: int) -> PlayerStatus:
        """Return the status of a player with these counts and its evaluations."""
        found = self.of(player)
        best = best_of(found)
        last_return = found[-1].mean if found else None
        return PlayerStatus(train_iter, env_steps, last_return, None if best is None else best.mean)


def best_of(evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """Return the evaluation with the highest mean, or None if there are none.

    Among equal means, the earliest counts. An evaluation of an untrained policy is returned only
    if there is no other. Only evaluations against the newest opponent count: returns against
    different opponents cannot be compared.
    """
    same = [each for each in evaluations if each.opponent == evaluations[-1].opponent]
    return max(same, key=lambda each: (each.train_iter > 0, each.mean), default=None)


def _names_of(players: Iterable[str]) -> dict[str, str | None]:
    """Return the value of ``Evaluation.player`` by player id: None for the first player."""
    return {player_id: player_id if index else None for index, player_id in enumerate(players)}


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Attributes:
        reached: Whether an evaluation reached ``env.stop_value``.
        reason: ``stop_value``, ``limit`` (train iterations or env steps used up),
            ``stopped`` (by a plugin), ``interrupted`` (asked to stop) or ``error``.
        mode: The pipeline that ran.
        best_return: Best mean return of an evaluation; None if there was none. The untrained
            policy counts only if no trained one was evaluated.
        last_return: Mean return of the last evaluation.
        env_steps: Env steps collected for training.
        train_iter: Iterations trained.
        elapsed_s: Seconds from the first env step to the end.
        run_dir: The run folder; it is removed if the run was interrupted before it began.
        evaluations: All evaluations, oldest first.
        checkpoints: ``{"latest": path, "best": path}``, only those that exist.
        policy_lag: Age of the trained samples in policy versions behind the newest, as ``mean``,
            ``p99`` and ``largest``; of off-policy training one in 16 batches is looked at. In
            serial mode each collect is made with a new version. None for samples without
            ``collect_iter``.
        signal: Number of the signal that interrupted the run, or None.
        samples: How many samples were collected, acknowledged, trained on, stored and evicted.
        stopped_by: The reason that a plugin's ``dingsdk_should_stop`` returned, or None.
        players: If several players trained, the result of each by its id. Returns, evaluations
            and checkpoints of the run are those of the first player.
        training_numbers: Means of what the env told of the last training episodes.
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
    policy_lag: Mapping[str, float] | None = None
    signal: int | None = None
    samples: SampleCounts = field(default_factory=SampleCounts)
    stopped_by: str | None = None
    players: Mapping[str, PlayerResult] = field(default_factory=dict)
    training_numbers: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(slots=True)
class RunContext:
    """The argument of a pipeline, as in ``serial_pipeline(context) -> RunResult``.

    Attributes:
        cfg: The compiled config (EasyDict); all seeds are derived from ``cfg.seed``.
        run_dir: The run folder, which exists; workers get ``str(run_dir)`` as ``exp_name``.
        recorder: Records the time of the first env step, and all evaluations.
        stop: Set to end the run early: the pipeline then saves a checkpoint and returns within
            seconds with the reason ``interrupted``.
        has_begun: Set once the run is set up. If a run fails before, its folder is removed.
        conclude: Called with the result before the parts of the run are closed: writes its files,
            and returns the result that the pipeline has to return.
        signals: Handles the signals of the run, and breaks off parts that do not check ``stop``.
        learner_hooks: Hooks for the learner, in addition to those of the config (serial mode).
        on_address: None if the run starts its workers. If the user starts them, it is called with
            the coordinator's address and a note that says what else they need.
        workers: Returns the group of workers to use; None for the workers of the config.
        rejoin_s: How many seconds the workers of an earlier coordinator may take to join.
        resumed: The save or the journal to continue from; None for a new run.
        status: Returns a snapshot for the progress display, which calls it in its own thread; set
            by the pipeline.
        stopped_by: Why a plugin wants the run to end, or None.
        exploration: The settings with which the collect policy was last called.
        loaded: Counts of the checkpoint that the run began with.
    """

    cfg: Any
    run_dir: Path
    recorder: RunRecorder = field(default_factory=RunRecorder)
    stop: threading.Event = field(default_factory=threading.Event)
    has_begun: bool = False
    conclude: Callable[[RunResult], RunResult] = lambda result: result
    signals: StopOnSignal = field(default_factory=lambda: StopOnSignal(threading.Event()))
    learner_hooks: Sequence[LearnerHook] = ()
    on_address: Callable[[str, str], None] | None = None
    workers: Callable[[Master], WorkerGroup] | None = None
    rejoin_s: float = 0.0
    resumed: SavedRun | None = None
    status: Callable[[], RunStatus] = RunStatus
    stopped_by: str | None = None
    exploration: Mapping[str, float] = field(default_factory=dict)
    loaded: PlayerProgress = NO_PROGRESS
    _has_missed: bool = False

    @property
    def task(self) -> str:
        """What the run trains on, for people: the id of its env, or the path of its data set."""
        own = self.cfg.policy.collect.collector.get("path", "a data set")
        return str(self.cfg.env.env_id or own)

    def patience(self) -> Patience:
        """Return a new ``Patience`` for writes, which ends its wait when the run has to stop."""
        return Patience(self.cfg.system.coordinator.storage_timeout_s, self.stop.wait)

    def note_exploration(self, setting: Mapping[str, Any]) -> None:
        """Store the numeric settings with which the collect policy is called."""
        self.exploration = {
            name: float(value)
            for name, value in setting.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }

    def warn_of_missing_numbers(self) -> None:
        """Warn, once, of names in ``env.info_numbers`` that no evaluated episode has had so far."""
        chosen = self.cfg.env.get("info_numbers") or ()
        if self._has_missed or isinstance(chosen, str):
            return
        found = {name for each in self.recorder.all_evaluations for name in each.numbers}
        missing = [name for name in chosen if name not in found]
        if missing:
            self._has_missed = True
            _log.warning(
                "env.info_numbers names %s, and so far no last info of an evaluated episode had a "
                "finite number there%s",
                ", ".join(map(repr, missing)),
                f"; it had {', '.join(sorted(found))}" if found else "",
            )

    def known(self, players: Mapping[str, PlayerProgress]) -> dict[str, Any]:
        """Return the fields of ``RunStatus`` that the context knows; ``players`` are in order."""
        train_iter = self.cfg.policy.learn.learner.train_iterations
        first = self.recorder.progress_of(None, 0, 0)
        evaluations = self.recorder.evaluations
        return {
            "numbers": evaluations[-1].number_means if evaluations else {},
            "training_numbers": self.recorder.training_numbers,
            "last_return": first.last_return,
            "best_return": first.best_return,
            "elapsed_s": self.recorder.elapsed_s,
            "exploration": self.exploration,
            "max_env_steps": self.cfg.system.max_env_steps,
            "max_train_iter": None if train_iter >= NO_LIMIT else int(train_iter),
            "goal": float(self.cfg.env.stop_value),
            "loaded_env_steps": self.loaded.env_steps,
            "loaded_train_iter": self.loaded.train_iter,
            "players": {
                player_id: self.recorder.progress_of(
                    name, players[player_id].train_iter, players[player_id].env_steps
                )
                for player_id, name in _names_of(players).items()
            },
        }

    def why_end(self, env_steps: int, train_iter: int) -> Reason | None:
        """Return ``limit`` or ``stopped`` if the training has to end now, else None."""
        if self.is_limit_reached(env_steps, train_iter):
            return "limit"
        answers = ask()
        if not answers.has_listener("should_stop"):
            return None
        status = self.status()
        names = ("elapsed_s", "last_return", "best_return", "buffer_fill", "workers", "numbers")
        facts = {name: getattr(status, name) for name in names}
        facts |= {"env_steps": env_steps, "train_iter": train_iter}
        self.stopped_by = answers.should_stop(run_dir=self.run_dir, status=facts)
        return None if self.stopped_by is None else "stopped"

    def is_limit_reached(self, env_steps: int, train_iter: int) -> bool:
        """Whether ``system.max_env_steps`` or the learner's ``train_iterations`` are reached."""
        max_env_steps = self.cfg.system.max_env_steps
        if max_env_steps is not None and env_steps >= max_env_steps:
            return True
        return bool(train_iter >= self.cfg.policy.learn.learner.train_iterations)

    def finish(self, reason: Reason, mode: Mode) -> RunResult:
        """Build the result from the status, the recorder, and the checkpoints that exist."""
        first, status = self.recorder.progress_of(None, 0, 0), self.status()
        return RunResult(
            reached=reason == "stop_value",
            reason=reason,
            mode=mode,
            best_return=first.best_return,
            last_return=first.last_return,
            env_steps=int(status.env_steps),
            train_iter=int(status.train_iter),
            elapsed_s=status.elapsed_s,
            run_dir=self.run_dir,
            evaluations=self.recorder.evaluations,
            checkpoints=find_checkpoints(self.run_dir),
            policy_lag=status.policy_lag,
            samples=status.samples,
            stopped_by=self.stopped_by if reason == "stopped" else None,
            training_numbers=status.training_numbers,
            players={
                player_id: PlayerResult(
                    status.players[player_id],
                    self.recorder.of(name),
                    find_checkpoints(player_folder(self.run_dir, name)),
                )
                for player_id, name in _names_of(status.players).items()
            },
        )
