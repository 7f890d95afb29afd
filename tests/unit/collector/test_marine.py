"""The parallel multi-player collector, compared with games that the test plays itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError
from dingsdk.policy import create_policy
from dingsdk.worker.collector.env_pool import EnvPool
from dingsdk.worker.collector.marine import MarineParallelCollector
from dingsdk.worker.collector.serial_task import SerialTaskCollector

pytest.importorskip("pettingzoo", reason="the extra multiagent is not installed")

GAMES = "tests.unit.envs.games"
STONES = 7
POLICY = {
    "type": "dqn",
    "model": {"obs_shape": {"observation": 2, "action_mask": 2}, "action_shape": 2},
    "collect": {"n_sample": 8, "unroll_len": 1},
}


def weights(seed: int) -> Any:
    mode = create_policy(POLICY, enable_field=["collect"], seed=seed).collect_mode
    return mode.state_dict()["model"]


def actor(seed: int) -> Callable[[int, int], int]:
    """Return ``act(seat, stones)`` of the policy with the weights of ``seed``."""
    mode = create_policy(POLICY, enable_field=["eval"], seed=seed).eval_mode

    def act(seat: int, stones: int) -> int:
        obs = {
            "observation": np.array([[seat, stones]], np.float32),
            "action_mask": np.array([[1, stones >= 2]], np.int8),
        }
        return int(mode.forward_batch(obs, np.arange(1))["action"][0])  # type: ignore[misc]

    return act


class Row(NamedTuple):
    obs: tuple[int, ...]
    action: int
    reward: float
    next_obs: tuple[int, ...]
    done: bool


def play(actors: Any, shift: int) -> tuple[list[list[Row]], float]:
    """Play one game of Nim; return the rows of each player and the result of player 0."""
    stones, seat = STONES, 0
    last: dict[int, tuple[Any, int]] = {}
    rows: list[list[Row]] = [[], []]
    while True:
        player = (seat - shift) % 2
        if player in last:
            obs, action = last.pop(player)
            rows[player].append(Row(obs, action, 0.0, (seat, stones), False))
        action = actors[player](seat, stones)
        last[player] = ((seat, stones), action)
        stones -= action + 1
        if stones <= 0:
            won = 1.0 if stones == 0 else -1.0
            for other, (obs, taken) in last.items():
                reward = won if other == player else -won
                rows[other].append(Row(obs, taken, reward, (obs[0], stones), True))
            return rows, won if player == 0 else -won
        seat = 1 - seat


class Store:
    """Provides policies by path. Records the requested paths and the sent data."""

    def __init__(self, **models: Any) -> None:
        self.models = models
        self.asked: list[str] = []
        self.told: dict[str, int] = {}
        self.versions = defaultdict(lambda: 3, dict.fromkeys(models, 3))
        self.metas: list[dict[str, Any]] = []
        self.payloads: list[SampleBatch] = []

    def attach(self, collector: MarineParallelCollector) -> MarineParallelCollector:
        collector.send_metadata = self.metas.append
        collector.send_stepdata = lambda _, batch: self.payloads.append(batch)
        collector.get_policy_update_info = self.newest
        return collector

    def newest(self, path: str) -> Any:
        self.asked.append(path)
        if path not in self.models or self.told.get(path) == self.versions[path]:
            return None
        self.told[path] = self.versions[path]
        return {"model": self.models[path], "iter": self.versions[path]}

    def rows(self) -> list[Row]:
        found = []
        for batch in self.payloads:
            for row in batch:
                obs, after = (
                    tuple(int(value) for value in row[name]["observation"])
                    for name in ("obs", "next_obs")
                )
                done = bool(row["done"])
                found.append(Row(obs, int(row["action"]), float(row["reward"]), after, done))
        return found


@pytest.fixture
def make_marine(make_task: Any) -> Any:
    def make(
        store: Store, paths: Any, flags: Any, *, kind: Any = MarineParallelCollector, **changes: Any
    ):
        env: Any = {"env_id": f"{GAMES}:Nim", "kwargs": {"stones": STONES}}
        env |= {"collector_env_num": 2, "evaluator_env_num": 2, "collector_episode_num": 6}
        env |= changes.pop("env", {})
        if not changes.get("eval_flag"):
            changes = {"collect_setting": {"eps": 0.0}, **changes}
        own = {"env_manager": {"type": "base"}, "policy": [POLICY] * len(paths)}
        own |= {"policy_update_path": paths, "policy_update_flag": flags}
        cfg = {**own, "env": env, "update_policy_second": 3600, **changes}
        return store.attach(make_task(kind, **cfg))

    return make


@pytest.mark.parametrize(
    "kind", ["base", "async_subprocess", pytest.param("subprocess", marks=pytest.mark.slow)]
)
def test_rows_of_all_training_players_are_sent(make_marine, kind: str) -> None:
    store = Store(new=weights(6))
    collector = make_marine(store, ["new", "new"], [True, True], env_manager={"type": kind})

    collector.start()

    info = collector.get_finish_info()
    games = info["real_episode_count"]
    assert games >= 12
    assert info["collector_done"] is True
    expected = [row for shift in (0, 1) for rows in play([actor(6)] * 2, shift)[0] for row in rows]
    assert set(store.rows()) <= set(expected)
    assert sum(row.done for row in store.rows()) == 2 * games
    lost = sum(row.reward == -1 for row in store.rows())
    won = sum(row.reward == 1 for row in store.rows())
    assert won == lost == games
    assert info["sample_count"] == len(store.rows())
    own, other = info["player_returns"]
    assert own == [-each for each in other] == info["reward_raw"]
    assert store.told == {"new": 3}
    assert {meta["policy_iter"] for meta in store.metas if "data_id" in meta} == {3}


def test_fixed_opponent_acts_with_its_own_weights_and_sends_nothing(make_marine) -> None:
    store = Store(new=weights(6), old=weights(4))
    collector = make_marine(store, ["new", "old"], [True, False])

    collector.start()

    games = [play([actor(6), actor(4)], shift) for shift in (0, 1)]
    expected = {row for rows, _ in games for row in rows[0]}
    assert set(store.rows()) == expected
    assert {row for rows, _ in games for row in rows[1]} - expected
    names = {1.0: "wins", -1.0: "losses"}
    for results in collector.get_finish_info()["game_result"]:
        assert len(results) >= 5
        assert results == [names[games[index % 2][1]] for index in range(len(results))]


def test_evaluation_plays_against_the_eval_opponent_of_the_env(make_marine) -> None:
    env = {"eval_opponent": f"{GAMES}:take_one"}
    store = Store(new=weights(6))
    policy = {**POLICY, "eval": {"evaluator": {"type": "interaction", "n_episode": 6}}}
    collector = make_marine(
        store, ["new"], [True], kind=SerialTaskCollector, eval_flag=True, env=env, policy=[policy]
    )

    collector.start()

    info = collector.get_finish_info()
    # Each of two envs plays three games; the player begins in every other game, and in env 0 first.
    played = [play([actor(6), lambda seat, stones: 0], shift)[1] for shift in (0, 1)]
    assert info["numbers"]["points"]["mean"] == (sum(played) * 3 + 6) / 12
    assert info["opponent"] == env["eval_opponent"]
    assert (info["real_episode_count"], store.payloads) == (6, [])
    assert sorted(info["reward_raw"]) == sorted(played * 3)


@pytest.mark.parametrize(
    ("kind", "flags"),
    [("base", [True, True]), ("base", [True, False]), ("async_subprocess", [True, True])],
)
def test_short_tasks_play_the_same_games_as_a_long_task(make_marine, kind: str, flags: Any) -> None:
    """The end of a task cuts no game: the next task continues it."""
    env_num = 1 if kind.startswith("async") else 2  # several envs would finish in any order
    env = {"collector_env_num": env_num, "kwargs": {"stones": 25}}

    def play(pool: EnvPool, episodes: int) -> tuple[list[float], list[Row]]:
        store = Store(new=weights(6), old=weights(4))
        paths = ["new", "new" if flags[1] else "old"]
        collector = make_marine(
            store,
            paths,
            flags,
            env={**env, "collector_episode_num": episodes},
            env_manager={"type": kind},
            env_pool=pool,
            collect_setting={"eps": 0.5},
        )
        collector.start()
        info = collector.get_finish_info()
        games = [outcome for results in info["game_result"] for outcome in results]
        assert len(games) == len(info["reward_raw"])
        return info["reward_raw"], store.rows()

    with closing(EnvPool()) as pool:
        returns, rows = play(pool, 6)
    with closing(EnvPool()) as pool:
        tasks = [play(pool, 1) for _ in range(6)]
    assert [value for values, _ in tasks for value in values][: len(returns)] == returns
    played = [row for _, sent in tasks for row in sent]
    assert {*rows} <= {*played}
    assert len(set(returns)) == 2


def end_after(collector: MarineParallelCollector, rounds: int) -> None:
    """Let a task end after some rounds, or, with an asynchronous env manager, about as many."""
    turns = iter(range(rounds))

    def yield_turn() -> None:
        if next(turns, None) is None:
            collector.end_soon()

    collector.yield_turn = yield_turn


def always(action: int) -> Any:
    """Return weights that prefer one action everywhere."""
    model = {name: np.zeros_like(value) for name, value in weights(6).items()}
    last = [name for name, value in model.items() if value.shape == (2,)][-1]
    model[last][action] = 1.0
    return model


@pytest.mark.parametrize("kind", ["base", "async_subprocess"])
def test_players_that_train_in_turns_learn_only_from_their_own_games(make_marine, kind) -> None:
    """One of them always takes one stone, the other one two. Some games last several tasks."""
    store = Store(ones=always(0), twos=always(1))
    whole = {**POLICY, "traj_len_inf": True}
    stones = 25 if kind == "base" else 13
    env = {"collector_episode_num": 99, "kwargs": {"stones": stones}}
    actions: dict[str, set[int]] = {"ones": set(), "twos": set()}
    finished: list[Any] = []
    with closing(EnvPool()) as pool:
        for task in range(24):
            home, away = ("ones", "twos") if task % 2 == 0 else ("twos", "ones")
            store.told.clear()
            store.payloads.clear()
            collector = make_marine(
                store, [home, away], [True, False], policy=[whole] * 2, env=env, env_pool=pool,
                env_manager={"type": kind},
            )  # fmt: skip
            end_after(collector, rounds=7)
            collector.start()
            info = collector.get_finish_info()
            own = sum(map(len, info["game_result"]))
            games = [[home, away]] * own + [paths for paths, _ in info["earlier_games"]]
            finished += games
            assert len(games) == info["real_episode_count"]
            assert info["player_returns"][0] == info["reward_raw"]
            assert len(info["reward_raw"]) == own  # not of the games of the other player
            actions[home] |= {row.action for row in store.rows() if row.obs[1] >= 2}
            for batch in store.payloads:
                stones_left = batch.columns["obs"]["observation"][:, 1]
                assert stones_left[0] >= stones - 2  # whole games
                assert (np.diff(stones_left) == -3).all()
    assert actions == {"ones": {0}, "twos": {1}}
    assert {tuple(paths) for paths in finished} == {("ones", "twos"), ("twos", "ones")}


def test_on_policy_payloads_come_from_one_policy_version(make_marine) -> None:
    store = Store(new=weights(6), old=weights(4))
    policy = {**POLICY, "on_policy": True}
    env = {"collector_episode_num": 99}
    collector = make_marine(store, ["new", "old"], [True, False], policy=[policy] * 2, env=env)
    asked: set[int] = set()

    def admit(steps: int) -> Any:
        asked.add(steps)
        if len(asked) > 20:
            return 0, 0
        store.versions["new"] = 3 + len(asked)
        return steps + 6, store.versions["new"]  # three rounds of two envs

    collector.await_steps = admit
    collector.start()

    sent = [meta for meta in store.metas if "data_id" in meta]
    for meta, batch in zip(sent, store.payloads, strict=True):
        assert set(batch.columns["collect_iter"]) == {meta["policy_iter"]}
    assert len(sent) > 10
    assert store.asked.count("old") == 1


def test_on_policy_rows_of_a_former_policy_are_not_sent(make_marine) -> None:
    store = Store(new=weights(6), old=weights(4))
    policy = {**POLICY, "on_policy": True}
    env = {"collector_episode_num": 99, "kwargs": {"stones": 25}}
    with closing(EnvPool()) as pool:
        for task, (home, away) in enumerate([("new", "old"), ("old", "new"), ("new", "old")]):
            store.told.clear()
            store.payloads.clear()
            store.versions |= {"new": 10 * (task + 1), "old": 5}
            collector = make_marine(
                store, [home, away], [True, False], policy=[policy] * 2, env=env, env_pool=pool
            )
            rest = iter([(14, store.versions[home])])  # seven rounds of two envs
            collector.await_steps = lambda steps, rest=rest: next(rest, (0, 0))
            collector.start()

    # The games of the first task went on in the second one, with the policy of the first.
    sent = {int(each) for batch in store.payloads for each in batch.columns["collect_iter"]}
    assert sent == {30}


def test_cut_games_bootstrap_with_the_values_of_their_own_player(make_marine) -> None:
    policy = {
        **POLICY,
        "type": "ppo",
        "on_policy": True,
        "discount_factor": 1.0,
        "gae_lambda": 1.0,
    }
    model = create_policy(policy, enable_field=["collect"], seed=1).collect_mode.state_dict()

    def valued(value: float) -> Any:
        found = {name: np.zeros_like(each) for name, each in model["model"].items()}
        found[[name for name, each in found.items() if each.shape == (1,)][-1]][:] = value
        return found

    store = Store(new=valued(7.0), old=valued(-100.0))
    env = {"collector_env_num": 4, "collector_episode_num": 99, "kwargs": {"stones": 12}}
    second_seat = 0
    with closing(EnvPool()) as pool:
        for task in range(12):
            # Games of both kinds are under way when a task ends.
            opponent = "old" if task % 2 else "new"
            store.told.clear()
            store.payloads.clear()
            collector = make_marine(
                store, ["new", opponent], [True, opponent == "new"], policy=[policy] * 2,
                collect_setting={}, env=env, env_pool=pool,
            )  # fmt: skip
            rest = iter([(12, 3)])
            collector.await_steps = lambda steps, rest=rest: next(rest, (0, 0))
            collector.start()
            names = {collector._modes[1].player_of(env_id) for env_id in range(4)}
            second_seat += len(names) == len(store.payloads) == 2
            # Without discount a return is the sum of the rewards, and 7 where the game was cut.
            for batch in store.payloads:
                assert set(batch.columns["return"].ravel().tolist()) <= {-1.0, 1.0, 7.0}
    assert second_seat > 1


def test_recurrent_policy_sees_only_the_turns_of_its_player(make_marine) -> None:
    policy = {
        **POLICY,
        "type": "r2d2",
        "traj_len_inf": True,
        "learn": {"sequence_length": 40, "burn_in": 4},
        "other": {
            "replay_buffer": {
                "type": "sequence",
                "sequence_length": 40,
                "sampler": {"type": "sequence", "burn_in": 4, "pad": True},
            }
        },
    }
    modes = [
        create_policy(policy, enable_field=["collect"], seed=each).collect_mode for each in (6, 4)
    ]
    store = Store(
        **dict(zip(("new", "old"), (each.state_dict()["model"] for each in modes), strict=True))
    )
    env = {"collector_env_num": 3, "collector_episode_num": 99, "kwargs": {"stones": 25}}
    games = 0
    with closing(EnvPool()) as pool:
        for opponent in ("new", "old", "new"):
            store.told.clear()
            store.payloads.clear()
            collector = make_marine(
                store, ["new", opponent], [True, opponent == "new"], policy=[policy] * 2,
                collect_setting={"eps": 0.5}, env=env, env_pool=pool,
            )  # fmt: skip
            end_after(collector, rounds=30)
            collector.start()
            for batch in store.payloads:
                games += 1
                modes[0].reset()
                for row in batch:
                    obs = {name: np.array(value)[None] for name, value in row["obs"].items()}
                    made = modes[0].forward_batch(obs, [0])  # type: ignore[misc]
                    np.testing.assert_allclose(row["state"], made["state"][0], atol=1e-5)
    assert games > 6


def test_number_of_policies_must_match_the_number_of_players(make_marine) -> None:
    with pytest.raises(ConfigError, match="names 3 policies, and an env has 2 players"):
        make_marine(Store(), ["new"] * 3, [True] * 3)
    with pytest.raises(ConfigError, match="the type 'serial'"):
        make_marine(Store(), ["new"] * 2, [True] * 2, eval_flag=True)


def test_players_explore_independently(make_marine) -> None:
    collector = make_marine(Store(), ["new", "new"], [True, True])
    obs = {0: {"observation": np.zeros(2, np.float32), "action_mask": np.ones(2, np.int8)}}

    drawn = [
        [int(mode.forward(obs, eps=1.0)[0]["action"]) for _ in range(64)]
        for mode in collector._modes
    ]

    assert drawn[0] != drawn[1]
