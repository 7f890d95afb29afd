"""One-versus-one commanders in both modes: opponents, counted games, snapshots, saved state."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dingsdk.config import deep_merge_dicts, to_easydict
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    StorageFullError,
)
from dingsdk.worker.collector.rollout import EpisodeRecord
from dingsdk.worker.collector.swappable_player import SwappablePlayer
from dingsdk.worker.commander.one_vs_one import (
    OneVsOneCommander,
    OneVsOneSerialCommander,
    saved_league,
)
from dingsdk.worker.commander.solo import SoloCommander
from dingsdk.worker.learner.checkpoint import load_checkpoint, save_checkpoint
from tools.os_calls import failing_calls

LEAGUE = {"type": "one_vs_one", "one_phase_step": 100, "self_play": 0.0, "min_win_rate_games": 1}


class Store:
    """A policy store in a dict."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[int, Any]] = {}
        self.is_full = False

    def publish(self, policy_id: str, state: Any, version: int) -> None:
        if self.is_full:
            raise StorageFullError("no room", path=policy_id)
        self.kept[policy_id] = (version, dict(state))

    def newest(self, policy_id: str, newer_than: int | None = None) -> Any:
        return self.kept.get(policy_id)


@pytest.fixture
def make_commander(main_config: Any, clock: Any, tmp_path: Any) -> Any:
    def make(
        opponents: Any = ("random",), league: Any = LEAGUE, run: str = "run", **commander: Any
    ) -> Any:
        cfg = main_config(type="one_vs_one", collector_task_space=2, **commander)
        changes = {
            "exp_name": str(tmp_path / run),
            "env": {"eval_opponents": list(opponents), "stop_value": 0.5},
            "policy": {"eval": {"evaluator": {"eval_freq": 10}}, "other": {"league": league}},
        }
        made = OneVsOneCommander(to_easydict(deep_merge_dicts(cfg, changes)), clock)
        made.policy_store = Store()
        return made

    return make


def train(commander: Any, learner: Any, iteration: int) -> None:
    state = {"w": torch.tensor([iteration])}
    commander.policy_store.publish(learner["policy_id"], state, iteration)
    commander.update_learner_info(learner["task_id"], {"learner_step": iteration})


def evaluate(commander: Any, task: Any, mean: float, **outcomes: int) -> Any:
    assert task["collector_cfg"]["eval_flag"]
    values = {"wins": 1.0, "draws": 0.0, "losses": -1.0}
    returns = [values[outcome] for outcome, count in outcomes.items() for _ in range(count)]
    info = {"train_iter": 5, "reward_mean": mean, "reward_raw": returns, "eval_flag": True}
    return commander.finish_collector_task(task["task_id"], info)


def start(commander: Any) -> Any:
    learner = commander.get_learner_task()
    evaluate(commander, commander.get_collector_task(), -1.0, losses=10)
    return learner


def next_evaluation(commander: Any, learner: Any, iteration: int) -> Any:
    train(commander, learner, iteration)
    while not (task := commander.get_collector_task())["collector_cfg"]["eval_flag"]:
        commander.finish_collector_task(task["task_id"], {"step_count": 1})
    return task


def test_snapshot_is_tried_again_after_the_store_was_full(
    make_commander: Any, caplog: pytest.LogCaptureFixture
) -> None:
    commander = make_commander()
    learner = start(commander)
    state = {"w": torch.tensor([7])}
    commander.policy_store.publish(learner["policy_id"], state, 1)
    commander.policy_store.is_full = True
    commander.update_learner_info(learner["task_id"], {"learner_step": 120})
    assert list(commander.league.players) == ["player_0"]
    assert "a snapshot was not taken, it is tried again: no room" in caplog.text

    commander.policy_store.is_full = False
    commander.update_learner_info(learner["task_id"], {"learner_step": 130})

    assert commander.policy_store.kept["league-player_0_0"] == (1, state)
    assert commander.league.players["player_0_0"].train_iter == 130


def test_games_that_an_earlier_task_began_count_for_its_players(make_commander: Any) -> None:
    commander = make_commander(league={**LEAGUE, "decay": 1.0})
    learner = start(commander)
    task = commander.get_collector_task()
    train(commander, learner, 100)
    train(commander, learner, 200)
    path, past = learner["policy_id"], "league-player_0_1"
    earlier = [[[path, past], "losses"], [["replaced", past], "wins"], [[path, path], "wins"]]

    result = {"game_result": [[], []], "earlier_games": earlier, "step_count": 1}
    commander.finish_collector_task(task["task_id"], result)

    assert commander.league.payoff.games("player_0", "player_0_1") == 1
    assert commander.league.payoff.win_rate("player_0", "player_0_1") == 0
    assert commander.league.payoff.games("player_0", "player_0_0") == 0


def test_failed_tasks_and_results_without_games_are_not_counted(make_commander: Any) -> None:
    commander = make_commander()
    learner = start(commander)
    train(commander, learner, 100)
    task = commander.get_collector_task()
    assert task["task_id"] in commander.state_dict()["commanders"]["player_0"]["jobs"]
    commander.notify_fail_collector_task(task)
    assert commander.state_dict()["commanders"]["player_0"]["jobs"] == {}
    commander.finish_collector_task(task["task_id"], {"game_result": [["wins"]]})
    assert evaluate(commander, next_evaluation(commander, learner, 120), 1.0) is False
    task = commander.get_collector_task()

    commander.finish_collector_task(task["task_id"], {"game_result": [[], []], "step_count": 0})

    assert commander.league.payoff.games("player_0", "player_0_0") == 0


def test_evaluations_use_stronger_opponents_in_turn_and_the_last_one_ends_the_run(
    make_commander: Any,
) -> None:
    commander = make_commander(("a:weak", "a:strong"))
    learner = start(commander)

    def evaluate_at(iteration: int, mean: float, **outcomes: int) -> Any:
        task = next_evaluation(commander, learner, iteration)
        return evaluate(commander, task, mean, **outcomes)

    # 7 of 10 points are not more than 0.7, so the opponent stays.
    assert evaluate_at(20, 1.0, wins=6, draws=2, losses=2) is False
    # The points that the evaluator counted decide, and not the signs of the returns.
    task = next_evaluation(commander, learner, 30)
    won = {"train_iter": 5, "reward_mean": 2.0, "reward_raw": [2.0] * 4, "eval_flag": True}
    won["numbers"] = {"points": {"mean": 0.7}}
    assert commander.finish_collector_task(task["task_id"], won) is False
    assert commander.statistics()["eval_opponent"] == 0
    assert evaluate_at(40, 1.0, wins=5, draws=5) is False  # 7.5 points are more
    task = next_evaluation(commander, learner, 60)
    assert task["collector_cfg"]["env"]["eval_opponent"] == "a:strong"
    assert evaluate(commander, task, 0.4, wins=8, losses=2) is False  # below the stop value
    assert evaluate_at(80, 1.0, wins=7, losses=3) is False
    assert evaluate_at(90, 0.5, wins=8, losses=2) is True
    assert commander.get_collector_task() is None


def test_next_learner_has_a_new_policy_and_plays_the_same_snapshots(make_commander: Any) -> None:
    commander = make_commander()
    first = start(commander)
    train(commander, first, 100)
    commander.notify_fail_learner_task(first)

    second = commander.get_learner_task()
    train(commander, second, 90)

    assert list(commander.league.players) == ["player_0", "player_0_0"]
    tasks = list(iter(commander.get_collector_task, None))
    paths = [task["collector_cfg"]["policy_update_path"] for task in tasks]
    assert paths == [[second["policy_id"], "league-player_0_0"], [second["policy_id"]]]
    train(commander, second, 100)  # its phase counts from its own start
    assert list(commander.league.players) == ["player_0", "player_0_0", "player_0_1"]


TWO = {**LEAGUE, "active_player_num": 2, "self_play": 1.0, "decay": 1.0}


def start_two(commander: Any) -> tuple[Any, Any]:
    learners = commander.get_learner_task(), commander.get_learner_task()
    for _ in learners:
        evaluate(commander, commander.get_collector_task(), -1.0, losses=10)
    return learners


def test_each_active_player_has_a_learner_a_buffer_and_a_policy(make_commander: Any) -> None:
    commander = make_commander(league=TWO)
    first = commander.get_learner_task()
    assert commander.get_collector_task() is None  # its opponent would have no policy
    second = commander.get_learner_task()

    assert commander.get_learner_task() is None
    assert "player" not in first
    assert second["player"] == "player_1"
    for key in ("task_id", "buffer_id", "policy_id"):
        assert first[key] != second[key]
    tasks = [commander.get_collector_task() for _ in range(2)]
    assert [task.get("player") for task in tasks] == [None, "player_1"]
    assert commander.get_collector_task() is None  # both places are taken
    assert [task["buffer_id"] for task in tasks] == [first["buffer_id"], second["buffer_id"]]
    paths = [task["collector_cfg"]["policy_update_path"] for task in tasks]
    assert paths == [[first["policy_id"]], [second["policy_id"]]]
    # With equal seeds both would play the same games and learn the same.
    assert first["seed"] != second["seed"]
    assert len({task["collector_cfg"]["seed"] for task in tasks}) == 2


def test_first_player_has_the_seed_of_a_solo_player(
    make_commander: Any, main_config: Any, clock: Any
) -> None:
    alone = SoloCommander(main_config(), clock).get_learner_task()
    assert alone is not None

    for league in (LEAGUE, TWO):
        assert make_commander(league=league).get_learner_task()["seed"] == alone["seed"]


def test_task_ends_early_for_an_evaluation_of_its_own_player_only(make_commander: Any) -> None:
    commander = make_commander(league=TWO)
    learners = start_two(commander)
    tasks = [commander.get_collector_task()["task_id"] for _ in range(2)]
    assert [commander.wants_end_of(each) for each in tasks] == [False, False]  # none is due
    train(commander, learners[1], 20)
    assert [commander.wants_end_of(each) for each in tasks] == [False, True]
    assert not commander.wants_end_of("unknown")

    commander.finish_collector_task(tasks[0], {"game_result": [["wins"]], "step_count": 7})
    commander.finish_collector_task(tasks[1], {"game_result": [["wins"]], "step_count": 7})
    # The evaluation comes before the turn of the first player.
    evaluation = commander.get_collector_task()
    assert (evaluation["player"], evaluation["collector_cfg"]["eval_flag"]) == ("player_1", True)
    assert "player" not in commander.get_collector_task()


def test_games_and_samples_count_for_the_player_that_they_were_played_for(
    make_commander: Any,
) -> None:
    commander = make_commander(league=TWO)
    learners = start_two(commander)
    first, second = (commander.get_collector_task() for _ in learners)
    counts = {"step_count": 7, "sample_count": 5, "eval_flag": False}
    paths = [learner["policy_id"] for learner in learners]
    finish = commander.finish_collector_task

    # One game had begun for the other player, and one for this player against an earlier opponent.
    earlier = [[paths, "wins"], [[paths[1], "league-player_0_0"], "draws"]]
    finish(first["task_id"], {**counts, "real_episode_count": 3})
    finish(second["task_id"], {**counts, "real_episode_count": 4, "earlier_games": earlier})

    assert commander.players() == {"player_0": (0, 7, 4, 5), "player_1": (0, 7, 3, 5)}
    again = make_commander(league=TWO)
    again.load_state_dict(commander.state_dict())
    assert again.players() == commander.players()


def test_saved_state_contains_opponents_turns_and_running_games(make_commander: Any) -> None:
    opponents = ("a:weak", "a:strong")
    commander = make_commander(opponents, TWO)
    learners = start_two(commander)
    task = commander.get_collector_task()
    while task["collector_cfg"]["policy_update_flag"] != [True, False]:
        commander.finish_collector_task(task["task_id"], {"step_count": 7})
        task = commander.get_collector_task()
    train(commander, learners[0], 20)
    evaluation = commander._commanders["player_0"].get_eval_task()
    evaluate(commander, evaluation, 0.0, wins=10)
    other = make_commander(opponents, TWO)
    other.policy_store = commander.policy_store

    other.load_state_dict(commander.state_dict())

    assert other.statistics()["eval_opponent"] == 1
    turns = [[each.turn for each in of._commanders.values()] for of in (commander, other)]
    assert turns[1] == turns[0]
    assert turns[0][0][0] > 0
    other.finish_collector_task(task["task_id"], {"game_result": [["wins"]], "step_count": 1})
    assert other.league.payoff.games("player_0", "player_1") == 1.0


def test_snapshots_of_each_player_depend_on_its_own_iterations(make_commander: Any) -> None:
    commander = make_commander(league=TWO)
    first, second = start_two(commander)
    train(commander, first, 100)
    train(commander, second, 99)
    assert list(commander.league.players) == ["player_0", "player_1", "player_0_0"]
    train(commander, second, 101)

    assert list(commander.league.players)[3:] == ["player_1_0"]
    version, state = commander.policy_store.kept["league-player_1_0"]
    assert (version, int(state["w"])) == (101, 101)
    assert commander.players()["player_1"].train_iter == 101
    assert commander.statistics().keys() == {
        "eval_opponent", "past_players", "win_rate_player_1", "win_rate_player_0_0",
        "win_rate_player_1_0", "player_1/eval_opponent", "player_1/past_players",
        "player_1/win_rate_player_0", "player_1/win_rate_player_0_0",
        "player_1/win_rate_player_1_0",
    }  # fmt: skip


def test_only_the_first_player_can_reach_the_goal(make_commander: Any) -> None:
    commander = make_commander(league=TWO)
    first, second = start_two(commander)
    train(commander, first, 20)
    train(commander, second, 20)

    def evaluation(player: str | None) -> Any:
        while True:
            task = commander.get_collector_task()
            if task["collector_cfg"]["eval_flag"] and task.get("player") == player:
                return task
            finish = commander.finish_collector_task
            finish(task["task_id"], {"step_count": 1, "train_iter": 5, "reward_mean": 0.0,
                                     "reward_raw": [0.0]})  # fmt: skip

    assert evaluate(commander, evaluation("player_1"), 1.0, wins=10) is False
    assert not commander._commanders["player_1"].has_reached_goal  # it continues to train
    train(commander, first, 40)
    train(commander, second, 40)
    assert evaluate(commander, evaluation(None), 1.0, wins=10) is True
    train(commander, second, 60)
    assert commander.get_collector_task() is None
    assert commander.get_eval_task() is None


def test_player_that_has_trained_out_remains_an_opponent(make_commander: Any) -> None:
    commander = make_commander(league=TWO)
    first, second = start_two(commander)
    train(commander, first, 9)
    task = commander.get_collector_task()
    commander.finish_collector_task(task["task_id"], {"step_count": 7})
    assert commander.finish_learner_task(first["task_id"], first) == first["buffer_id"]

    assert commander.get_learner_task() is None
    paths = []
    for _ in range(20):
        task = commander.get_collector_task()
        paths.append(tuple(task["collector_cfg"]["policy_update_path"]))
        commander.notify_fail_collector_task(task)
    assert set(paths) == {
        (second["policy_id"], second["policy_id"]), (second["policy_id"], first["policy_id"]),
    }  # fmt: skip
    assert commander.players()["player_0"][:2] == (9, 7)
    task = commander.get_last_eval_task()
    assert "player" not in task
    assert task["collector_cfg"]["policy_update_path"] == [first["policy_id"]]


def test_resume_publishes_missing_policies_of_players_that_no_longer_train(
    make_commander: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    commander = make_commander(league=TWO)
    first, second = start_two(commander)
    train(commander, first, 100)
    train(commander, second, 120)
    saved = {"model": {"w": torch.tensor([109])}}
    save_checkpoint(tmp_path / "run" / "ckpt", "iteration_109", saved, iteration=109)
    own = tmp_path / "run" / "players" / "player_1" / "ckpt"
    save_checkpoint(own, "iteration_120", {"model": {"w": torch.tensor([5])}}, iteration=120)
    for learner in (first, second):
        commander.finish_learner_task(learner["task_id"], learner)
    other = make_commander(league=TWO)
    other.policy_store.publish("league-player_1_0", {"w": torch.tensor([7])}, 7)

    other.load_state_dict(commander.state_dict())
    section = other._cfg["policy"]["learn"]["learner"]
    section["train_iterations"] = 120
    other.resume()

    found = {name: (at, int(each["w"])) for name, (at, each) in other.policy_store.kept.items()}
    assert found == {
        first["policy_id"]: (109, 109),
        "league-player_0_0": (100, 100),
        "league-player_1_0": (7, 7),  # it was stored already
        second["policy_id"]: (120, 5),
    }
    assert [each.getMessage() for each in caplog.records] == [
        "player_0 ended its training at iteration 100 and does not continue to 120: its samples "
        "are gone"
    ]
    caplog.clear()
    section["train_iterations"] = 100
    other.resume()
    assert caplog.records == []


class Mode:
    """The collect mode of a policy with one weight."""

    def __init__(self, weight: float, load_path: Any = None, league: Any = LEAGUE) -> None:
        self.model = {"w": torch.tensor([weight])}
        self.league = {**league, "load_path": load_path}

    def get_attribute(self, key: str) -> Any:
        return to_easydict({"other": {"league": self.league}})

    def state_dict(self) -> Any:
        return {"model": self.model}

    def load_state_dict(self, state: Any) -> None:
        self.model = {"w": state["model"]["w"].clone()}

    def forward(self, obs: Any) -> Any:
        return {env_id: float(self.model["w"]) for env_id in obs}

    def reset(self, env_ids: Any = None) -> None:
        pass


class SerialRun:
    """A commander of a serial run with two envs."""

    def __init__(
        self, run_dir: Any, load_path: Any = None, league: Any = LEAGUE, **cfg: Any
    ) -> None:
        self.own, self.opponent = Mode(0.0, load_path, league), Mode(-1.0)
        self.seat = SwappablePlayer(self.opponent, collect_data=False)
        self.curves: dict[str, float] = {}
        self.learner = SimpleNamespace(
            train_iter=0, learn_info={}, exp_name=str(run_dir), tb_logger=self
        )
        self.collector = SimpleNamespace(
            policy=[self.own, self.seat],
            last_episodes=(),
            envstep=0,
            env=SimpleNamespace(env_num=2),
        )
        command = SimpleNamespace(get_setting_collect=lambda info: {"eps": 0.5})
        cfg = {"type": "one_vs_one", "seed": 1, **cfg}
        self.commander = OneVsOneSerialCommander(
            cfg, self.learner, self.collector, None, None, command
        )

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.curves[tag] = value

    def step(self, train_iter: int, *episodes: tuple[int, float, float]) -> float:
        """Train, end (env, own, other) games, step and begin games in the free envs.

        Return the weight of the opponent in the games that begin.
        """
        self.own.model["w"].fill_(train_iter)
        self.learner.train_iter = train_iter
        ended = []
        for env_id, own, other in episodes:
            players = [{"eval_episode_return": each} for each in (own, other)]
            info = {"players": players, "names": [None, self.seat.player_of(env_id)]}
            ended.append(EpisodeRecord(env_id, own, 3, info))
            self.seat.reset([env_id])
        self.collector.last_episodes = tuple(ended)
        assert self.commander.step() == {"eps": 0.5}
        weight = float(self.opponent.model["w"])
        self.seat.forward({0: None, 1: None})
        return weight


def test_league_of_a_run_can_be_loaded_by_another_run(make_commander: Any, tmp_path: Any) -> None:
    commander = make_commander()
    learner = start(commander)
    train(commander, learner, 100)
    task = commander.get_collector_task()
    commander.finish_collector_task(task["task_id"], {"game_result": [["wins"]], "step_count": 1})
    train(commander, learner, 200)
    left = tmp_path / "run" / "league"

    second = make_commander(league={**LEAGUE, "load_path": str(left)}, run="second")
    train(second, start(second), 100)
    left.rename(tmp_path / "gone")
    path = tmp_path / "second" / "league"
    third = make_commander(league={**LEAGUE, "load_path": str(path)}, run="third")
    learner = start(third)

    past = [f"player_0_{index}" for index in range(3)]
    assert list(third.league.players) == ["player_0", *past]
    for each in (second, third):  # the results are of another player_0
        assert each.league.payoff.games("player_0", "player_0_0") == 0
        assert each.league.state_dict()["rng"] != commander.league.state_dict()["rng"]
    kept = {
        name: (version, int(state["w"]))
        for name, (version, state) in third.policy_store.kept.items()
    }
    assert kept == {
        "league-player_0_0": (100, 100), "league-player_0_1": (200, 200),
        "league-player_0_2": (100, 100),
    }  # fmt: skip
    train(third, learner, 99)
    assert len(third.league.players) == 4
    train(third, learner, 100)
    assert len(third.league.players) == 5
    resumed = make_commander(league={**LEAGUE, "load_path": str(path)}, run="third")
    resumed.policy_store = third.policy_store
    resumed.load_state_dict(third.state_dict())
    resumed.notify_fail_learner_task(learner)
    assert resumed.get_learner_task() is not None
    assert list(resumed.league.players) == list(third.league.players)

    run = SerialRun(tmp_path / "serial", load_path=str(path))
    assert run.step(0) in (100, 200)
    assert run.curves["commander_iter/past_players"] == 3
    assert run.curves["commander_iter/win_rate_player_0_0"] == 0.5
    for train_iter in (100, 110):
        run.step(train_iter)
        assert len(run.commander.league.players) == 5


def test_folder_without_a_league_is_refused(tmp_path: Any) -> None:
    with pytest.raises(CheckpointMissingError):
        saved_league(str(tmp_path))
    save_checkpoint(tmp_path, "some", {"model": {}}, iteration=3)
    with pytest.raises(CheckpointCorruptError, match="holds no league"):
        saved_league(str(tmp_path))


def test_league_continues_if_the_disk_is_full(
    make_commander: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    commander = make_commander()
    learner = start(commander)
    with failing_calls(("writev", "write"), 1, errno.ENOSPC, persistent=True):
        train(commander, learner, 100)

    assert list(commander.league.players) == ["player_0", "player_0_0"]
    assert not list((tmp_path / "run").glob("league/*.safetensors"))
    assert "player player_0_0 of the league is not saved" in caplog.text


def test_serial_league_continues_from_its_saved_state(tmp_path: Any) -> None:
    run = SerialRun(tmp_path / "first", games_per_opponent=2)
    run.step(0)
    run.step(100, (0, 1, -1), (1, 1, -1))
    run.step(110, (0, 1, -1), (1, 1, -1))
    run.step(120, (0, 1, -1))
    path = save_checkpoint(tmp_path / "saves", "run", run.commander.state_dict(), iteration=1)

    other = SerialRun(tmp_path / "second", games_per_opponent=2, seed=99)
    for train_iter in (0, 100, 200):
        other.step(train_iter)
    other.commander.load_state_dict(load_checkpoint(path).state)
    assert list(other.commander.state_dict()["snapshots"]) == ["league-player_0_0"]
    for each in (run, other):
        each.seat.reset()  # all envs begin new games

    assert other.step(130) == run.step(130) == 100
    games = [(0, 1, -1), (1, -1, 1)]
    for train_iter in range(140, 400, 20):
        assert other.step(train_iter, *games) == run.step(train_iter, *games)
    assert other.commander.league.state_dict() == run.commander.league.state_dict()


def test_games_of_the_last_collect_before_a_save_are_counted_once(tmp_path: Any) -> None:
    league = {**TWO, "decay": 1.0}
    runs = [SerialRun(tmp_path / name, league=league, games_per_opponent=99) for name in "ab"]
    first, second = runs
    second.commander.join(first.commander, "player_1")
    for each, away in zip(runs, ("player_1", "player_0"), strict=True):
        paths = {
            "player_id": [each.commander.player_id, away],
            "checkpoint_path": ["", f"league-{away}"],
        }
        each.commander._job = paths
        each.step(0)
    players = [{"eval_episode_return": each} for each in (1, -1)]
    for each in runs:
        info = {"players": players, "names": [None, each.seat.player_of(0)]}
        each.collector.last_episodes = (EpisodeRecord(0, 1.0, 3, info),)

    saved = [each.commander.state_dict() for each in runs]
    resumed = [SerialRun(tmp_path / name, league=league, games_per_opponent=99) for name in "cd"]
    resumed[1].commander.join(resumed[0].commander, "player_1")
    for each, state in zip(resumed, saved, strict=True):
        each.commander.load_state_dict(state)
    for pair in (runs, resumed):
        for _ in range(3):  # no further collect
            for each in pair:
                each.commander.step()
        # Each player has won one game at home.
        assert pair[0].commander.league.payoff.games("player_0", "player_1") == 2
        assert [each.commander.state_dict()["games"] for each in pair] == [1, 1]
