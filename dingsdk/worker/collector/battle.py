"""Serial collectors for envs with several players, each of which has its own policy."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dingsdk.data.action_mask import ACTION_MASK
from dingsdk.data.columns import torch_to_numpy
from dingsdk.data.pytree import part_of
from dingsdk.envs.base import EnvManager
from dingsdk.envs.steps import Timestep
from dingsdk.errors import ConfigError
from dingsdk.policy.modes import mixes_versions, piece_of
from dingsdk.worker.collector.base import CollectorSection, ISerialCollector
from dingsdk.worker.collector.episode import WholeEpisodeCollector
from dingsdk.worker.collector.factory import add_columns
from dingsdk.worker.collector.policy_output import check_dicts
from dingsdk.worker.collector.rollout import EpisodeRecord, Quota, return_statistics
from dingsdk.worker.collector.rows import DictRollout, RowsWriter, piece_only, return_of
from dingsdk.worker.collector.sample import SampleCollector
from dingsdk.worker.collector.swappable_player import SwappablePlayer

Info = Mapping[str, Any]


class _Turn(NamedTuple):
    """A player's observation and output in its last turn, and its reward since then."""

    obs: Any
    output: Any
    reward: Any
    train_iter: int


class BattleRollout(DictRollout):
    """The rollout of envs whose obs, rewards and infos have one item per player.

    If an info says that a player's action was not used (``acted``) or will not be used in the next
    step (``acts_next``), its transition spans from one of its turns to the next, with the sum of
    the rewards in between, and its policy is not called in between. So a recurrent policy sees the
    turns of its player, as in training and in evaluations. In the first step of a game all policies
    are called; those of players whose action was not used are reset after it. The return of
    an episode is that of player 0. The info of its record has the keys ``players``, with the last
    info of each player, and ``names``: the current name of each ``SwappablePlayer``, None for other
    players.

    The other arguments are those of ``DictRollout``.

    Args:
        players: The collect or eval modes of the players, which are reset together.
        writers: As for ``write_to``.
    """

    def __init__(
        self,
        env: EnvManager,
        players: Sequence[Any],
        writers: Sequence[RowsWriter | None],
        quota: Quota = None,
        has_tensor_obs: bool = False,
        deepcopy_obs: bool = False,
    ) -> None:
        super().__init__(env, players[0], None, quota, has_tensor_obs, deepcopy_obs)
        self._players = players
        self._player_num = len(players)
        self._writers = writers
        self._writers_of: dict[int, Sequence[RowsWriter | None]] = {}
        """By env id, the writers of the games that have begun."""
        self._turns: list[dict[int, _Turn]] = [{} for _ in writers]
        """For each player, the unfinished turns by env id."""
        self._idle: list[set[int]] = [set() for _ in writers]
        """For each player, the envs where its action will not be used in the next step."""
        self._returns: list[dict[int, float]] = [{} for _ in writers]
        """For each player, the sum of its rewards in the current game, by env id."""

    def write_to(self, writers: Sequence[RowsWriter | None]) -> None:
        """Write the transitions of games that begin from now on to these writers.

        Args:
            writers: The writer of each player; None for a player whose transitions are not
                recorded.
        """
        self._writers = writers

    def forget_turns(self) -> int:
        """Drop the unfinished turns, such as those of older policies; return how many."""
        count = sum(map(len, self._turns))
        for turns in self._turns:
            turns.clear()
        return count

    def _reset_policy(self, env_ids: list[int]) -> None:
        for mode in self._players:
            mode.reset(env_ids)

    def infer(self, obs: dict[int, Any], policy_kwargs: Mapping[str, Any]) -> Any:
        if not obs:
            return [{}]
        for env_id in obs:
            self._writers_of.setdefault(env_id, self._writers)
        outputs = []
        for player, mode in enumerate(self._players):
            idle = self._idle[player]
            seen = {i: part_of(each, player) for i, each in obs.items() if i not in idle}
            made = mode.forward(self._seen(seen, mode), **policy_kwargs) if seen else {}
            check_dicts(made, list(seen))
            # Any action will do for idle players, such as the last one.
            outputs.append({i: made[i] if i in seen else self._output_pool[i][player] for i in obs})
        self._output_pool.update(outputs)
        return outputs

    def step_env(self, output: Any) -> dict[int, Timestep]:
        actions = {
            env_id: [np.asarray(torch_to_numpy(each[env_id]["action"])) for each in output]
            for env_id in output[0]
        }
        return self._env.step(actions)

    def _record_one(
        self, env_id: int, timestep: Timestep, train_iter: int, is_recorded: bool
    ) -> None:
        for player, info in enumerate(self._infos(timestep)):
            if info.get("acts_next", True):
                self._idle[player].discard(env_id)
            else:
                self._idle[player].add(env_id)
            if self._lengths[env_id] == 0 and not info.get("acted", True):
                mode = self._players[player]
                (mode.clear if isinstance(mode, SwappablePlayer) else mode.reset)([env_id])
        super()._record_one(env_id, timestep, train_iter, is_recorded)

    @property
    def _rows_per_step(self) -> int:
        return sum(writer is not None for writer in self._writers)

    def _write(self, env_id: int, timestep: Timestep, train_iter: int) -> None:
        writers = self._writers_of[env_id]
        for player, info in enumerate(self._infos(timestep)):
            if writers[player] is not None:
                self._write_player(player, env_id, timestep, info, train_iter)

    def _infos(self, timestep: Timestep) -> Any:
        shared = isinstance(timestep.info, Mapping)
        return [timestep.info] * len(self._players) if shared else timestep.info

    def _episode(self, env_id: int, timestep: Timestep, length: int) -> EpisodeRecord:
        infos = self._infos(timestep)
        names = [
            each.player_of(env_id) if isinstance(each, SwappablePlayer) else None
            for each in self._players
        ]
        return EpisodeRecord(
            env_id, return_of(infos[0]), length, {"players": infos, "names": names}
        )

    def _write_player(
        self, player: int, env_id: int, timestep: Timestep, info: Info, train_iter: int
    ) -> None:
        """Record the transition of one player, if its last turn is over."""
        turns, reward = self._turns[player], timestep.reward[player]
        gained = self._returns[player].get(env_id, 0.0) + float(reward)
        self._returns[player][env_id] = gained
        turn = turns.pop(env_id, None)
        if turn is not None:
            turn = turn._replace(reward=turn.reward + reward)
        if info.get("acted", True):
            obs, mode = part_of(self._obs_pool[env_id], player), self._players[player]
            version = mode.version_of(env_id) if isinstance(mode, SwappablePlayer) else None
            at = train_iter if version is None else version
            turn = _Turn(obs, self._output_pool[env_id][player], reward, at)
        if turn is None:
            return  # the player had no turn yet, or has left the game
        has_left = bool(info.get("terminated") or info.get("truncated"))
        is_done = bool(timestep.done) or has_left
        if not (is_done or info.get("acts_next", True)):
            turns[env_id] = turn
            return
        own = timestep._replace(
            obs=part_of(timestep.obs, player), reward=turn.reward, done=is_done, info=info
        )
        writer: Any = self._writers_of[env_id][player]
        if is_done:
            # The env reports no return for a player that leaves early.
            told = return_of(info) if "eval_episode_return" in info else gained
            writer.episode_returns = {env_id: told}
            if not (info.get("terminated") or info.get("acts_next", True)) and _is_free(own.obs):
                # Cut off while others moved: its value depends on actions that are not known.
                writer.cut(env_id)
                return
        transition = self._players[player].process_transition(turn.obs, turn.output, own)
        writer.record(env_id, transition, turn.train_iter, is_done)

    def _abandon(self, env_ids: list[int]) -> None:
        for env_id in env_ids:
            for turns in self._turns:
                turns.pop(env_id, None)
            for writer in self._end_game(env_id):
                if writer is not None:
                    writer.drop([env_id])
        super()._abandon(env_ids)

    def _end_episodes(self, env_ids: list[int], episodes: Iterable[EpisodeRecord]) -> None:
        for env_id in env_ids:
            for writer in self._end_game(env_id):
                if writer is not None:
                    writer.drop([env_id])  # all is cut; its discounted return begins again
        super()._end_episodes(env_ids, episodes)

    def _end_game(self, env_id: int) -> Sequence[RowsWriter | None]:
        """Forget the game of an env; return its writers."""
        for returns, idle in zip(self._returns, self._idle, strict=True):
            returns.pop(env_id, None)
            idle.discard(env_id)
        return self._writers_of.pop(env_id, ())


def _is_free(obs: Any) -> bool:
    """Return whether a mask in the observation of a player allows all actions."""
    return isinstance(obs, Mapping) and ACTION_MASK in obs and bool(np.all(obs[ACTION_MASK]))


def modes_of(policy: Any, env: Any, name: str, path: str, most: float = math.inf) -> list[Any]:
    """Return the modes of all players: two or more, at most ``most``, and one for each player.

    Args:
        policy: The modes.
        env: The env manager, launched; None if it is not known yet.
        name: Name of the collector or evaluator, for messages.
        path: Path of its section.
        most: Largest number of players.

    Raises:
        ConfigError: ``policy`` is the mode of a single player, or has another number of modes.
    """
    is_list = isinstance(policy, Sequence) and not hasattr(policy, "forward")
    modes = list(policy) if is_list else [policy]
    # Managers that are not dingsdk's may not have this attribute.
    players = getattr(env, "player_num", len(modes))
    if 2 <= len(modes) <= most and len(modes) == players:
        return modes
    raise ConfigError(
        f"{name} plays a list of {'two' if most == 2 else 'two or more'} policies, one for each "
        f"player of the env ({players}), and was given {len(modes)}; choose another {path}.type "
        "for an env of one player",
        path=f"{path}.type",
        found=len(modes),
    )


def outcome_of(own: float, other: float) -> str:
    """Return how a game ended for the player with the return ``own``."""
    return "draws" if own == other else "wins" if own > other else "losses"


def game_outcome(infos: Sequence[Info]) -> str:
    """Return how a game ended for player 0, by the last infos of all players."""
    first, *others = map(return_of, infos)
    return outcome_of(first, max(others))


def game_statistics(
    returns: Sequence[Sequence[float]], outcomes: Sequence[str]
) -> dict[str, float]:
    """Return the statistics of the returns of each player, and the shares of the outcomes."""
    found: dict[str, float] = {}
    for player, of_player in enumerate(returns):
        found |= return_statistics(of_player, f"reward{player}")
    for outcome in ("wins", "draws", "losses") if outcomes else ():
        found[f"share_of_{outcome}"] = outcomes.count(outcome) / len(outcomes)
    return found


class BattleCollector(ISerialCollector):
    """Base class of collectors for several players; ``policy`` is a list of collect modes.

    Unlike in DI-engine, an env that fails loses only its own unfinished episode.
    """

    max_players: ClassVar[float]
    _cfg: CollectorSection

    def _take_policy(self, policy: Any) -> None:
        if policy is not None:
            name, most = type(self).__name__, self.max_players
            self._policy = modes_of(policy, self._env, name, self._config_path, most)
            self._read(self._policy[0].get_attribute)
        for mode in self.policy:
            mode.reset()

    @abstractmethod
    def _read(self, read: Any) -> None:
        """Read the attributes of player 0's policy."""

    def _writer(
        self, make_samples: Callable[[list[Any]], list[Any]], traj_len: int | None
    ) -> RowsWriter:
        copies = self._cfg.deepcopy_obs
        writer = RowsWriter(self.env.env_num, traj_len, piece_only(make_samples), copies)
        add_columns(writer, self.policy[0])
        return writer

    def _rollout_of(
        self, writers: Sequence[RowsWriter | None], quota: Quota = None
    ) -> BattleRollout:
        cfg = self._cfg
        return BattleRollout(
            self.env, self.policy, writers, quota, cfg.transform_obs, cfg.deepcopy_obs
        )

    def _infos_of(self, episodes: Sequence[EpisodeRecord]) -> list[list[Info]]:
        """Return the last infos of the episodes, by player."""
        return [[each.info["players"][p] for each in episodes] for p in range(len(self.policy))]

    def _return_statistics(self) -> dict[str, float]:
        games = [each.info["players"] for each in self._finished]
        return game_statistics(
            [[return_of(info) for info in infos] for infos in self._infos_of(self._finished)],
            list(map(game_outcome, games)),
        )

    def _statistics(self) -> dict[str, Any]:
        return {**super()._statistics(), **self._times()}


class BattleEpisodeSerialCollector(WholeEpisodeCollector, BattleCollector):
    """Plays exactly ``n_episode`` episodes of two players per call.

    Envs start episodes as described in ``EpisodeSerialCollector``.
    """

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"episodes", "players"})

    class Config(CollectorSection, frozen=True, kw_only=True):
        """Section ``policy.collect.collector``.

        Attributes:
            get_train_sample: Whether to return train samples instead of episodes.
        """

        type: str = "episode_1v1"
        get_train_sample: bool = False

    _cfg: Config
    max_players = 2

    def collect(
        self,
        n_episode: int | None = None,
        train_iter: int = 0,
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[list[list[Any]], list[list[Info]]]:
        """As ``EpisodeSerialCollector.collect``; the default is player 0's ``n_episode``.

        Returns:
            Two lists with one item per player: its episodes (with ``get_train_sample``, the samples
            of all episodes), and its last info of each episode. Episodes are in the order in which
            they ended.
        """
        data, episodes = self._play(n_episode, train_iter, policy_kwargs)
        return data, self._infos_of(episodes)

    def _begin(self, n_episode: int) -> tuple[BattleRollout, Sequence[RowsWriter]]:
        whole = None if self._cfg.get_train_sample else lambda episode: [episode]
        writers = [self._writer(whole or mode.get_train_sample, None) for mode in self.policy]
        return self._rollout_of(writers, n_episode), writers

    def _read(self, read: Any) -> None:
        self._default_n_episode = read("cfg").get("collect", {}).get("n_episode")


class BattleSampleSerialCollector(SampleCollector, BattleCollector):
    """Collects ``n_sample`` train samples per call for each of two or more players.

    A player whose mode has ``collect_data = False`` acts, but its data is not recorded.
    Trajectories are cut, and extra samples kept, as described in ``SampleSerialCollector``.
    """

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"samples", "players"})

    class Config(CollectorSection, frozen=True, kw_only=True):
        """Section ``policy.collect.collector``."""

        type: str = "sample_1v1"

    _cfg: Config
    max_players = math.inf

    def collect(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        drop_extra: bool | None = None,
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[list[list[Any]], list[list[Info]]]:
        """As ``SampleSerialCollector.collect``; the default is player 0's ``n_sample``.

        Returns:
            Two lists with one item per player: its samples, and its last info of each episode that
            ended.
        """
        wanted = self._start(n_sample, train_iter)
        data, episodes = self._take(wanted, train_iter, drop_extra, policy_kwargs)
        return data, self._infos_of(episodes)

    def _build(self, traj_len: int | None) -> tuple[BattleRollout, Sequence[RowsWriter | None]]:
        writers = [
            self._writer(mode.get_train_sample, traj_len)
            if getattr(mode, "collect_data", True)
            else None
            for mode in self.policy
        ]
        return self._rollout_of(writers), writers

    def _discard(self) -> None:
        self._dropped_sample_count += self._rollout.forget_turns()
        super()._discard()

    def _read(self, read: Any) -> None:
        cfg = read("cfg")
        self._default_n_sample = cfg.get("collect", {}).get("n_sample")
        self._on_policy = bool(cfg.get("on_policy", False))
        self._mixes_versions = mixes_versions(cfg)
        self._unroll_len = int(read("unroll_len"))
        self._piece = piece_of(self.policy[0])
        self._rollout = None
