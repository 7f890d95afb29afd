"""Multi-player collectors: the data of each player when episodes end, fail or wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from dingsdk.data.collected import DISCOUNTED_RETURN
from dingsdk.envs import Capabilities
from dingsdk.errors import ConfigError
from dingsdk.worker import create_serial_collector
from dingsdk.worker.collector.battle import BattleRollout, game_outcome
from dingsdk.worker.collector.rows import RowsWriter
from dingsdk.worker.collector.swappable_player import SwappablePlayer
from tests.fakes import Scalars

from .duel import DuelEnvs, Fighter


@pytest.fixture
def make_battle(tmp_path) -> Iterator[Any]:
    opened: list[Any] = []

    def make(kind: str, envs: Any, fighters: Any, **cfg: Any) -> Any:
        modes = [each.mode() if isinstance(each, Fighter) else each for each in fighters]
        tb_logger = cfg.pop("tb_logger", None)
        collector = create_serial_collector(
            {"type": kind, **cfg}, env=envs, policy=modes, exp_name=str(tmp_path),
            tb_logger=tb_logger,
        )  # fmt: skip
        opened.append(collector)
        return collector

    yield make
    for each in opened:
        each.close()


def _rows(samples: Any) -> list[tuple[int, ...]]:
    """Return (env, player, episode, time) of each sample."""
    return [tuple(int(value) for value in each["obs"]) for each in samples]


def test_player_that_only_acts_gets_no_data(make_battle) -> None:
    class Mute:
        collect_data = False

        def __init__(self, mode: Any) -> None:
            self.__dict__.update(mode._asdict())

    envs = DuelEnvs(((4,), (4,)), fails={(0, 0, 3)})
    mute = Fighter(1)
    collector = make_battle("sample_1v1", envs, [Fighter(0, n_sample=4), Mute(mute.mode())])

    data, infos = collector.collect(8)

    assert [len(samples) for samples in data] == [8, 0]
    assert len(infos[0]) == len(infos[1]) > 0
    assert mute.seen


def test_returns_of_each_player_are_logged(make_battle) -> None:
    writer, envs = Scalars(), DuelEnvs(((2,), (4,)))
    collector = make_battle(
        "episode_1v1", envs, [Fighter(0), Fighter(1)], tb_logger=writer, collect_print_freq=0
    )
    collector.collect(2)

    prefix = "collector_iter/"
    scalars = {tag.removeprefix(prefix): value for tag, ((value, _), *_) in writer.points.items()}
    assert (scalars["reward0_mean"], scalars["reward0_max"], scalars["reward1_mean"]) == (3, 4, 0)
    assert "reward_mean" not in scalars
    shares = [scalars[f"share_of_{name}"] for name in ("wins", "draws", "losses")]
    assert shares == [1, 0, 0]
    assert scalars["episode_count"] == 2
    assert scalars["envstep_count"] == 6


def test_players_that_do_not_fit_are_refused(make_battle, tmp_path) -> None:
    three = [Fighter(number) for number in range(3)]
    with pytest.raises(ConfigError, match=r"list of two policies, .* given 3"):
        make_battle("episode_1v1", DuelEnvs(((2,),)), three)
    with pytest.raises(ConfigError, match="was given 1") as caught:
        create_serial_collector(
            {"type": "sample_1v1"}, env=None, policy=three[0].mode(), exp_name=str(tmp_path)
        )
    assert caught.value.path == "policy.collect.collector.type"
    for kind in ("episode_1v1", "sample_1v1"):
        with pytest.raises(ConfigError, match="was given 1"):
            make_battle(kind, DuelEnvs(((2,),)), three[:1])
        with pytest.raises(ConfigError, match=r"each player of the env \(3\), and was given 2"):
            make_battle(kind, DuelEnvs(((2,),), players=3), three[:2])


class ByTurns(DuelEnvs):
    """Player ``time % 2`` acts. The rewards per step are 1 and 10. Ends after 5 steps."""

    def __init__(self, leaves: int = 99, env_num: int = 1) -> None:
        super().__init__(((5,),) * env_num)
        self.leaves = leaves

    def _step(self, env_id: int) -> Any:
        time = self.time[env_id] + 1
        step = super()._step(env_id)
        if isinstance(step.info, dict):
            return step  # abnormal
        for player, info in enumerate(step.info):
            info["acted"] = (time - 1) % 2 == player
            info["acts_next"] = time % 2 == player
            info["terminated"] = player == 1 and time == self.leaves
        return step._replace(reward=[np.float32(1), np.float32(10)])


def _turns(samples: Any) -> list[tuple[int, ...]]:
    """Return (time of the turn, time of the next turn, reward, done) of each sample."""
    return [
        (int(row["obs"][3]), int(row["next_obs"][3]), int(row["reward"]), bool(row["done"]))
        for row in samples
    ]


def test_player_that_leaves_ends_its_transition(make_battle) -> None:
    collector = make_battle("sample_1v1", ByTurns(leaves=3), [Fighter(0, n_sample=3), Fighter(1)])

    (first, second), _ = collector.collect(3, drop_extra=False)

    assert _turns(first[:3]) == [(0, 2, 2, False), (2, 4, 2, False), (4, 5, 1, True)]
    assert _turns(second[:2]) == [(1, 3, 20, True), (3, 5, 20, True)]


class CutOff(ByTurns):
    """A wrapper cuts the game after 5 steps, before the turn of player 1. It shows masks.

    Args:
        idle: The mask of a player that does not act next.
    """

    def __init__(self, idle: Any) -> None:
        super().__init__()
        self.idle = idle

    def _step(self, env_id: int) -> Any:
        step = super()._step(env_id)
        masks = [[1, 0] if info["acts_next"] else self.idle for info in step.info]
        obs = [{"seen": each, "action_mask": np.array(mask)} for each, mask in
               zip(step.obs, masks, strict=True)]  # fmt: skip
        return step._replace(obs=obs)


@pytest.mark.parametrize(("idle", "turns"), [([1, 1], [0, 2]), ([0, 1], [0, 2, 4])])
def test_cut_off_turn_is_recorded_only_with_the_mask_of_the_player(
    make_battle, idle, turns
) -> None:
    collector = make_battle("episode_1v1", CutOff(idle), [Fighter(0), Fighter(1)])

    (first, second), _ = collector.collect(2)

    # Player 0 acted at 4, and player 1 is next when the game ends at 5.
    assert [[_rows([row])[0][3] for row in episode] for episode in first] == [turns] * 2
    assert [[_rows([row])[0][3] for row in episode] for episode in second] == [[1, 3]] * 2
    assert [bool(episode[-1]["done"]) for episode in first] == [len(turns) == 3] * 2


def test_discounted_return_of_each_player_begins_again_in_each_game(make_battle) -> None:
    fighters = [Fighter(0), Fighter(1)]
    for each in fighters:
        each.cfg |= {"normalize": {"reward": True}, "discount_factor": 0.5}
    collector = make_battle("episode_1v1", CutOff([1, 1]), fighters)

    data, _ = collector.collect(2)

    # The last turn of player 0 in a game is not recorded.
    for games, expected in zip(data, ([2.0, 3.0], [20.0, 30.0]), strict=True):
        assert [[row[DISCOUNTED_RETURN] for row in game] for game in games] == [expected] * 2


@pytest.mark.parametrize("kind", ["episode_1v1", "sample_1v1"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_samples_have_reward_and_return_of_their_player(make_battle, kind, shape) -> None:
    fighters = [Fighter(0, n_sample=1), Fighter(1)]
    for each in fighters:
        each.cfg["collect"]["added_columns"] = ["env_id", "episode_return"]
        each.cfg["traj_len_inf"] = True
    collector = make_battle(kind, DuelEnvs(((2,), (3,)), reward_shape=shape), fighters)
    wanted = 2 if kind == "episode_1v1" else 5

    data, _ = collector.collect(wanted)

    for player, samples in enumerate(data):
        rows = [row for each in samples for row in (each if kind == "episode_1v1" else [each])]
        assert {np.shape(row["reward"]) for row in rows} == {()}
        assert {float(row["reward"]) for row in rows} == {1.0 - player}
        found = {(row["env_id"], row["episode_return"]) for row in rows}
        assert found >= {(0, 2.0 * (1 - player)), (1, 3.0 * (1 - player))}


def test_player_that_leaves_has_the_return_up_to_then(make_battle) -> None:
    fighters = [Fighter(0, n_sample=3), Fighter(1)]
    fighters[0].cfg["collect"]["added_columns"] = ["episode_return"]
    collector = make_battle("sample_1v1", ByTurns(leaves=3), fighters)

    second = [row for _ in range(4) for row in collector.collect(3, drop_extra=False)[0][1]]

    # It gets 10 in each of three steps, in every game. Its other rows are from after it left.
    found = [each["episode_return"] for each in second]
    assert len(found) > 4
    assert set(found[::2]) == {30}


@pytest.mark.parametrize("fails_at", [None, 3])
def test_policy_is_called_only_in_turns_of_its_player(fails_at: int | None) -> None:
    envs = ByTurns()
    envs.fails = {(0, 0, fails_at)}  # (env, episode, time)
    rollout, _, fighters = make_rollout(envs)
    calls = []
    for _ in range(6):
        before = [len(each.seen) for each in fighters]
        rollout.round(0, {})
        calls.append([len(each.seen) - count for each, count in zip(fighters, before, strict=True)])

    # At the start of a game it is not known whose turn it is.
    game = [[1, 1], [0, 1], [1, 0], [0, 1], [1, 0]]
    assert calls == ([*game, [1, 1]] if fails_at is None else [*game[:3], *game[:3]])
    # Player 1 has not acted in the first step; then a game ends.
    assert [each.resets for each in fighters] == [[[0]], [[0]] * 3]


def test_failed_game_loses_its_turns_and_keeps_those_of_other_games(make_battle) -> None:
    envs = ByTurns(env_num=2)
    envs.fails = {(0, 0, 3)}  # player 1 has acted, and waits for its next turn
    collector = make_battle("episode_1v1", envs, [Fighter(0), Fighter(1)])

    data, _ = collector.collect(2)

    by_env = [{int(each[0]["obs"][0]): each for each in episodes} for episodes in data]
    for episodes in by_env:
        assert {int(row["obs"][2]) for row in episodes[0]} == {1}
    assert _turns(by_env[1][1]) == [(1, 3, 20, False), (3, 5, 20, True)]


def test_turns_of_older_policies_are_dropped(make_battle) -> None:
    fighters = [Fighter(0, n_sample=1, on_policy=True), Fighter(1)]
    collector = make_battle("sample_1v1", ByTurns(), fighters)

    (first, second), _ = collector.collect(1, train_iter=0)
    assert (_turns(first), _turns(second)) == ([(0, 2, 2, False)], [(1, 3, 20, False)])
    assert collector.dropped_sample_count == 0
    (first, second), _ = collector.collect(1, train_iter=1)  # player 0 had acted at 2
    assert (_turns(first), _turns(second)) == ([(4, 5, 1, True)], [(3, 5, 20, True)])
    assert collector.dropped_sample_count == 1


def make_rollout(envs: Any) -> tuple[BattleRollout, list[RowsWriter], list[Fighter]]:
    fighters = [Fighter(0), Fighter(1)]
    writers = [RowsWriter(envs.env_num, None, lambda _, piece: piece) for _ in fighters]
    envs.launch()
    modes = [each.mode() for each in fighters]
    return BattleRollout(envs, modes, writers), writers, fighters


def unfinished(writers: list[RowsWriter]) -> list[int]:
    return [each.unfinished_rows for each in writers]


def test_game_that_has_begun_keeps_its_writers() -> None:
    rollout, writers, _ = make_rollout(DuelEnvs(((3,), (2,))))
    rollout.round(0, {})
    rollout.write_to([writers[0], None])
    rollout.round(0, {})  # the game of env 1 ends
    assert [len(each.flush() or ()) for each in writers] == [2, 2]
    assert unfinished(writers) == [2, 2]
    rollout.round(0, {})  # the game of env 0 ends; env 1 is in its second game
    assert [len(each.flush() or ()) for each in writers] == [3, 3]
    assert unfinished(writers) == [1, 0]


def test_rows_have_the_version_of_the_player_that_acted() -> None:
    seat = SwappablePlayer(Fighter(0).mode()._replace(load_state_dict=lambda state: None))
    envs = DuelEnvs(((3,), (1,)))
    envs.launch()
    writers = [RowsWriter(2, None, lambda _, piece: piece) for _ in range(2)]
    rollout = BattleRollout(envs, [seat, Fighter(1).mode()], writers)
    seat.play("former", {}, 10)
    rollout.round(11, {})  # the game of env 1 ends
    seat.play("next", {}, 20)
    for _ in range(2):
        rollout.round(21, {})  # the game of env 0 ends

    own, other = [
        [(int(row["obs"][0]), row["collect_iter"]) for row in writer.flush()] for writer in writers
    ]
    assert sorted(own) == [(0, 10)] * 3 + [(1, 10), (1, 20), (1, 20)]
    assert sorted(other) == [(0, 11), (0, 21), (0, 21), (1, 11), (1, 21), (1, 21)]


def test_turn_that_has_begun_is_written_where_its_game_is() -> None:
    rollout, writers, _ = make_rollout(ByTurns())
    for _ in range(2):
        rollout.round(0, {})  # each player has taken one turn
    rollout.write_to([writers[0], None])
    for _ in range(3):
        rollout.round(0, {})
    samples = [each.flush() or [] for each in writers]
    assert _turns(samples[0]) == [(0, 2, 2, False), (2, 4, 2, False), (4, 5, 1, True)]
    assert _turns(samples[1]) == [(1, 3, 20, False), (3, 5, 20, True)]


def test_step_that_an_older_policy_began_is_collected_for_no_player(make_battle) -> None:
    class Late(DuelEnvs):
        """The steps of env 1 end a round later."""

        late: ClassVar[dict[int, Any]] = {}

        @property
        def ready_obs(self) -> dict[int, Any]:
            return {i: self._obs(i) for i in range(self.env_num) if i not in self.late}

        def step(self, actions: Any) -> dict[int, Any]:
            ended = {**super().step(actions), **self.late}
            self.late = {1: ended.pop(1)} if 1 in actions else {}  # type: ignore[misc]
            return ended

    envs = Late(((9,), (9,)))
    envs.capabilities = Capabilities(asynchronous=True)
    fighters = [Fighter(number, n_sample=4, on_policy=True) for number in range(2)]
    collector = make_battle("sample_1v1", envs, fighters)

    collector.collect(train_iter=0)
    data, _ = collector.collect(train_iter=1)

    # Env 1 began its step at time 1 with policy 0, and ended it with policy 1.
    for player in (0, 1):
        expected = {(0, player, 0, 3), (0, player, 0, 4), (0, player, 0, 5), (1, player, 0, 2)}
        assert set(_rows(data[player])) == expected
    assert collector.dropped_sample_count == 2


def test_no_policy_is_called_if_no_env_is_ready() -> None:
    class Busy(DuelEnvs):
        ready_obs: ClassVar[Any] = {}

    envs = Busy(((9,),))
    envs.capabilities = Capabilities(asynchronous=True)
    rollout, writers, fighters = make_rollout(envs)
    rollout.round(0, {})
    assert unfinished(writers) == [0, 0]
    assert [fighter.seen for fighter in fighters] == [[], []]


def test_all_players_may_share_one_info(make_battle) -> None:
    class Shared(DuelEnvs):
        def _step(self, env_id: int) -> Any:
            step = super()._step(env_id)
            return step._replace(info=step.info[0])

    collector = make_battle("episode_1v1", Shared(((2,),)), [Fighter(0), Fighter(1)])

    _, infos = collector.collect(1)

    assert [[info["eval_episode_return"] for info in each] for each in infos] == [[2.0], [2.0]]


@pytest.mark.parametrize(
    ("returns", "outcome"),
    [((1, 1), "draws"), ((2, 1), "wins"), ((1, 2, 0), "losses"), ((1, 0, 1), "draws")],
)
def test_player_0_wins_if_its_return_is_the_highest(returns: Any, outcome: str) -> None:
    assert game_outcome([{"eval_episode_return": each} for each in returns]) == outcome
