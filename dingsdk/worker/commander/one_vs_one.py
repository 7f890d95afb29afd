"""The commanders of self-play with two players: they choose opponents, in both modes."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dingsdk.config import PartSection, Share, Whole, to_plain
from dingsdk.data.seeding import derive_seed, player_seed
from dingsdk.errors import CheckpointCorruptError, DataMissingError, StorageFullError
from dingsdk.plugins import default_manager
from dingsdk.worker.collector.battle import game_outcome, outcome_of
from dingsdk.worker.collector.rollout import EpisodeRecord
from dingsdk.worker.commander.base import BaseParallelCommander, PlayerProgress, Task
from dingsdk.worker.commander.league import OneVsOneLeague, Player
from dingsdk.worker.commander.serial import BaseSerialCommander
from dingsdk.worker.commander.solo import SoloCommander
from dingsdk.worker.learner.checkpoint import load_checkpoint, save_checkpoint
from dingsdk.worker.player_folder import player_folder
from dingsdk.worker.run_logger import LogPace, write_statistics

_log = logging.getLogger(__name__)

LEAGUE_FOLDER = "league"
"""Folder of a run with its past players, and the league's state at the newest snapshot."""


class SelfPlay:
    """The league of a run of either mode: takes, saves and loads the snapshots of its players.

    Args:
        policy_cfg: Section ``policy``.
        run_dir: The run folder.
        seed: Seed of the draws of opponents.
        newest_of: Returns version and tensors of a player's policy by the player's checkpoint, or
            raises DataMissingError.
        publish: Stores a policy: its checkpoint, tensors and version.

    Attributes:
        folder: Folder with the past players, and the league's state at the newest snapshot.
        load_path: Such a folder of another run, until its players are loaded; else None.
    """

    def __init__(
        self,
        policy_cfg: Mapping[str, Any],
        run_dir: str,
        seed: int | None,
        newest_of: Callable[[str], tuple[int, Mapping[str, Any]]],
        publish: Callable[[str, Mapping[str, Any], int], None],
    ) -> None:
        self.league = create_league(policy_cfg, seed)
        self.league.copy = self._copy
        self.folder = Path(run_dir) / LEAGUE_FOLDER
        self.load_path: str | None = policy_cfg["other"]["league"].get("load_path")
        self.newest_of, self._publish = newest_of, publish

    def begin(self) -> None:
        """Load the past players of ``load_path``, once.

        Their results are not loaded: they are of games against the players that trained there.

        Raises:
            CheckpointError: there is no league, or it cannot be read.
        """
        path, self.load_path = self.load_path, None
        if path is None:
            return
        league = self.league
        own = {player_id: league.players[player_id] for player_id in league.active_players_ids}
        new = league.state_dict()
        league.load_state_dict({**saved_league(path), "payoff": new["payoff"], "rng": new["rng"]})
        past = {name: player for name, player in league.players.items() if not player.is_active}
        league.players = {**own, **past}
        for player in past.values():
            name, iteration = player.checkpoint, player.train_iter
            state = load_checkpoint(Path(path) / name).state
            save_checkpoint(self.folder, name, state, iteration=iteration, is_latest=False)
            self._publish(name, state["model"], iteration)

    def advance(self, player_id: str, train_iter: int) -> None:
        """Record the progress of an active player, and take a snapshot if it is due."""
        self.league.update_active_player({"player_id": player_id, "train_iteration": train_iter})
        try:
            if self.league.judge_snapshot(player_id):
                self._save(list(self.league.players.values())[-1])
        except (DataMissingError, StorageFullError) as error:
            _log.warning("a snapshot was not taken, it is tried again: %s", error)

    def statistics(self, player_id: str) -> dict[str, float]:
        """Return the number of past players, and a player's win rate against each other player."""
        past = len(self.league.players) - len(self.league.active_players_ids)
        rates = self.league.win_rates(player_id, of_all=True)
        named = {f"win_rate_{other}": rate for other, rate in rates.items()}
        return {"past_players": float(past), **named}

    def _copy(self, source: str, target: str) -> None:
        version, state = self.newest_of(source)
        self._publish(target, state, version)
        _log.info("version %d of the policy is %s of the league now", version, target)

    def _save(self, taken: Player) -> None:
        """Save a snapshot with the league's state."""
        state = {"model": dict(self.newest_of(taken.checkpoint)[1])}
        meta = {"league": json.dumps(self.league.state_dict())}
        name, iteration = taken.checkpoint, taken.train_iter
        try:
            save_checkpoint(self.folder, name, state, iteration=iteration, meta=meta)
        except StorageFullError as error:
            _log.warning("player %s of the league is not saved: %s", taken.player_id, error)


class OneVsOneSection(SoloCommander.Config, frozen=True, kw_only=True):
    """Section ``policy.other.commander``.

    Attributes:
        eval_win_rate: An evaluation counts as won if the share of points is above this value; a
            draw counts as half a win.
    """

    type: str = "one_vs_one"
    eval_win_rate: Share = 0.7


class PlayerCommander(SoloCommander):
    """Trains one active player of a league: issues its learner, collector and evaluation tasks.

    Each collector task is a job of the league: its games are against one opponent, and its result
    is counted, as is the result of each game that an earlier task began. Only the player's own
    samples are used. A snapshot that is due is copied in the policy store, where it stays for the
    run. Evaluations are against the opponents of
    ``env.eval_opponents``, one after the other: an evaluation that wins more than ``eval_win_rate``
    moves on to the next opponent. The player has reached its goal when it wins like this against
    the last opponent, with a mean return of at least ``env.stop_value``.
    """

    Config = OneVsOneSection
    saved = (
        *SoloCommander.saved,
        "_difficulty",
        "job_count",
        "episode_count",
        "sample_count",
        "_jobs",
    )
    _own: OneVsOneSection

    def __init__(
        self,
        cfg: Mapping[str, Any],
        clock: Callable[[], float],
        self_play: SelfPlay,
        player_id: str,
    ) -> None:
        self.league, self.player_id = self_play.league, player_id
        self._is_first = player_id == self.league.active_players_ids[0]
        if not self._is_first:
            cfg = {**cfg, "seed": player_seed(int(cfg["seed"]), player_id)}
        super().__init__(cfg, clock)
        self._self_play = self_play
        self._named = {} if self._is_first else {"player": player_id}
        """Keys that mark its tasks; empty for the first player."""
        self._opponents = list(cfg["env"]["eval_opponents"])
        self._difficulty = 0
        self._jobs: dict[str, dict[str, Any]] = {}
        self.job_count = 0
        """Collector tasks that it has issued, without evaluations."""
        self.episode_count = self.sample_count = 0
        """As in ``PlayerProgress``."""

    @property
    def progress(self) -> PlayerProgress:
        """Counts of its player."""
        return PlayerProgress(
            self._player.train_iter, self.envstep, self.episode_count, self.sample_count
        )

    @property
    def turn(self) -> tuple[int, int]:
        """How many collector tasks it has issued, without and with evaluations.

        The next task goes to the player with the lowest numbers.
        """
        return self.job_count, self._collector_count

    @property
    def is_training(self) -> bool:
        """Whether its learner task has not ended."""
        return self._current is not None

    @property
    def is_to_evaluate(self) -> bool:
        """Whether one of its tasks ended early for an evaluation that is due."""
        has_ended = bool(self._ending) and self._ending not in self._collector_tasks
        return has_ended and self._is_eval_due()

    def is_owner_of(self, task_id: str) -> bool:
        """Return whether a task is one of its unfinished tasks."""
        return task_id in self._collector_tasks or task_id in self._learner_tasks

    def get_learner_task(self) -> Task | None:
        task = super().get_learner_task()
        if task is not None:
            # A new learner begins with new weights, so it has a new policy.
            self._player.checkpoint = task["policy_id"]
            self._player.train_iter = self._player.snapshot_iter = 0
            task |= self._named
        return task

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        if not self.is_owner_of(task_id):
            return
        super().update_learner_info(task_id, info)
        self._self_play.advance(self.player_id, self._newest_iter)

    def finish_collector_task(self, task_id: str, finished_task: Mapping[str, Any]) -> bool:
        job = self._jobs.pop(task_id, None)
        if job is not None and len(job["player_id"]) > 1:
            self.league.finish_job({**job, "result": finished_task.get("game_result") or []})
            ids = {each.checkpoint: name for name, each in self.league.players.items()}
            for paths, outcome in finished_task.get("earlier_games") or ():
                if all(path in ids for path in paths):  # else a learner was replaced
                    names = [ids[path] for path in paths]
                    self.league.finish_job({"player_id": names, "result": [outcome]})
        return super().finish_collector_task(task_id, finished_task)

    def notify_fail_collector_task(self, task: Mapping[str, Any]) -> None:
        self._jobs.pop(task["task_id"], None)
        super().notify_fail_collector_task(task)

    def statistics(self) -> dict[str, float]:
        """Return the sizes of the league, the opponent of evaluations, and the win rates."""
        statistics = self._self_play.statistics(self.player_id)
        return {"eval_opponent": float(self._difficulty), **statistics}

    @property
    def _player(self) -> Player:
        return self.league.players[self.player_id]

    def _collector_task(self, learner: Task, *, is_evaluation: bool) -> Task:
        # If the learner has ended, its policy is still in the store.
        job = self.league.get_job_info(self.player_id, eval_flag=is_evaluation)
        self.job_count += not is_evaluation
        task = super()._collector_task(learner, is_evaluation=is_evaluation) | self._named
        cfg = task["collector_cfg"]
        cfg["policy"] = [to_plain(cfg["policy"]) for _ in job["player_id"]]
        cfg["policy_update_path"] = list(job["checkpoint_path"])
        # Against itself it learns from both seats; it never learns from another player's seat.
        cfg["policy_update_flag"] = [each == self.player_id for each in job["player_id"]]
        if is_evaluation:
            cfg["env"]["eval_opponent"] = self._opponents[self._difficulty]
        self._jobs[task["task_id"]] = job
        return task

    def _ends_run(self, result: Mapping[str, Any]) -> bool:
        points = result.get("numbers", {}).get("points", {}).get("mean")
        if points is None:  # the evaluator played no games: the signs of its results decide
            games = [outcome_of(each, 0.0) for each in result["reward_raw"]]
            points = (games.count("wins") + games.count("draws") / 2) / max(1, len(games))
        if points <= self._own.eval_win_rate:
            return False
        if self._difficulty + 1 < len(self._opponents):
            self._difficulty += 1
            _log.info("evaluations are against %r now", self._opponents[self._difficulty])
            return False
        return self._is_first and super()._ends_run(result)


class OneVsOneCommander(BaseParallelCommander):
    """Trains the active players of a league against each other and their past, ``one_vs_one``.

    Each active player has its own learner, buffer and policy, see ``PlayerCommander``. The next
    collector task goes to a player that ended one early for an evaluation, else to the player with
    the fewest tasks; no task is issued before all players have their learners. The run has reached
    its goal when the first player has.
    """

    max_players = 2
    Config = OneVsOneSection

    def __init__(self, cfg: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(cfg)
        seed = derive_seed(int(cfg["seed"]), "league")
        self._self_play = SelfPlay(
            cfg["policy"], cfg["exp_name"], seed, self._newest_of, self._publish
        )
        self.league = self._self_play.league
        self._trained_out: set[str] = set()
        self._commanders = {
            player_id: PlayerCommander(cfg, clock, self._self_play, player_id)
            for player_id in self.league.active_players_ids
        }
        for _ in range(len(self._commanders) - self._learner_space.max_val):
            self._learner_space.increase_space()
        for each in self._commanders.values():
            each._collector_space, each._learner_space = self._collector_space, self._learner_space

    @classmethod
    def policy_num(cls, cfg: Mapping[str, Any]) -> int:
        return len(create_league(cfg["policy"], None).active_players_ids)

    @property
    def first(self) -> PlayerCommander:
        """The commander of the first active player."""
        return next(iter(self._commanders.values()))

    def players(self) -> dict[str, PlayerProgress]:
        if len(self._commanders) == 1:
            return {}
        return {player_id: each.progress for player_id, each in self._commanders.items()}

    def get_learner_task(self) -> Task | None:
        self._self_play.begin()
        waiting = self._without_learner()
        for each in waiting:
            each.begins_at = self.begins_at
        return waiting[0].get_learner_task() if waiting else None

    def get_collector_task(self) -> Task | None:
        if self._without_learner() or self.first.has_reached_goal:
            return None  # an opponent without a learner has no policy yet
        training = [each for each in self._commanders.values() if each.is_training]
        turns = sorted(training, key=lambda each: (not each.is_to_evaluate, each.turn))
        return _first_of(each.get_collector_task for each in turns)

    def get_eval_task(self) -> Task | None:
        if self.first.has_reached_goal:
            return None
        return _first_of(each.get_eval_task for each in self._commanders.values())

    def get_last_eval_task(self) -> Task | None:
        return _first_of(each.get_last_eval_task for each in self._commanders.values())

    def get_collect_setting(self, task_id: str) -> Mapping[str, Any] | None:
        return self._owner(task_id).get_collect_setting(task_id)

    def wants_end_of(self, task_id: str) -> bool:
        return self._owner(task_id).wants_end_of(task_id)

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        self._owner(task_id).update_learner_info(task_id, info)

    def update_collector_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        self._owner(task_id).update_collector_info(task_id, info)

    def finish_collector_task(self, task_id: str, finished_task: Mapping[str, Any]) -> bool:
        owner = self._owner(task_id)
        if owner.is_owner_of(task_id) and not finished_task.get("eval_flag"):
            self._count(owner, finished_task)
        owner.finish_collector_task(task_id, finished_task)
        return self.first.has_reached_goal

    def notify_fail_collector_task(self, task: Mapping[str, Any]) -> None:
        self._owner(task["task_id"]).notify_fail_collector_task(task)

    def finish_learner_task(self, task_id: str, finished_task: Mapping[str, Any]) -> str:
        owner = self._owner(task_id)
        if owner.is_owner_of(task_id) and len(self._commanders) > 1:
            self._trained_out.add(owner.player_id)  # the other players continue to train
        return owner.finish_learner_task(task_id, finished_task)

    def notify_fail_learner_task(self, task: Mapping[str, Any]) -> None:
        self._owner(task["task_id"]).notify_fail_learner_task(task)

    def statistics(self) -> dict[str, float]:
        """As ``PlayerCommander.statistics``; names of later players are ``<player>/<name>``."""
        found = self.first.statistics()
        for player_id, each in list(self._commanders.items())[1:]:
            found |= {f"{player_id}/{name}": value for name, value in each.statistics().items()}
        return found

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "league": self.league.state_dict(),
            "has_loaded": self._self_play.load_path is None,
            "trained_out": sorted(self._trained_out),
            "commanders": {name: each.state_dict() for name, each in self._commanders.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.league.load_state_dict(state["league"])
        if state["has_loaded"]:
            self._self_play.load_path = None
        self._trained_out = set(state["trained_out"])
        for name, each in self._commanders.items():
            each.load_state_dict(state["commanders"][name])
        super().load_state_dict(state)

    def resume(self) -> None:
        """Publish the policies of players that no longer train, if the policy store lost them."""
        limit = self._cfg["policy"]["learn"]["learner"]["train_iterations"]
        for player_id, player in self.league.players.items():
            if player_id in self._trained_out:
                if player.train_iter < limit:
                    _log.warning(
                        "%s ended its training at iteration %d and does not continue to %d: its "
                        "samples are gone",
                        player_id,
                        player.train_iter,
                        limit,
                    )
                name = None if player_id == self.first.player_id else player_id
                path = player_folder(self._self_play.folder.parent, name) / "ckpt"
            elif player.is_active:
                continue  # its learner publishes its policy
            else:
                path = self._self_play.folder / player.checkpoint
            if self.policy_store.newest(player.checkpoint) is None:
                found = load_checkpoint(path)
                state = found.state["model"]
                self.policy_store.publish(player.checkpoint, state, found.iteration)

    def _count(self, owner: PlayerCommander, finished_task: Mapping[str, Any]) -> None:
        """Count episodes and samples of a task for the players that they were collected for."""
        home = {
            self.league.players[name].checkpoint: each for name, each in self._commanders.items()
        }
        earlier = [paths[0] for paths, _ in finished_task.get("earlier_games") or ()]
        for path in earlier:
            home.get(path, owner).episode_count += 1
        owner.episode_count += int(finished_task.get("real_episode_count", 0)) - len(earlier)
        owner.sample_count += int(finished_task.get("sample_count", 0))

    def _without_learner(self) -> list[PlayerCommander]:
        """Return the commanders of players that still need a learner task."""
        return [
            each
            for player_id, each in self._commanders.items()
            if not (each.is_training or player_id in self._trained_out)
        ]

    def _owner(self, task_id: str) -> PlayerCommander:
        """Return the commander of an unfinished task; the first one, which ignores other tasks."""
        found = (each for each in self._commanders.values() if each.is_owner_of(task_id))
        return next(found, self.first)

    def _publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        self.policy_store.publish(policy_id, state, version)  # the store is set after the start

    def _newest_of(self, policy_id: str) -> tuple[int, dict[str, Any]]:
        newest = self.policy_store.newest(policy_id)
        if newest is None:
            raise DataMissingError(f"policy {policy_id} is not published yet", data_id=policy_id)
        return newest


class OneVsOneSerialCommander(BaseSerialCommander):
    """Trains one player of a league in serial mode: loads the opponent before each collect.

    The first player's commander creates the league; the commanders of other active players join it.
    A game that has begun is played to its end against its opponent, to whom its result belongs.

    Args: as ``BaseSerialCommander``; the collector plays two policies: one that trains, and a
        ``SwappablePlayer`` for the opponents.
    """

    max_players = 2

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``policy.other.serial_commander``.

        Attributes:
            games_per_opponent: Finished games against an opponent after which another one is
                drawn.
            seed: Seed of the draws; None derives it from the run's seed.
        """

        type: str = "one_vs_one"
        games_per_opponent: Whole = 16
        seed: int | None = None

    def __init__(self, cfg: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        self._own: OneVsOneSerialCommander.Config = self.read(cfg)
        policy_cfg, run_dir = self._policy.get_attribute("cfg"), self._learner.exp_name
        self._self_play = SelfPlay(
            policy_cfg, run_dir, self._own.seed, self._newest_of, self._snapshot
        )
        self.league = self._self_play.league
        self.player_id, *self.other_players = self.league.active_players_ids
        self._members = [self]
        """The commanders of all active players, which share this list; the first one keeps the
        policies of past players."""
        self._snapshots: dict[str, Any] = {}
        self._job: dict[str, Any] | None = None
        self._games = 0
        self._log_pace = LogPace()
        self._counted: Sequence[EpisodeRecord] = ()
        """Episodes of the newest collect whose games are counted."""

    @property
    def _policy(self) -> Any:
        """Policy of the player that this commander trains."""
        return self._collector.policy[0]

    def join(self, first: BaseSerialCommander, player_id: str) -> None:
        assert isinstance(first, OneVsOneSerialCommander)  # of the same config
        self._self_play, self.league = first._self_play, first.league
        self._members = first._members
        self._members.append(self)
        self.player_id, self.other_players = player_id, []

    def step(self) -> dict[str, Any]:
        """Draw and load the opponent of the next collect, then as ``BaseSerialCommander``."""
        self._count_games()
        self._self_play.begin()
        player_id, train_iter = self.player_id, int(self._learner.train_iter)
        self._self_play.advance(player_id, train_iter)
        if self._job is None or self._games >= self._own.games_per_opponent:
            self._games = 0
            self._job = self.league.get_job_info(player_id)
            if self._log_pace.is_due():
                statistics = self._self_play.statistics(player_id)
                writer, envstep = self._learner.tb_logger, self._collector.envstep
                write_statistics(writer, "commander", statistics, train_iter, envstep)
        away, path = self._job["player_id"][1], self._job["checkpoint_path"][1]
        _, model = self._self_play.newest_of(path)
        self._collector.policy[1].play(away, {"model": model})
        return super().step()

    def state_dict(self) -> dict[str, Any]:
        """Return the opponent; the first player's state also has the league and past players."""
        for each in self._members:
            each._count_games()
        found = {"job": json.dumps(self._job), "games": self._games}
        if self is not self._members[0]:
            return found
        league = json.dumps(self.league.state_dict())
        return {**found, "league": league, "snapshots": self._snapshots}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``state_dict``; all envs begin new games."""
        self._job, self._games = json.loads(state["job"]), int(state["games"])
        self._self_play.load_path = None
        if self is self._members[0]:
            self.league.load_state_dict(json.loads(state["league"]))
            self._snapshots = dict(state["snapshots"])

    def _count_games(self) -> None:
        """Count the games that ended in the newest collect, once."""
        episodes = self._collector.last_episodes
        # A player that has reached its limit takes further turns without a collect.
        if episodes is self._counted or self._job is None:
            return
        self._counted = episodes
        for info in (each.info for each in episodes):
            away, outcome = info["names"][1], game_outcome(info["players"])
            self._games += away == self._job["player_id"][1]
            self.league.finish_job({"player_id": [self.player_id, away], "result": [outcome]})

    def _newest_of(self, checkpoint: str) -> tuple[int, Mapping[str, Any]]:
        for each in self._members:
            player = self.league.players[each.player_id]
            if player.checkpoint == checkpoint:
                return player.train_iter, each._policy.state_dict()["model"]
        return 0, self._snapshots[checkpoint]["model"]

    def _snapshot(self, checkpoint: str, model: Mapping[str, Any], version: int) -> None:
        copied = {key: value.clone() for key, value in model.items()}
        self._snapshots[checkpoint] = {"model": copied}


def saved_league(path: str) -> dict[str, Any]:
    """Return the state of the league that a run saved in its folder ``league``.

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
    return dict(json.loads(found.meta["league"]))


def create_league(policy_cfg: Mapping[str, Any], seed: int | None) -> OneVsOneLeague:
    """Return the league that ``policy.other.league`` names."""
    league: OneVsOneLeague = default_manager().create(
        "leagues", policy_cfg["other"]["league"], seed=seed, config_path="policy.other.league"
    )
    return league


def _first_of(asked: Iterable[Callable[[], Task | None]]) -> Task | None:
    """Call the functions in order; return the first task that one of them returns."""
    return next((task for ask in asked if (task := ask()) is not None), None)
