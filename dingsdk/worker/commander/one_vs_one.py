"""The commanders of self-play between two: whom the trained player plays, in either mode."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dingsdk.config import PartSection, Share, Whole, to_plain
from dingsdk.data.seeding import derive_seed
from dingsdk.errors import CheckpointCorruptError, ConfigError, DataMissingError, StorageFullError
from dingsdk.plugins import default_manager
from dingsdk.worker.collector.battle import game_outcome, outcome_of
from dingsdk.worker.commander.base import Task
from dingsdk.worker.commander.league import OneVsOneLeague
from dingsdk.worker.commander.serial import BaseSerialCommander
from dingsdk.worker.commander.solo import EvalRecord, SoloCommander
from dingsdk.worker.learner.checkpoint import load_checkpoint, save_checkpoint
from dingsdk.worker.run_logger import write_statistics

_log = logging.getLogger(__name__)

LEAGUE_FOLDER = "league"
"""Folder of a run in which past players are kept, with the league as of the newest."""


class OneVsOneCommander(SoloCommander):
    """Trains one policy by games against itself and its past, type ``one_vs_one``.

    Each collector task is a job of the league: its games are against one opponent, and its result
    is counted. A snapshot that is due is copied in the policy store, where it stays for the run.
    Evaluations are against the opponents of ``env.eval_opponents``, one after the other: after one
    that wins more than ``eval_win_rate``, the next is due. The run has reached its goal when it
    does so, with the mean return ``env.stop_value``, against the last of them.

    Args:
        cfg: The compiled main config.
        clock: Monotonic seconds.
    """

    max_players = 2

    class Config(SoloCommander.Config, frozen=True, kw_only=True):
        """Section ``policy.other.commander``.

        Attributes:
            eval_win_rate: Share of the points, a draw being half a win, above which an evaluation
                counts as won.
        """

        type: str = "one_vs_one"
        eval_win_rate: Share = 0.7

    _own: Config

    def __init__(self, cfg: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(cfg, clock)
        self.league = create_league(cfg["policy"], derive_seed(int(cfg["seed"]), "league"))
        self.league.copy = self._copy
        self._folder = Path(cfg["exp_name"]) / LEAGUE_FOLDER
        self._opponents = list(cfg["env"]["eval_opponents"])
        self._difficulty = 0
        self._has_loaded = False
        self._jobs: dict[str, dict[str, Any]] = {}

    def get_learner_task(self) -> Task | None:
        if not self._has_loaded:
            past = self._cfg["policy"]["other"]["league"].get("load_path")
            load_league(self.league, past, self._folder, self._publish)
            self._has_loaded = True
        task = super().get_learner_task()
        if task is not None:
            # Another learner begins with new weights, and so with a policy of its own.
            self._player.checkpoint = task["policy_id"]
            self._player.train_iter = self._player.snapshot_iter = 0
        return task

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        super().update_learner_info(task_id, info)
        if self._current is None or self._current["task_id"] != task_id:
            return
        job = {"player_id": self._player.player_id, "train_iteration": self._newest_iter}
        self.league.update_active_player(job)
        try:
            take_snapshot(self.league, self._folder, lambda name: self._newest_of(name)[1])
        except (DataMissingError, StorageFullError) as error:
            _log.warning("a snapshot was not taken, it is tried again: %s", error)

    def finish_collector_task(self, task_id: str, finished_task: Mapping[str, Any]) -> bool:
        job = self._jobs.pop(task_id, None)
        if job is not None and job["agent_num"] > 1 and finished_task.get("game_result"):
            self.league.finish_job({**job, "result": finished_task["game_result"]})
        return super().finish_collector_task(task_id, finished_task)

    def notify_fail_collector_task(self, task: Mapping[str, Any]) -> None:
        self._jobs.pop(task["task_id"], None)
        super().notify_fail_collector_task(task)

    def statistics(self) -> dict[str, float]:
        """Return the sizes of the league, the opponent of evaluations, and the win rates."""
        return {"eval_opponent": float(self._difficulty), **league_statistics(self.league)}

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "league": self.league.state_dict(),
            "difficulty": self._difficulty,
            "has_loaded": self._has_loaded,
            "jobs": {task_id: dict(job) for task_id, job in self._jobs.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.league.load_state_dict(state["league"])
        self._difficulty = int(state["difficulty"])
        self._has_loaded = bool(state["has_loaded"])
        self._jobs = {task_id: dict(job) for task_id, job in state["jobs"].items()}

    @property
    def _player(self) -> Any:
        return self.league.players[self.league.active_players_ids[0]]

    def _collector_task(self, learner: Task, *, is_evaluation: bool) -> Task:
        # Of a learner that has ended, its policy is still there.
        job = self.league.get_job_info(self._player.player_id, eval_flag=is_evaluation)
        task = super()._collector_task(learner, is_evaluation=is_evaluation)
        cfg = task["collector_cfg"]
        if cfg["type"] != "serial":  # an evaluation by the evaluator that the config names
            cfg["policy"] = [to_plain(cfg["policy"]) for _ in job["player_id"]]
        cfg["policy_update_path"] = list(job["checkpoint_path"])
        cfg["policy_update_flag"] = list(job["player_active_flag"])
        if is_evaluation:
            cfg["env"]["eval_opponent"] = self._opponents[self._difficulty]
        self._jobs[task["task_id"]] = job
        return task

    def _ends_run(self, record: EvalRecord, result: Mapping[str, Any]) -> bool:
        games = [outcome_of(each, 0.0) for each in result["reward_raw"]]
        points = games.count("wins") + games.count("draws") / 2
        if not games or points / len(games) <= self._own.eval_win_rate:
            return False
        if self._difficulty + 1 < len(self._opponents):
            self._difficulty += 1
            _log.info("evaluations are against %r now", self._opponents[self._difficulty])
            return False
        return super()._ends_run(record, result)

    def _copy(self, source: str, target: str) -> None:
        version, state = self._newest_of(source)
        self._publish(target, state, version)
        _log.info("version %d of the policy is %s of the league now", version, target)

    def _newest_of(self, policy_id: str) -> tuple[int, dict[str, Any]]:
        assert self.policy_store is not None  # set by the coordinator
        newest = self.policy_store.newest(policy_id)
        if newest is None:
            raise DataMissingError(f"policy {policy_id} is not published yet", data_id=policy_id)
        return newest

    def _publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        assert self.policy_store is not None  # set by the coordinator
        self.policy_store.publish(policy_id, state, version)


class OneVsOneSerialCommander(BaseSerialCommander):
    """The same for serial mode: it loads the opponent before each collect.

    Args: as ``BaseSerialCommander``; the collector plays two policies, of which the first trains.
    """

    max_players = 2

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``policy.other.serial_commander``.

        Attributes:
            games_per_opponent: Games that end before another opponent is drawn.
            seed: Seed of the draws; None takes one of the run's seed tree.
        """

        type: str = "one_vs_one"
        games_per_opponent: Whole = 16
        seed: int | None = None

    def __init__(self, cfg: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        self._own: OneVsOneSerialCommander.Config = self.read(cfg)
        policy_cfg = self._collector.policy[0].get_attribute("cfg")
        self.league = create_league(policy_cfg, self._own.seed)
        self.league.copy = self._copy
        self._snapshots: dict[str, Any] = {}
        self._job: dict[str, Any] | None = None
        self._games = 0
        # Envs whose game was begun against the opponent before.
        self._mixed: set[int] = set()
        self._folder = Path(self._learner.exp_name) / LEAGUE_FOLDER
        past = policy_cfg["other"]["league"].get("load_path")
        load_league(self.league, past, self._folder, self._keep)

    def step(self) -> dict[str, Any]:
        """Draw and load the opponent of the next collect; else as ``BaseSerialCommander``."""
        self._count_games()
        (player_id,) = self.league.active_players_ids
        train_iter = int(self._learner.train_iter)
        self.league.update_active_player({"player_id": player_id, "train_iteration": train_iter})
        take_snapshot(self.league, self._folder, lambda name: self._snapshots[name]["model"])
        if self._job is None or self._games >= self._own.games_per_opponent:
            before, self._games = self._job, 0
            self._job = self.league.get_job_info(player_id)
            statistics = league_statistics(self.league)
            envstep = self._collector.envstep
            write_statistics(self._learner.tb_logger, "commander", statistics, train_iter, envstep)
            if before is not None and before["player_id"] != self._job["player_id"]:
                self._mixed = set(range(self._collector.env.env_num))
        own, opponent = self._collector.policy
        path = self._job["checkpoint_path"][1]
        opponent.load_state_dict(self._snapshots.get(path) or own.state_dict())
        return super().step()

    def state_dict(self) -> dict[str, Any]:
        """Return the league, its past players and the game that goes on, as a run saves them."""
        league = json.dumps({"league": self.league.state_dict(), "job": self._job})
        return {"league": league, "snapshots": self._snapshots, "games": self._games}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the commander of ``state_dict`` was; all envs begin new games."""
        saved = json.loads(state["league"])
        self.league.load_state_dict(saved["league"])
        self._job, self._games = saved["job"], int(state["games"])
        self._snapshots = dict(state["snapshots"])
        self._mixed = set()

    def _count_games(self) -> None:
        results = []
        for episode in self._collector.last_episodes:
            self._games += 1
            if episode.env_id in self._mixed:
                self._mixed.discard(episode.env_id)
                continue
            results.append(game_outcome(episode.info["players"]))
        if self._job is not None:
            self.league.finish_job({**self._job, "result": results})

    def _copy(self, source: str, target: str) -> None:
        self._keep(target, self._collector.policy[0].state_dict()["model"])

    def _keep(self, name: str, model: Mapping[str, Any], version: int = 0) -> None:
        copied = {key: value.clone() for key, value in model.items()}
        self._snapshots[name] = {"model": copied}


def take_snapshot(
    league: OneVsOneLeague, folder: Path, model_of: Callable[[str], Mapping[str, Any]]
) -> None:
    """Take the snapshot of the trained player that is due, and write it down with the league."""
    if not league.judge_snapshot(league.active_players_ids[0]):
        return
    taken = list(league.players.values())[-1]
    try:
        save_checkpoint(
            folder,
            taken.checkpoint,
            {"model": dict(model_of(taken.checkpoint))},
            iteration=taken.train_iter,
            meta={"league": json.dumps(league.state_dict())},
        )
    except StorageFullError as error:
        _log.warning("player %s of the league is not saved: %s", taken.player_id, error)


def load_league(
    league: OneVsOneLeague,
    path: str | None,
    folder: Path,
    put: Callable[[str, Mapping[str, Any], int], None],
) -> None:
    """Begin with the past of another run.

    Args:
        league: Gets its past players and results.
        path: Folder ``league`` of that run; None for no past.
        folder: The same of this run, which gets copies.
        put: Called with (checkpoint, its tensors, its train iteration) of each past player.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    if path is None:
        return
    league.load_state_dict(saved_league(path))
    for player in league.players.values():
        if player.is_active:
            player.train_iter = player.snapshot_iter = 0
            continue
        state = load_checkpoint(Path(path) / player.checkpoint).state
        save_checkpoint(
            folder, player.checkpoint, state, iteration=player.train_iter, is_latest=False
        )
        put(player.checkpoint, state["model"], player.train_iter)


def saved_league(path: str) -> dict[str, Any]:
    """Return the state of the league that a run has left in its folder ``league``.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    found = load_checkpoint(Path(path) / "latest")
    if "league" not in found.meta:
        raise CheckpointCorruptError(
            f"policy.other.league.load_path: {found.path} holds no league; name the folder "
            f"{LEAGUE_FOLDER!r} of a run of self-play",
            path=str(found.path),
        )
    state: dict[str, Any] = json.loads(found.meta["league"])
    return state


def league_statistics(league: OneVsOneLeague) -> dict[str, float]:
    """Return the number of past players, and the win rate of the trained one against each."""
    rates = league.win_rates(league.active_players_ids[0])
    named = {f"win_rate_{player_id}": rate for player_id, rate in rates.items()}
    return {"past_players": float(len(rates)), **named}


def create_league(policy_cfg: Mapping[str, Any], seed: int | None) -> OneVsOneLeague:
    """Return the league that ``policy.other.league`` names.

    Raises:
        ConfigError: it has several active players, and a run has one learner.
    """
    path = "policy.other.league"
    league: OneVsOneLeague = default_manager().create(
        "leagues", policy_cfg["other"]["league"], seed=seed, config_path=path
    )
    count = len(league.active_players_ids)
    if count != 1:
        raise ConfigError(
            f"{path}.active_player_num is {count}, but a run trains one player; set it to 1",
            path=f"{path}.active_player_num",
            found=count,
        )
    return league
