"""The league: choice of opponents, counting of games, snapshots, and saved state."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from dingsdk.errors import CheckpointCorruptError, ConfigError
from dingsdk.worker.commander.league import OneVsOneLeague, Payoff, pfsp_weights


def make_league(**cfg: Any) -> OneVsOneLeague:
    return OneVsOneLeague({"one_phase_step": 100, **cfg}, seed=0)


def train_to(league: OneVsOneLeague, train_iter: int, player_id: str = "player_0") -> bool:
    league.update_active_player({"player_id": player_id, "train_iteration": train_iter})
    return league.judge_snapshot(player_id)


def play(league: OneVsOneLeague, home: str, away: str, **outcomes: int) -> None:
    result = [[outcome] * count for outcome, count in outcomes.items()]
    league.finish_job({"player_id": [home, away], "result": result})


def opponents(league: OneVsOneLeague, count: int = 4000) -> Counter[str]:
    return Counter(league.get_job_info()["player_id"][1] for _ in range(count))


def test_share_of_self_play_follows_the_config() -> None:
    league = make_league(self_play=0.25)
    league.judge_snapshot("player_0", force=True)

    drawn = opponents(league)

    assert drawn["player_0"] / 4000 == pytest.approx(0.25, abs=0.03)
    assert set(drawn) == {"player_0", "player_0_0"}


def test_hard_opponents_are_drawn_more_often() -> None:
    league = make_league(self_play=0.0, decay=1.0)
    for _ in range(3):
        league.judge_snapshot("player_0", force=True)
    play(league, "player_0", "player_0_0", wins=9, losses=1)
    play(league, "player_0", "player_0_1", wins=5, losses=5)
    play(league, "player_0", "player_0_2", wins=1, losses=9)

    drawn = opponents(league)

    expected = np.array([0.01, 0.25, 0.81]) / 1.07
    found = [drawn[f"player_0_{index}"] / 4000 for index in range(3)]
    assert found == pytest.approx(list(expected), abs=0.03)


def test_snapshot_is_due_after_a_phase_and_counts_from_the_last_one() -> None:
    copied: list[tuple[str, str]] = []
    league = OneVsOneLeague(
        {"one_phase_step": 100}, copy=lambda source, target: copied.append((source, target))
    )

    assert [train_to(league, n) for n in (99, 100, 199, 200)] == [False, True, False, True]
    assert copied == [
        ("league-player_0", "league-player_0_0"),
        ("league-player_0", "league-player_0_1"),
    ]
    snapshot = league.players["player_0_1"]
    assert (snapshot.train_iter, snapshot.parent, snapshot.is_active) == (200, "player_0", False)


@pytest.mark.parametrize(("wins", "is_taken"), [(7, True), (6, False)])
def test_snapshot_of_a_strong_player_is_due_after_a_quarter_of_a_phase(
    wins: int, is_taken: bool
) -> None:
    league = make_league(decay=1.0)
    league.judge_snapshot("player_0", force=True)
    play(league, "player_0", "player_0_0", wins=wins, losses=10 - wins)

    assert not train_to(league, 24)
    assert train_to(league, 25) is is_taken


def test_win_rate_needs_enough_games_and_older_games_count_less() -> None:
    payoff = Payoff(decay=0.5, min_games=1.75)
    payoff.add("a", "b", "wins")
    payoff.add("a", "b", "wins")
    assert (payoff.games("a", "b"), payoff.win_rate("a", "b")) == (1.5, 0.5)

    payoff.add("b", "a", "wins")

    assert payoff.games("a", "b") == payoff.games("b", "a") == 1.75
    assert payoff.win_rate("a", "b") == pytest.approx(0.75 / 1.75)
    assert payoff.win_rate("a", "nobody") == payoff.win_rate("a", "a") == 0.5


@pytest.mark.parametrize(
    ("decay", "least", "is_reached"),
    # 1 + 1/2 + 1/4 and so on stays below 2, and with 3/4 below 4.
    [(0.0, 1, True), (0.0, 2, False), (0.5, 2, False), (0.75, 3, True), (0.75, 4, False)],
)
def test_number_of_games_that_decayed_games_never_reach_is_refused(
    decay: float, least: int, is_reached: bool
) -> None:
    payoff = Payoff(decay, least)
    for _ in range(30):
        payoff.add("a", "b", "wins")
    assert (payoff.win_rate("a", "b") == 1.0) == is_reached

    if is_reached:
        make_league(decay=decay, min_win_rate_games=least)
    else:
        with pytest.raises(ConfigError, match="every win rate would stay"):
            make_league(decay=decay, min_win_rate_games=least)


def test_unknown_outcomes_and_players_are_refused_and_own_games_not_counted() -> None:
    league = make_league()
    league.judge_snapshot("player_0", force=True)
    play(league, "player_0", "player_0", wins=100)  # against itself

    with pytest.raises(ConfigError, match="draws, losses, wins, found 'won'") as caught:
        play(league, "player_0", "player_0_0", wins=10, won=1, lost=1)
    assert caught.value.facts["found"] == "won"
    for refused in ("player_0_0", "player_9"):
        with pytest.raises(ConfigError, match="known: player_0"):
            league.get_job_info(refused)
        with pytest.raises(ConfigError):
            league.judge_snapshot(refused, force=True)

    for other in ("player_0", "player_0_0"):
        assert league.payoff.games("player_0", other) == 0.0


@pytest.mark.parametrize("state", [{}, {"players": [{"name": 1}]}, {"players": [], "payoff": {}}])
def test_invalid_state_is_refused_and_changes_nothing(state: dict[str, Any]) -> None:
    league = make_league()
    before = league.state_dict()

    with pytest.raises(CheckpointCorruptError):
        league.load_state_dict(state)

    assert league.state_dict() == before


def test_opponents_that_always_lose_are_equally_likely() -> None:
    assert pfsp_weights([1.0, 1.0]).tolist() == [0.5, 0.5]
