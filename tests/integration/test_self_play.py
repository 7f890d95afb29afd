"""Self-play of two players from one config, in both modes."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dingsdk.config import load_config
from dingsdk.data import decode_json
from dingsdk.errors import CheckpointError
from dingsdk.pipeline.predict import load_policy
from dingsdk.pipeline.resume import find_save
from dingsdk.pipeline.train import resume, train
from dingsdk.worker.commander.league import OneVsOneLeague
from dingsdk.worker.commander.one_vs_one import saved_league
from dingsdk.worker.learner.checkpoint import load_checkpoint
from tests.tensorboard_events import curves_of

from .clusters import ProcessCluster
from .test_parallel_resume import python, recovered, status, wait_until

pytest.importorskip("pettingzoo", reason="the extra multiagent is not installed")

SHORT = (
    "env.collector_env_num=4",
    "env.evaluator_env_num=2",
    "env.n_evaluator_episode=4",
    "env.stop_value=2",  # a win is 1
    "policy.collect.n_sample=32",
    "policy.learn.batch_size=32",
    "policy.learn.update_per_collect=4",
    "policy.learn.learner.train_iterations=100",
    "policy.other.league.one_phase_step=25",
    "policy.eval.evaluator.eval_freq=50",
)


class Even(gym.Env[Any, Any]):
    """Two players act at once. After four steps player 0 wins every other game."""

    player_num = 2
    observation_space = gym.spaces.Box(0, 1, (2, 3), np.float32)
    action_space = gym.spaces.MultiDiscrete([2, 2])
    games = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.games, self.time = self.games + 1, 0
        return np.zeros((2, 3), np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        reward = np.array([1, -1], np.float32) * (self.time == 4) * (-1) ** self.games
        return np.zeros((2, 3), np.float32), reward, self.time == 4, False, {}


@pytest.mark.parametrize("kind", ["sample_1v1", "episode_1v1"])
def test_every_finished_game_of_a_serial_league_is_counted(
    kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    finish = OneVsOneLeague.finish_job

    def count(self: OneVsOneLeague, job: Any) -> None:
        finish(self, job)
        counted.extend(job["result"])

    monkeypatch.setattr(OneVsOneLeague, "finish_job", count)
    sets = [
        f"env.env_id={__name__}:Even", "env.wrappers=[]", "env.collector_env_num=16",
        "env.evaluator_env_num=1", "env.n_evaluator_episode=1", "env.stop_value=2",
        "policy.learn.batch_size=8", "policy.learn.update_per_collect=1",
        "policy.learn.learner.train_iterations=21", "policy.other.league.one_phase_step=3",
        f"policy.collect.collector.type={kind}", "policy.collect.n_sample=64",
    ]  # fmt: skip
    if kind == "episode_1v1":
        sets += ["policy.collect.n_episode=16", "policy.collect.collector.get_train_sample=true"]
    train("tictactoe-selfplay", sets=sets, output=tmp_path)

    # Each of 21 collects plays a game in each of 16 envs; the games of the first one are lost.
    outcomes = [counted.count(each) for each in ("wins", "losses", "draws")]
    assert outcomes == [10 * 16, 11 * 16, 0]


@pytest.mark.parametrize(
    "transport", ["in_memory", pytest.param("flask_fs", marks=pytest.mark.slow)]
)
def test_parallel_run_plays_against_itself_and_past_players(transport: str, tmp_path: Any) -> None:
    result = train(
        "tictactoe-selfplay", mode="parallel", transport=transport, sets=SHORT, output=tmp_path
    )

    assert (result.reason, result.train_iter) == ("limit", 100)
    assert result.env_steps > 0
    assert result.evaluations[-1].train_iter == 100
    past = saved_league(str(result.run_dir / "league"))["players"]
    assert [each["train_iter"] for each in past[1:]] == sorted(
        each["train_iter"] for each in past[1:]
    )
    assert len(past) > 2
    free = np.zeros(9, np.int8)
    free[5] = 1
    obs = {"observation": np.zeros(18, np.float32), "action_mask": free}
    assert load_policy(result.run_dir).predict(obs)[0] == 5


class Shared(gym.Env[Any, Any]):
    """The second player's action decides who gets more; nobody gets less than 0."""

    player_num = 2
    observation_space = gym.spaces.Box(0, 1, (2, 3), np.float32)
    action_space = gym.spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 3), np.float32), {}

    def step(self, action: Any) -> Any:
        reward = np.array([[1, 0], [0.25, 0.75]][action[1]], np.float32)
        return np.zeros((2, 3), np.float32), reward, True, False, {}


def weak(*_: Any) -> int:
    return 0


def strong(*_: Any) -> int:
    return 1


@pytest.mark.parametrize("mode", ["parallel", "serial"])
def test_best_policy_is_the_best_against_the_newest_opponent(mode: Any, tmp_path: Any) -> None:
    opponents = [f"{__name__}:weak", f"{__name__}:strong"]
    sets = (
        *SHORT, f"env.env_id={__name__}:Shared", "env.wrappers=[]",
        f"env.eval_opponents=[{', '.join(opponents)}]", "policy.eval.evaluator.eval_freq=20",
    )  # fmt: skip
    transport = "in_memory" if mode == "parallel" else None
    result = train("tictactoe-selfplay", mode, transport, sets, output=tmp_path)

    # A return above 0 is no win: the strong opponent gets more.
    assert (result.reason, result.best_return) == ("limit", 0.25)
    found = [each.opponent for each in result.evaluations if each.train_iter > 0]
    assert set(found) == set(opponents if mode == "parallel" else opponents[1:])
    assert found == sorted(found, key=opponents.index)
    first = next(each for each in result.evaluations if each.train_iter and each.mean == 0.25)
    assert load_checkpoint(result.checkpoints["best"]).iteration == first.train_iter
    if mode == "parallel":
        assert "evaluator_iter/points_mean" in curves_of(result.run_dir)


TWO = (
    *SHORT,
    "policy.other.league.active_player_num=2",
    "policy.other.league.decay=1",
    "policy.other.league.self_play=0.7",
)


def games_of(league: Any) -> float:
    """Return the number of games in a payoff without decay, which has each game twice."""
    return sum(games for *_, games in league["payoff"]["records"]) / 2


@pytest.mark.timeout(420)  # five processes start, on a machine that may be busy
@pytest.mark.parametrize(
    ("mode", "transport"),
    [
        ("serial", None),
        pytest.param("parallel", "in_memory", marks=pytest.mark.slow),
        pytest.param("parallel", "flask_fs", marks=pytest.mark.slow),
    ],
)
def test_two_players_train_each_other(
    mode: Any, transport: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    finish = OneVsOneLeague.finish_job

    def count(self: OneVsOneLeague, job: Any) -> None:
        finish(self, job)
        home, away = job["player_id"]
        # Parallel mode lists the outcomes by env.
        games = sum(1 if isinstance(each, str) else len(each) for each in job["result"])
        counted.append(games * (home != away))
        assert games_of(self.state_dict()) == sum(counted)

    monkeypatch.setattr(OneVsOneLeague, "finish_job", count)
    result = train("tictactoe-selfplay", mode, transport, sets=TWO, output=tmp_path)

    assert (result.reason, result.train_iter) == ("limit", 100)
    if transport != "flask_fs":  # else the league is in another process
        assert sum(counted) > 0
    first, second = result.players["player_0"], result.players["player_1"]
    assert first.status.env_steps + second.status.env_steps == result.env_steps
    weights = []
    for name, each in result.players.items():
        assert each.status.train_iter == 100
        assert each.status.env_steps > 0
        assert each.evaluations[-1].train_iter == 100
        assert all(one.player == (None if name == "player_0" else name) for one in each.evaluations)
        loaded = load_checkpoint(each.checkpoints["latest"].parent / "latest")
        assert loaded.iteration == 100
        weights.append(loaded.state["model"])
    assert first.evaluations == result.evaluations
    assert any(not bool((weights[0][key] == weights[1][key]).all()) for key in weights[0])
    saved = json.loads((result.run_dir / "result.json").read_text())["players"]
    assert saved["player_1"]["checkpoints"]["best"].startswith("players/player_1/ckpt/")
    past = saved_league(str(result.run_dir / "league"))["players"]
    assert {each["parent"] for each in past} == {None, "player_0", "player_1"}
    curves = curves_of(result.run_dir / "players" / "player_1")
    assert {"evaluator_iter/reward_mean", "commander_iter/win_rate_player_0"} <= curves.keys()
    assert "commander_iter/win_rate_player_1" in curves_of(result.run_dir)


PPO: dict[str, Any] = {
    "type": "ppo",
    "model": {"encoder_hidden_size_list": [32]},
    "learn": {"batch_size": 64, "epoch_per_collect": 2, "learner": {"train_iterations": 120}},
    "collect": {"n_sample": 128, "parallel_collector": {"type": "marine"}},
    "eval": {"evaluator": {"eval_freq": 60}},
    "other": {"commander": {"type": "one_vs_one"}, "league": {"one_phase_step": 40}},
}


@pytest.mark.slow
@pytest.mark.parametrize("max_lag", [0, 2])
def test_on_policy_parallel_run_stays_within_the_policy_lag_limit(
    max_lag: int, tmp_path: Any, evicted: list[dict[str, int]]
) -> None:
    config = {**load_config("tictactoe-selfplay"), "policy": PPO}
    sets = (f"policy.other.commander.max_policy_lag={max_lag}", "system.collector_num=2")
    result = train(config, "parallel", "in_memory", (*SHORT[:4], *sets), output=tmp_path)

    assert result.reason == "limit"
    assert result.train_iter >= 120
    assert result.policy_lag is not None
    assert 0 <= result.policy_lag["mean"] <= result.policy_lag["largest"] <= max_lag
    assert evicted[0].keys() == {"trained"}
    assert len(saved_league(str(result.run_dir / "league"))["players"]) > 1


@pytest.mark.slow
def test_past_players_survive_the_loss_of_workers(tmp_path: Any) -> None:
    league = "policy.other.league"
    sets = (f"{league}.one_phase_step=50", f"{league}.self_play=0", "env.collector_episode_num=2")
    with ProcessCluster(tmp_path / "run", sets, example="tictactoe-selfplay") as cluster:
        store = cluster.transport.policy_store()
        cluster.expect(lambda: store.newest("league-player_0_0") is not None)
        version, weights = store.newest("league-player_0_0")  # type: ignore[misc]
        for worker_id in ("collector-0", "collector-1", "learner-0"):
            before = cluster.incarnation(worker_id)
            os.kill(cluster.pid(worker_id), signal.SIGKILL)
            cluster.expect(lambda: cluster.incarnation(worker_id) > before)  # noqa: B023

        path = cluster.run_dir / "league"
        played = len(saved_league(str(path))["players"])
        steps = cluster.env_steps()
        cluster.expect(lambda: len(saved_league(str(path))["players"]) > played + 1)
        cluster.expect(lambda: cluster.env_steps() > steps + 500)
        cluster.coordinator.validate_state()
        found = store.newest("league-player_0_0")
        assert found is not None
        assert found[0] == version
        assert all(bool((found[1][key] == weights[key]).all()) for key in weights)

        def has_played_it() -> bool:
            records = saved_league(str(path))["payoff"]["records"]
            return any(away == "player_0_0" for _, away, *_ in records)

        cluster.expect(has_played_it)


KILLED = (
    *TWO,
    "policy.learn.learner.train_iterations=1000000",
    "policy.eval.evaluator.eval_freq=100",
    "policy.other.league.one_phase_step=50",
    "exp_name=run",
)


def killed_run(folder: Any, *arguments: str) -> Any:
    """Train until both players have past versions and games, kill all; return the folder."""
    sets = (part for each in KILLED for part in ("--set", each))
    run = folder / "run"

    def has_past() -> bool:
        try:
            league = saved_league(str(run / "league"))
        except CheckpointError:
            return False
        parents = {each["parent"] for each in league["players"]}
        return parents == {None, "player_0", "player_1"} and games_of(league) > 0

    command = ("-m", "dingsdk", "train", "tictactoe-selfplay", *arguments, *sets)
    with python(*command, "--output", str(folder)):
        wait_until(has_past, 240.0)
        iterations = status(run)["train_iter"]
        wait_until(lambda: status(run)["train_iter"] > iterations + 20)
    return run


def check_resumed(run: Any, known: Any) -> None:
    """Resume a killed run, and check that its league has everything of the ``known`` one."""
    before = status(run)
    limit = before["train_iter"] + 120
    result = resume(run, sets=[f"policy.learn.learner.train_iterations={limit}"])

    assert (result.reason, result.train_iter) == ("limit", limit)
    for name, each in result.players.items():
        assert each.status.train_iter >= limit
        assert each.status.env_steps > 0
        assert load_checkpoint(each.checkpoints["latest"].parent / "latest").iteration >= limit, (
            name
        )
    after = saved_league(str(run / "league"))
    assert games_of(after) > games_of(known) > 0
    ids = [each["player_id"] for each in after["players"]]
    assert len(ids) > len(known["players"])
    assert {each["player_id"] for each in known["players"]} <= set(ids)
    past = {each["player_id"]: each for each in after["players"]}
    for each in known["players"]:
        if each["parent"] is not None:
            assert past[each["player_id"]] == each


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_serial_run_resumes_with_its_league(tmp_path: Any) -> None:
    run = killed_run(tmp_path, "--set", "system.save_every=0")

    state = find_save(run).state
    assert len(state.others) == 1
    check_resumed(run, json.loads(state.parts["commander"]["league"]))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_parallel_run_resumes_with_its_league(tmp_path: Any) -> None:
    run = killed_run(tmp_path, "--mode", "parallel", "--transport", "flask_fs")

    with recovered(run, tmp_path / "copy") as coordinator:
        known = coordinator.state_dict()["commander"]
        known = decode_json("commander", known, len(known))["league"]
    saved = saved_league(str(run / "league"))
    assert games_of(known) >= games_of(saved)
    check_resumed(run, known)
