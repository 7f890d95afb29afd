"""The parallel collector for several players, with one policy each."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from typing import Any, Self

from dingsdk.data.seeding import derive_seed
from dingsdk.errors import ConfigError
from dingsdk.worker.collector.battle import (
    BattleRollout,
    Players,
    game_outcome,
    outcome_of,
)
from dingsdk.worker.collector.rollout import EpisodeRecord, Rollout, Writer
from dingsdk.worker.collector.rows import RowsWriter, piece_only, return_of
from dingsdk.worker.collector.zergling import MAX_RETURNS_KEPT, ZerglingParallelCollector


class MarineParallelCollector(ZerglingParallelCollector):
    """Plays the games of one collect task, or evaluates one player.

    The task has lists with one entry per player: ``policy`` (configs), ``policy_update_path`` and
    ``policy_update_flag``, which says whether the player trains. For players that train, samples
    are sent, and newer policies are loaded between two rounds. For the others, the policy is loaded
    once. An evaluation has one player; the env provides the opponent. If a task with other players
    started a game, this task plays it to its end, but does not count its result.

    Unlike in DI-engine, trajectories that the end of an episode cuts short are sent too, and the
    policies of all players are loaded.
    """

    max_players = float("inf")
    acts_remotely = False

    class Config(ZerglingParallelCollector.Config, frozen=True, kw_only=True):
        """Section ``policy.collect.parallel_collector``."""

        type: str = "marine"

    _mixed: Set[int] = frozenset()
    """Envs whose current game was started with other players; its result does not count."""

    def __repr__(self) -> str:
        return f"Marine {'evaluator' if self._eval_flag else 'collector'} {self._uid}"

    def get_finish_info(self) -> dict[str, Any]:
        """Return the result of the task: the keys of ``zergling``, for player 0, and two more.

        ``player_returns`` of a collect task has one list per player, with the returns of its
        episodes. ``game_result`` has one list per env, with ``wins``, ``draws`` or ``losses`` for
        each game of player 0. In an evaluation, the sign of the return decides.
        """
        returns = [list(each) for each in self._player_returns]
        return {
            **super().get_finish_info(),
            "game_result": self._results,
            "player_returns": returns,
        }

    def _create_policies(self, policies: Any) -> list[Any]:
        modes = []
        for index, cfg in enumerate(policies):
            seed = self._cfg.get("seed")
            seed = None if seed is None else derive_seed(seed, "player", index)
            modes.append(self._create_policy(cfg, seed))
        return modes

    def _set_up_envs(self, cfg: Mapping[str, Any]) -> tuple[float, Self | None]:
        found = super()._set_up_envs(cfg)
        self._results: list[list[str]] = [[] for _ in range(self._env_num)]
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
        if before is None:
            copies = self._copies_obs()
            self._all_writers = [
                RowsWriter(self._env_num, traj_len, piece_only(mode.get_train_sample), copies)
                for mode in self._modes
            ]
            players = Players(self._modes)
            self._games = BattleRollout(
                self.env_manager, players, self._all_writers, None, True, copies
            )
        else:
            self._all_writers, self._games = before._all_writers, before._games
            self._mixed = before._mixed
            if self._paths != before._paths:
                self._mixed = set(range(self._env_num))
            if self._paths[0] != before._paths[0]:
                # Player 0 is another player now; the unfinished turns are not its own.
                self._games.forget_turns()
        training = [
            writer if trains else None
            for writer, trains in zip(self._all_writers, self._are_updated, strict=True)
        ]
        self._games.write_to(training)
        return self._games, [writer for writer in training if writer is not None]

    def _load(self, path: str, update: Mapping[str, Any]) -> None:
        if self._is_on_policy and path == self._paths[0]:
            # Their transitions would contain actions of the older policy.
            self._games.forget_turns()
        super()._load(path, update)

    def _note_episodes(self, episodes: Sequence[EpisodeRecord]) -> None:
        super()._note_episodes(episodes)
        for each in episodes:
            for player, info in enumerate(each.info.get("players", ())):
                self._player_returns[player].append(return_of(info))
            if each.env_id in self._mixed:
                self._mixed -= {each.env_id}
                continue
            if self._eval_flag:
                outcome = outcome_of(each.episode_return, 0.0)
            else:
                outcome = game_outcome(each.info["players"])
            self._results[each.env_id].append(outcome)
