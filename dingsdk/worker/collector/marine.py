"""The parallel collector for several players, with one policy each."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Self

from dingsdk.data.seeding import derive_seed
from dingsdk.errors import ConfigError
from dingsdk.worker.collector.battle import BattleRollout, game_outcome
from dingsdk.worker.collector.factory import add_columns
from dingsdk.worker.collector.rollout import EpisodeRecord, Rollout, Writer
from dingsdk.worker.collector.rows import RowsWriter, return_of
from dingsdk.worker.collector.swappable_player import SwappablePlayer
from dingsdk.worker.collector.zergling import MAX_RETURNS_KEPT, ZerglingParallelCollector


class MarineParallelCollector(ZerglingParallelCollector):
    """Plays the games of one collect task.

    The task has lists with one entry per player: ``policy`` (configs), ``policy_update_path`` and
    ``policy_update_flag``, which says whether the player trains. For players that train, samples
    are sent, and newer policies are loaded between two rounds. For the others, the policy is loaded
    once.

    A game that a task began with other players is played to its end by those players. Its
    transitions are sent with the next task of its player 0, and its result is reported apart.

    Unlike in DI-engine, trajectories that the end of an episode cuts short are sent too, and the
    policies of all players are loaded.
    """

    max_players = float("inf")
    acts_remotely = False

    class Config(ZerglingParallelCollector.Config, frozen=True, kw_only=True):
        """Section ``policy.collect.parallel_collector``."""

        type: str = "marine"

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self._all_writers: dict[str, list[RowsWriter]] = {}
        """By player: the writers of all seats in the games that are played for it."""
        super().__init__(cfg)

    def get_finish_info(self) -> dict[str, Any]:
        """Return the result of the task: the keys of ``zergling``, for player 0, and three more.

        ``player_returns`` has one list per player, with the returns of its episodes.
        ``game_result`` has one list per env, with ``wins``, ``draws`` or ``losses`` for each game
        of player 0.
        ``earlier_games`` are the games that earlier tasks began with other players, each as
        ``[paths of the policies, outcome]``; the returns are only of games with this player 0.
        """
        returns = [list(each) for each in self._player_returns]
        return {
            **super().get_finish_info(),
            "game_result": self._results,
            "earlier_games": self._earlier,
            "player_returns": returns,
        }

    def _create_policies(self) -> list[Any]:
        modes = []
        for index, cfg in enumerate(self._cfg["policy"]):
            seed = self._cfg.get("seed")
            seed = None if seed is None else derive_seed(seed, "player", index)
            modes.append(SwappablePlayer(self._create_policy(cfg, seed)))
        return modes

    def _set_up_envs(self, cfg: Mapping[str, Any]) -> tuple[float, Self | None]:
        found = super()._set_up_envs(cfg)
        self._results: list[list[str]] = [[] for _ in range(self._env_num)]
        self._earlier: list[list[Any]] = []
        self._player_returns: list[deque[float]]
        self._player_returns = [deque(maxlen=MAX_RETURNS_KEPT) for _ in cfg["policy"]]
        if self.env_manager.player_num != len(cfg["policy"]):
            raise ConfigError(
                f"the task names {len(cfg['policy'])} policies, and an env has "
                f"{self.env_manager.player_num} players; choose a commander for as many",
                path="policy.other.commander.type",
            )
        return found

    def _collecting_rollout(
        self, traj_len: int | None, before: Self | None
    ) -> tuple[Rollout, Sequence[Writer]]:
        copies, home = self._copies_obs(), self._paths[0]
        if before is None:
            silent = [None] * len(self._modes)
            self._games = BattleRollout(self.env_manager, self._modes, silent, None, True, copies)
        else:
            self._all_writers, self._games = before._all_writers, before._games
            if self._is_on_policy and before._paths[0] != home:
                # The player's older policy continued these games during other tasks: drop the rows.
                for writer in self._all_writers.get(home, ()):
                    writer.clear()
        if home not in self._all_writers:
            self._all_writers[home] = [
                RowsWriter(self._env_num, traj_len, seat.train_samples, copies)
                for seat in self._modes
            ]
            for writer in self._all_writers[home]:
                add_columns(writer, self.policy)
        writers = self._all_writers[home]
        trains = zip(writers, self._are_updated, strict=True)
        self._games.write_to([writer if is_updated else None for writer, is_updated in trains])
        return self._games, writers

    def _load(self, path: str, update: Mapping[str, Any]) -> None:
        if self._is_on_policy and not self._mixes_versions and path == self._paths[0]:
            # Their transitions would contain actions of the older policy.
            self._games.forget_turns()
        state, version = {"model": update["model"]}, int(update["iter"])
        for seat, name in zip(self._modes, self._paths, strict=True):
            if name == path:
                seat.play(path, state, version)
            else:
                seat.update(path, state, version)
        self._note_load(path, update)

    def _note_episodes(self, episodes: Sequence[EpisodeRecord]) -> None:
        super()._note_episodes(episodes)
        for each in episodes:
            outcome, names = game_outcome(each.info["players"]), each.info["names"]
            if names == self._paths:
                self._results[each.env_id].append(outcome)
            else:
                self._earlier.append([names, outcome])
            for player, info in enumerate(each.info["players"] if self._is_own(each) else ()):
                self._player_returns[player].append(return_of(info))

    def _is_own(self, episode: EpisodeRecord) -> bool:
        return bool(episode.info["names"][0] == self._paths[0])
