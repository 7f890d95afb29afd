"""What a parallel run records of its players: curves, evaluations and best weights."""

from __future__ import annotations

import dataclasses
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from dingsdk.pipeline.context import RunContext, best_of
from dingsdk.plugins import observe
from dingsdk.worker import Coordinator
from dingsdk.worker.collector.battle import game_statistics
from dingsdk.worker.collector.episode_numbers import summary_statistics
from dingsdk.worker.collector.rollout import return_statistics
from dingsdk.worker.coordinator import CoordinatorStatus
from dingsdk.worker.evaluator.monitor import evaluation_statistics
from dingsdk.worker.learner.checkpoint import save_checkpoint
from dingsdk.worker.player_folder import player_folder
from dingsdk.worker.run_logger import (
    LogPace,
    TensorboardLogger,
    build_tb_logger,
    floats_of,
    write_statistics,
)


class ParallelResults:
    """Records the reports of workers for each player: curves, evaluations and best weights.

    Thread-safe. The tensorboard file of a player is made when it is first needed; ``stack`` closes
    it.
    """

    coordinator: Coordinator

    def __init__(self, context: RunContext, stack: ExitStack) -> None:
        self._context, self._stack = context, stack
        self._lock = threading.Lock()
        self._tb_loggers: dict[str | None, TensorboardLogger] = {}
        self._patience = context.patience()
        self._saving = threading.Lock()
        self._unsaved: dict[str | None, Callable[[], object]] = {}
        """By player, what writes the best weights for which there was no room."""
        self._paces: defaultdict[tuple[str, str | None], LogPace] = defaultdict(LogPace)

    def tb_logger(self, player: str | None = None) -> TensorboardLogger:
        """Return the tensorboard logger for a player."""
        with self._lock:
            if player not in self._tb_loggers:
                folder = player_folder(self._context.run_dir, player)
                self._tb_loggers[player] = build_tb_logger(folder / "log", "coordinator")
                self._stack.callback(self._tb_loggers[player].close)
            return self._tb_loggers[player]

    def collected(self, finished: Mapping[str, Any]) -> None:
        """Write the statistics of a collecting task."""
        self._context.note_exploration(finished.get("collect_setting") or {})
        player = finished.get("player")
        if player is None:
            ended = len(finished.get("reward_raw") or ())
            self._context.recorder.add_training(ended, finished.get("numbers") or {})
        if not self._is_due("collect", player):
            return
        status = self.coordinator.status()
        own = _statistics_of(player, status.players, self.coordinator.commander_statistics())
        write_collected(self.tb_logger(player), finished, _status_of(player, status), own)

    def evaluated(self, info: Mapping[str, Any], model: Mapping[str, Any] | None) -> None:
        """Record an evaluation, and keep the weights of the best one."""
        returns = [float(each) for each in info["reward_raw"]]
        if not returns:
            return  # stopped before an episode ended
        player = info.get("player")
        env_steps = int(info["env_steps"])
        tb_logger = self.tb_logger(player)
        numbers = info.get("numbers") or {}
        evaluation = self._context.recorder.add_evaluation(
            returns, env_steps, int(info["train_iter"]), player, info.get("opponent"), numbers
        )
        self._context.warn_of_missing_numbers()
        self.coordinator.note_evaluation(dataclasses.asdict(evaluation))
        if self._is_due("evaluate", player):
            write_statistics(
                tb_logger,
                "evaluator",
                summary_statistics(numbers)
                | evaluation_statistics(
                    returns, info.get("step_count", 0), info.get("duration", 0.0)
                ),
                evaluation.train_iter,
                env_steps,
            )
        observe().after_evaluate(
            source=str(info.get("task_id", "evaluator")),
            mean_return=evaluation.mean,
            train_iter=evaluation.train_iter,
            envstep=env_steps,
        )
        if model is not None and best_of(self._context.recorder.of(player)) is evaluation:
            with self._saving:
                self._unsaved[player] = partial(
                    save_checkpoint,
                    player_folder(self._context.run_dir, player) / "ckpt",
                    "ckpt_best",
                    {"model": dict(model)},
                    iteration=evaluation.train_iter,
                    envstep=env_steps,
                    is_latest=False,
                )
            self.save_best()

    def save_best(self) -> bool:
        """Save best weights for which there was no room before; return whether all are saved.

        Raises:
            StorageFullError: there was no room for too long.
        """
        with self._saving:
            for player, write in list(self._unsaved.items()):
                if not self._patience.attempt(write):
                    return False
                del self._unsaved[player]
        return True

    def _is_due(self, what: str, player: str | None) -> bool:
        with self._lock:
            return self._paces[what, player].is_due()


def _statistics_of(
    player: str | None, players: Collection[str], statistics: Mapping[str, float]
) -> dict[str, float]:
    """Return the statistics of a commander that belong to one player, without the player's prefix.

    Statistics of players after the first are named ``<player>/<name>``. ``players`` contains all
    players, or none if there is only one.
    """
    if player is not None:
        prefix = f"{player}/"
        found = {name: each for name, each in statistics.items() if name.startswith(prefix)}
        return {name.removeprefix(prefix): each for name, each in found.items()}
    return {k: v for k, v in statistics.items() if k.partition("/")[0] not in players}


def _status_of(player: str | None, status: CoordinatorStatus) -> CoordinatorStatus:
    """Return the status of the run; if there are several players, with the progress of one."""
    if not status.players:
        return status
    own = status.players[player or next(iter(status.players))]
    return dataclasses.replace(
        status,
        train_iter=own.train_iter,
        env_steps=own.env_steps,
        episodes=own.episodes,
        samples=dataclasses.replace(status.samples, collected=own.samples),
    )


def write_collected(
    tb_logger: TensorboardLogger,
    finished: Mapping[str, Any],
    status: CoordinatorStatus,
    of_commander: Mapping[str, float],
) -> None:
    """Write the statistics and settings of a collecting task, with the names of serial mode."""
    returns, steps = finished.get("reward_raw") or [], int(finished.get("step_count", 0))
    samples, seconds = finished.get("sample_count", 0), max(finished.get("duration", 0.0), 1e-9)
    statistics = summary_statistics(finished.get("numbers") or {}) | {
        "episode_count": len(returns),
        "envstep_count": steps,
        "train_sample_count": samples,
        "avg_envstep_per_sec": steps / seconds,
        "avg_train_sample_per_sec": samples / seconds,
        "total_envstep_count": status.env_steps,
        "total_episode_count": status.episodes,
        "total_train_sample_count": status.samples.collected,
    }
    if returns:
        statistics["avg_episode_per_sec"] = len(returns) / seconds
        statistics["avg_sample_per_episode"] = samples / len(returns)
        length = finished.get("avg_step_per_episode", steps / len(returns))
        statistics["avg_envstep_per_episode"] = length
        if "player_returns" in finished:
            outcomes = [outcome for env in finished.get("game_result", ()) for outcome in env]
            statistics |= game_statistics(finished["player_returns"], outcomes)
        else:
            statistics |= return_statistics(returns)
    statistics |= floats_of(finished.get("collect_setting", {}))
    write_statistics(tb_logger, "collector", statistics, status.train_iter, status.env_steps)
    write_statistics(tb_logger, "commander", of_commander, status.train_iter, status.env_steps)


def write_paces(tb_logger: TensorboardLogger, status: CoordinatorStatus) -> None:
    """Write ``pace/<worker>``, ``relative_pace/<worker>`` and ``policy_lag/*`` over env steps."""
    for name, value in (status.policy_lag._asdict() if status.policy_lag else {}).items():
        tb_logger.add_scalar(f"policy_lag/{name}", value, status.env_steps)
    for worker_id, pace in status.paces.items():
        tb_logger.add_scalar(f"pace/{worker_id}", pace.per_s, status.env_steps)
        if pace.relative is not None:
            tb_logger.add_scalar(f"relative_pace/{worker_id}", pace.relative, status.env_steps)
