from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from dingsdk.data.seeding import derive_seed
from dingsdk.worker.commander.solo import SoloCommander
from dingsdk.worker.commander.tasks import collector_task, learner_task


def eval_result(reward_mean=10.0, train_iter=5):
    return {"eval_flag": True, "reward_mean": reward_mean, "train_iter": train_iter}


def collect_result(step_count):
    return {"eval_flag": False, "step_count": step_count}


@pytest.fixture
def commander(main_config, clock):
    return SoloCommander(main_config(collector_task_space=2, eval_interval=10.0), clock)


def start(commander):
    """Issue the learner task and finish the first evaluation."""
    learner = commander.get_learner_task()
    first = commander.get_collector_task()
    assert commander.finish_collector_task(first["task_id"], eval_result(train_iter=0)) is False
    return learner


def collect(commander, env_steps=0):
    """Issue a collecting task and finish it."""
    task = commander.get_collector_task()
    assert not task["collector_cfg"]["eval_flag"]
    commander.finish_collector_task(task["task_id"], collect_result(env_steps))


def train(commander, learner, train_iter):
    """Report an iteration of the learner."""
    commander.update_learner_info(learner["task_id"], {"learner_step": train_iter})


def test_collect_setting_depends_only_on_the_newest_learner(main_config, clock):
    commander = SoloCommander(main_config(learner_task_space=2, collector_task_space=3), clock)
    commander._command = SimpleNamespace(get_setting_collect=dict)
    learner = start(commander)
    info = {"learner_step": 5, "loss": 0.5, "priority_info": {"priority": [1.0]}}
    commander.update_learner_info(learner["task_id"], info)
    setting = commander.get_collector_task()["collector_cfg"]["collect_setting"]
    assert setting == {"learner_step": 5, "loss": 0.5, "envstep": 0}

    second = commander.get_learner_task()
    assert commander.get_collector_task()["collector_cfg"]["eval_flag"], "it is a new policy"
    task = commander.get_collector_task()
    assert task["buffer_id"] == second["buffer_id"]
    assert task["collector_cfg"]["collect_setting"] == {"envstep": 0}
    commander.update_learner_info(learner["task_id"], info)
    assert commander.get_collect_setting(task["task_id"]) == {"envstep": 0}

    commander.update_learner_info(second["task_id"], {"learner_step": 2})
    commander.finish_learner_task(learner["task_id"], {"buffer_id": learner["buffer_id"]})
    setting = {"learner_step": 2, "envstep": 0}
    assert commander.get_collect_setting(task["task_id"]) == setting
    commander.finish_learner_task(second["task_id"], {"buffer_id": second["buffer_id"]})
    assert commander.state_dict()["learner_info"] == {}


def test_saved_commander_continues_with_another_clock(main_config, clock):
    cfg = main_config(collector_task_space=3, eval_interval=10.0)
    saved = SoloCommander(cfg, clock)
    learner = start(saved)
    collect(saved, 30)
    train(saved, learner, 5)
    clock.now += 11
    evaluation = saved.get_collector_task()
    assert evaluation["collector_cfg"]["eval_flag"]
    running = saved.get_collector_task()
    saved.update_collector_info(running["task_id"], {"cur_step": 20})
    clock.now += 4
    state = json.loads(json.dumps(saved.state_dict()))
    later = type(clock)()
    later.now = 5000.0
    other = SoloCommander(cfg, later)

    other.load_state_dict(state)

    assert other.state_dict() == saved.state_dict()
    assert other.envstep == 50
    other.finish_collector_task(evaluation["task_id"], eval_result())
    train(other, learner, 6)
    later.now += 5.9  # the last one was issued 4 s before the save
    assert other.get_eval_task() is None
    later.now += 0.2
    task = other.get_eval_task()
    assert other.finish_collector_task(task["task_id"], eval_result(480.0, train_iter=6)) is True
    again = SoloCommander(cfg, later)
    again.load_state_dict(other.state_dict())
    assert again.has_reached_goal
    assert again.get_learner_task() is None

    # Earlier versions saved when an evaluation was issued, and None for other tasks.
    tasks = {
        name: (*each[:2], (5.0, 30.0, 4.0) if each[2] else None)
        for name, each in state["collector_tasks"].items()
    }
    again.load_state_dict({**state, "collector_tasks": tasks})
    assert json.loads(json.dumps(again.state_dict()))["collector_tasks"] == state["collector_tasks"]


@pytest.mark.parametrize(
    ("parallel", "collector", "expected"),
    [
        ("zergling", {}, "zergling"),
        ("zergling", {"type": "sample"}, "zergling"),
        ("zergling", {"type": "episode"}, "serial"),
        ("marine", {"type": "episode"}, "marine"),
    ],
)
def test_task_runs_a_serial_part_unless_zergling_does_the_same(
    main_config, parallel, collector, expected
):
    cfg = main_config()
    cfg.policy.collect.parallel_collector.type = parallel
    cfg.policy.collect.collector = collector
    for eval_flag, kind in ((False, expected), (True, "serial")):
        task = collector_task(cfg, "t", "b", "p", number=0, collect_setting={}, eval_flag=eval_flag)
        assert task["collector_cfg"]["type"] == kind


def test_first_learner_has_the_seed_of_serial_mode_and_others_do_not(main_config):
    cfg = main_config()
    seeds = [learner_task(cfg, "t", "b", "p", number=number)["seed"] for number in range(3)]
    assert seeds[0] == derive_seed(3, "policy")
    assert len(set(seeds)) == 3


def test_evaluators_play_at_least_n_evaluator_episode_episodes(main_config):
    cfg = main_config()
    cfg.env.evaluator_episode_num, cfg.env.n_evaluator_episode = None, 11
    task = collector_task(cfg, "t", "b", "p", number=0, collect_setting={}, eval_flag=True)
    assert task["collector_cfg"]["env"]["episode_num"] == 3, "per env, with five envs"


def test_tasks_contain_the_settings_of_the_config(commander):
    learner = commander.get_learner_task()
    evaluate, collect = commander.get_collector_task(), commander.get_collector_task()

    assert learner["learner_cfg"] == {
        "type": "base", "train_iterations": 10, "exp_name": "runs/x",
    }  # fmt: skip
    assert learner["replay_buffer_cfg"] == {"type": "naive", "replay_buffer_size": 100}
    assert learner["policy"]["type"] == "dqn"
    for task, kind, envs, episodes in (
        (evaluate, "serial", 5, 2), (collect, "zergling", 8, 4),
    ):  # fmt: skip
        cfg = task["collector_cfg"]
        assert (cfg["env"]["env_num"], cfg["env"]["episode_num"]) == (envs, episodes)
        assert cfg["env_manager"] == {"type": "vector", "episode_num": episodes}
        assert (cfg["type"], cfg["print_freq"], cfg["exp_name"]) == (kind, 5, "runs/x")
        assert cfg["policy"]["collect"]["n_sample"] == 64
    assert evaluate["collector_cfg"]["collect_setting"] == {}
    assert collect["collector_cfg"]["collect_setting"] == {"eps": 1.0}
    assert evaluate["collector_cfg"]["seed"] != collect["collector_cfg"]["seed"]


def test_only_a_buffer_without_a_seed_gets_one_from_the_run_seed(main_config, clock):
    def seed_of(given, run_seed=3):
        cfg = main_config()
        cfg.seed = run_seed
        cfg.policy.other.replay_buffer.seed = given
        return SoloCommander(cfg, clock).get_learner_task()["replay_buffer_cfg"]["seed"]

    assert (seed_of(0), seed_of(5)) == (0, 5)
    assert seed_of(None) == seed_of(None) is not None
    assert seed_of(None) != seed_of(None, run_seed=4)


def test_a_running_task_gets_the_epsilon_for_the_current_env_steps(commander):
    start(commander)
    first, second = commander.get_collector_task(), commander.get_collector_task()
    assert commander.get_collect_setting(first["task_id"]) == {"eps": 1.0}
    commander.update_collector_info(second["task_id"], {"cur_step": 250})
    assert commander.get_collect_setting(first["task_id"]) == {"eps": pytest.approx(0.75)}
    assert commander.get_collect_setting("unknown") is None
    commander.finish_collector_task(first["task_id"], collect_result(0))
    assert commander.get_collect_setting(first["task_id"]) is None


def test_one_task_ends_early_if_a_due_evaluation_has_no_place(commander, clock):
    learner = start(commander)
    tasks = [commander.get_collector_task()]
    train(commander, learner, 5)
    clock.now += 11
    assert not commander.wants_end_of(tasks[0]["task_id"])  # a place is free
    clock.now -= 11
    tasks.append(commander.get_collector_task())
    first, second = (task["task_id"] for task in tasks)
    assert not commander.wants_end_of(first)  # no evaluation is due
    clock.now += 11
    assert not commander.wants_end_of("unknown")
    assert commander.wants_end_of(second)
    assert not commander.wants_end_of(first)
    assert commander.wants_end_of(second)

    commander.finish_collector_task(second, collect_result(20))
    evaluation = commander.get_collector_task()
    assert evaluation["collector_cfg"]["eval_flag"]
    assert not commander.wants_end_of(first)
    assert not commander.wants_end_of(evaluation["task_id"])
    commander.finish_collector_task(evaluation["task_id"], eval_result())
    train(commander, learner, 6)
    third = commander.get_collector_task()["task_id"]
    clock.now += 11
    assert commander.wants_end_of(first)
    commander.notify_fail_collector_task({"task_id": first})
    assert commander.get_collector_task()["collector_cfg"]["eval_flag"]
    assert not commander.wants_end_of(third)


@pytest.mark.parametrize("train_iter", [0, 7])
def test_policy_that_was_just_evaluated_is_not_evaluated_again(commander, clock, train_iter):
    learner = start(commander)
    if train_iter:
        collect(commander)
        train(commander, learner, train_iter)
        clock.now += 11
        task = commander.get_collector_task()
        commander.finish_collector_task(task["task_id"], eval_result(train_iter=train_iter))
    commander.finish_learner_task(learner["task_id"], {"buffer_id": learner["buffer_id"]})
    assert commander.get_last_eval_task() is None


def test_final_policy_is_evaluated_if_the_learner_went_back_and_ends_earlier(commander, clock):
    learner = start(commander)
    collect(commander)
    train(commander, learner, 7)
    clock.now += 11
    task = commander.get_collector_task()
    commander.finish_collector_task(task["task_id"], eval_result(train_iter=7))
    train(commander, learner, 5)
    commander.finish_learner_task(learner["task_id"], {"buffer_id": learner["buffer_id"]})
    assert commander.get_last_eval_task() is not None


@pytest.mark.parametrize("key", ["eval_freq", "eval_freq_env_steps"])
def test_evaluations_can_depend_on_iterations_or_env_steps(main_config, clock, key):
    cfg = main_config(collector_task_space=2)
    cfg.policy["eval"] = {"evaluator": {"eval_freq": None, key: 100}}
    commander = SoloCommander(cfg, clock)
    learner = start(commander)
    for train_iter, env_steps in ((50, 40), (99, 59)):
        train(commander, learner, train_iter)
        collect(commander, env_steps)
    collect(commander, 1)
    train(commander, learner, 100)
    assert commander.get_collector_task()["collector_cfg"]["eval_flag"]
