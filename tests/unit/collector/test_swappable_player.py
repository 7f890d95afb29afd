"""A seat that different players take: whose weights act in which env."""

from __future__ import annotations

from typing import Any

from dingsdk.worker.collector.swappable_player import SwappablePlayer


class Mode:
    """Its action is its weight. It records the envs that were reset."""

    marked = "of the mode"

    def __init__(self) -> None:
        self.weight = -1
        self.loads: list[int] = []
        self.resets: list[Any] = []

    def load_state_dict(self, state: Any) -> None:
        self.weight = state["weight"]
        self.loads.append(self.weight)

    def get_train_sample(self, piece: list[Any]) -> list[Any]:
        return [(row, self.weight) for row in piece]

    def forward(self, obs: Any, plus: int = 0) -> Any:
        return dict.fromkeys(obs, self.weight + plus)

    def reset(self, env_ids: Any = None) -> None:
        self.resets.append(env_ids)


def test_each_game_keeps_its_player_until_the_env_is_reset() -> None:
    mode = Mode()
    seat = SwappablePlayer(mode)
    seat.play("a", {"weight": 1}, 10)
    assert seat.forward({0: None, 1: None}, plus=5) == {0: 6, 1: 6}

    seat.play("b", {"weight": 2}, 20)
    assert seat.forward({1: None, 2: None}) == {1: 1, 2: 2}
    seat.reset([1])
    assert seat.forward({0: None, 1: None, 2: None}) == {0: 1, 1: 2, 2: 2}

    assert [seat.player_of(env_id) for env_id in range(3)] == ["a", "b", "b"]
    assert [seat.version_of(env_id) for env_id in range(3)] == [10, 20, 20]
    seat.reset()
    assert seat.forward({0: None}) == {0: 2}
    assert mode.resets == [[1], None]


def test_player_whose_weights_are_loaded_acts_first() -> None:
    mode = Mode()
    seat = SwappablePlayer(mode)
    seat.play("a", {"weight": 1})
    seat.forward({0: None})
    seat.play("b", {"weight": 2})
    for _ in range(4):
        assert seat.forward({0: None, 1: None}) == {0: 1, 1: 2}

    assert mode.loads == [1, 2, 1, 2, 1, 2]


def test_newer_weights_are_used_in_games_that_have_begun() -> None:
    seat = SwappablePlayer(Mode())
    seat.play("a", {"weight": 1}, 10)
    seat.forward({0: None})
    seat.play("b", {"weight": 2}, 20)

    seat.update("a", {"weight": 3}, 30)
    seat.update("c", {"weight": 9}, 90)  # plays no game

    assert seat.forward({0: None, 1: None}) == {0: 3, 1: 2}
    assert (seat.version_of(0), seat.version_of(1)) == (30, 20)


def test_weights_of_players_without_a_game_are_released() -> None:
    seat = SwappablePlayer(Mode())
    for name in "abc":
        seat.play(name, {"weight": 0})
        seat.forward({0: None})
    seat.reset([0])
    seat.play("d", {"weight": 0})

    assert list(seat._players) == ["d"]
