"""A league: players that train, snapshots of them, and who plays against whom.

Active players train. A snapshot of an active player is a historical player; it never changes.
The payoff counts the games between every two players. Opponents are drawn from it by prioritized
fictitious self-play (PFSP): the harder to beat, the more often.

Source: Vinyals et al., Grandmaster level in StarCraft II using multi-agent reinforcement learning,
Nature 575 (2019).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from dingsdk.config import Configurable, Count, PartSection, Share, SmallCount
from dingsdk.errors import CheckpointCorruptError, ConfigError, listing

Outcome = Literal["wins", "draws", "losses"]
_POINTS: Mapping[str, float] = {"wins": 1.0, "draws": 0.5, "losses": 0.0}


@dataclass(slots=True)
class Player:
    """One player of a league.

    Attributes:
        player_id: Unique in the league.
        checkpoint: Name of its policy; its meaning depends on the code that loads it.
        parent: The active player that a historical one is a snapshot of, else None.
        train_iter: Iterations that its policy was trained for.
        snapshot_iter: ``train_iter`` at the latest snapshot of an active player.
    """

    player_id: str
    checkpoint: str
    parent: str | None = None
    train_iter: int = 0
    snapshot_iter: int = 0

    @property
    def is_active(self) -> bool:
        """Whether the player trains."""
        return self.parent is None


class Payoff:
    """Results of the games between every two players; older games count less.

    Args:
        decay: Factor by which each new game reduces the weight of earlier games of the same two
            players.
        min_games: Two players with less than this weight of games count as equally strong.
    """

    def __init__(self, decay: float = 0.99, min_games: float = 8.0) -> None:
        self._decay = decay
        self._min_games = min_games
        self._records: defaultdict[tuple[str, str], list[float]]
        self._records = defaultdict(lambda: [0.0, 0.0])

    def add(self, home: str, away: str, outcome: Outcome) -> None:
        """Count one game, by its outcome for ``home``."""
        points = _POINTS[outcome]
        for pair, gained in (((home, away), points), ((away, home), 1.0 - points)):
            record = self._records[pair]
            record[0] = record[0] * self._decay + gained
            record[1] = record[1] * self._decay + 1.0

    def games(self, home: str, away: str) -> float:
        """Return the weight of the games between two players, >= 0."""
        return self._records[home, away][1] if (home, away) in self._records else 0.0

    def win_rate(self, home: str, away: str) -> float:
        """Return the share of points of ``home``, in [0, 1]; 0.5 after too few games."""
        games = self.games(home, away)
        if home == away or games == 0.0 or games < self._min_games:
            return 0.5
        return self._records[home, away][0] / games

    def state_dict(self) -> dict[str, Any]:
        """Return all records as plain data."""
        return {"records": [[*pair, *record] for pair, record in self._records.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all records with the records of a state of ``state_dict``."""
        self._records.clear()
        for home, away, points, games in state["records"]:
            self._records[home, away] = [float(points), float(games)]


def pfsp_weights(win_rates: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the probability of each opponent: proportional to ``(1 - win_rate) ** 2``.

    If all opponents always lose, they are equally likely.

    Args:
        win_rates: Own win rate against each opponent, in [0, 1]; at least one.
    """
    weights = (1.0 - np.asarray(win_rates, np.float64)) ** 2
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1.0 / len(weights))


class OneVsOneLeague(Configurable):
    """Players of a game for two, trained against each other and their past (``one_vs_one``).

    Not thread safe: the caller locks.

    Args:
        copy: Called with (checkpoint of an active player, checkpoint of its snapshot) when a
            snapshot is taken.

    Attributes:
        copy: The argument ``copy``; may be replaced.
        players: All players by id.
        payoff: The results of all games.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section of a league.

        Attributes:
            active_player_num: Players that train.
            one_phase_step: Train iterations between two snapshots of a player.
            strong_win_rate: If a player's win rate against each historical player is at least this,
                a snapshot is taken after only a quarter of ``one_phase_step``.
            self_play: Share of the games against active players; the other games are against
                historical players, once there are any.
            decay: Factor by which each game reduces the weight of earlier games of the same two
                players.
            min_win_rate_games: Two players count as equally strong if the weight of their games,
                1 for the newest, is less than this. With a ``decay`` d it stays below 1 / (1 - d).
            path_policy: Prefix of the names of all players' checkpoints.
            load_path: Folder ``league`` of an earlier run; the run begins with its past players,
                without their results. None: begin without past players.
        """

        type: str = "one_vs_one"
        active_player_num: SmallCount = 1
        one_phase_step: Count = 2000
        strong_win_rate: Share = 0.7
        self_play: Share = 0.5
        decay: Share = 0.99
        min_win_rate_games: Count = 8
        path_policy: str = "league"
        load_path: str | None = None

        def __post_init__(self) -> None:
            least = self.min_win_rate_games
            if least > 1 and least * (1 - self.decay) >= 1:
                raise ValueError(
                    f"decay is {self.decay:g}, so the weight of all games of two players stays "
                    f"below {1 / (1 - self.decay):g}, and min_win_rate_games is "
                    f"{least}: every win rate would stay 0.5; raise the first "
                    "or lower the second"
                )

    def __init__(
        self,
        cfg: Mapping[str, Any],
        seed: int | None = None,
        copy: Callable[[str, str], None] = lambda source, target: None,
    ) -> None:
        self._cfg: OneVsOneLeague.Config = self.read(cfg)
        self._rng = np.random.default_rng(seed)
        self.copy = copy
        self.payoff = Payoff(self._cfg.decay, self._cfg.min_win_rate_games)
        self.players: dict[str, Player] = {}
        for index in range(self._cfg.active_player_num):
            player = self._player(f"player_{index}")
            self.players[player.player_id] = player

    @property
    def active_players_ids(self) -> list[str]:
        """Ids of the players that train."""
        return [player.player_id for player in self.players.values() if player.is_active]

    def get_job_info(self, player_id: str | None = None, eval_flag: bool = False) -> dict[str, Any]:
        """Return who plays the next games.

        Args:
            player_id: The active player that the games train; None for the first one.
            eval_flag: Whether the games are an evaluation: then the player plays alone, against
                the built-in opponent of the env.

        Returns:
            ``player_id`` (home first) and ``checkpoint_path``, each with one entry for each player.

        Raises:
            ConfigError: there is no such active player.
        """
        home = self._active(player_id)
        playing = [home] if eval_flag else [home, self._draw_opponent(home)]
        return {
            "player_id": [player.player_id for player in playing],
            "checkpoint_path": [player.checkpoint for player in playing],
        }

    def finish_job(self, job_info: Mapping[str, Any]) -> None:
        """Count the games of a job.

        Args:
            job_info: ``player_id`` as returned by ``get_job_info``, and ``result``: the outcomes
                for its first player, ``wins``, ``draws`` or ``losses``, in lists of any depth.

        Raises:
            ConfigError: an outcome is not one of the three; no game of the job is counted.
        """
        outcomes = list(_flat(job_info["result"]))
        unknown = [outcome for outcome in outcomes if outcome not in _POINTS]
        if unknown:
            raise ConfigError(
                f"the result of a game is one of {listing(_POINTS)}, found {unknown[0]!r}",
                path="result",
                found=unknown[0],
            )
        home, away = job_info["player_id"]
        if home != away:
            for outcome in outcomes:
                self.payoff.add(home, away, outcome)

    def update_active_player(self, player_info: Mapping[str, Any]) -> None:
        """Store ``train_iteration`` of the active player ``player_id``.

        Raises:
            ConfigError: there is no such active player.
        """
        self._active(player_info["player_id"]).train_iter = int(player_info["train_iteration"])

    def judge_snapshot(self, player_id: str, force: bool = False) -> bool:
        """Take a snapshot of an active player if it is due; return whether it was taken.

        No snapshot is taken if ``copy`` raises. With ``force`` a snapshot is always due.

        Raises:
            ConfigError: there is no such active player.
        """
        player = self._active(player_id)
        if not force and not self._is_due(player):
            return False
        count = sum(each.parent == player_id for each in self.players.values())
        snapshot = self._player(f"{player_id}_{count}", player_id)
        self.copy(player.checkpoint, snapshot.checkpoint)
        snapshot.train_iter = player.snapshot_iter = player.train_iter
        self.players[snapshot.player_id] = snapshot
        return True

    def win_rates(self, player_id: str, of_all: bool = False) -> dict[str, float]:
        """Return the win rate of a player against each historical one, by id.

        With ``of_all``, the win rates against the other active players are included and come first.
        """
        others = [each for each in self.players.values() if of_all or not each.is_active]
        ids = [each.player_id for each in others if each.player_id != player_id]
        return {other: self.payoff.win_rate(player_id, other) for other in ids}

    def state_dict(self) -> dict[str, Any]:
        """Return players, payoff and the random state of the draws, as plain data."""
        return {
            "players": [asdict(player) for player in self.players.values()],
            "payoff": self.payoff.state_dict(),
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``state_dict``.

        Raises:
            CheckpointCorruptError: it is not a state of a league; this league is unchanged.
        """
        payoff, rng = Payoff(self._cfg.decay, self._cfg.min_win_rate_games), np.random.default_rng()
        try:
            players = [Player(**record) for record in state["players"]]
            payoff.load_state_dict(state["payoff"])
            rng.bit_generator.state = state["rng"]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointCorruptError(f"this is no state of a league: {error}") from error
        self.players = {player.player_id: player for player in players}
        self.payoff, self._rng = payoff, rng

    def _player(self, player_id: str, parent: str | None = None) -> Player:
        return Player(player_id, f"{self._cfg.path_policy}-{player_id}", parent)

    def _active(self, player_id: str | None) -> Player:
        known = self.active_players_ids
        if player_id is not None and player_id not in known:
            raise ConfigError(
                f"there is no active player {player_id!r}; known: {listing(known)}",
                path="player_id",
                known=known,
            )
        return self.players[known[0] if player_id is None else player_id]

    def _draw_opponent(self, home: Player) -> Player:
        history = [player for player in self.players.values() if not player.is_active]
        if not history or self._rng.random() < self._cfg.self_play:
            return self.players[self._rng.choice(self.active_players_ids)]
        rates = list(self.win_rates(home.player_id).values())
        return history[int(self._rng.choice(len(history), p=pfsp_weights(rates)))]

    def _is_due(self, player: Player) -> bool:
        trained = player.train_iter - player.snapshot_iter
        if trained >= self._cfg.one_phase_step:
            return True
        rates = self.win_rates(player.player_id).values()
        is_strong = bool(rates) and min(rates) >= self._cfg.strong_win_rate
        return is_strong and trained >= self._cfg.one_phase_step / 4


def _flat(result: Any) -> Iterable[Any]:
    if isinstance(result, str):
        yield result
        return
    for item in result:
        yield from _flat(item)
