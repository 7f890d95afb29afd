"""Configs in DI-engine's shape."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dingsdk.errors import ConfigError, UnknownEnvError, UnknownKeyError
from dingsdk.pipeline.compile import compile_config
from dingsdk.pipeline.di_engine import convert_reference_shape, find_env_id, rename_all_aliases


def serial_shape() -> dict[str, Any]:
    return {
        "main_config": {
            "exp_name": "cartpole_dqn_seed0",
            "env": {
                "collector_env_num": 8,
                "evaluator_env_num": 5,
                "n_evaluator_episode": 5,
                "stop_value": 195,
            },
            "policy": {
                "cuda": False,
                "model": {
                    "obs_shape": 4,
                    "action_shape": 2,
                    "encoder_hidden_size_list": [128, 64],
                    "dueling": True,
                },
                "nstep": 1,
                "discount_factor": 0.97,
                "learn": {"batch_size": 64, "learning_rate": 0.001},
                "collect": {"n_sample": 8},
                "eval": {"evaluator": {"eval_freq": 40}},
                "other": {
                    "eps": {"type": "exp", "start": 0.95, "end": 0.1, "decay": 10000},
                    "replay_buffer": {"replay_buffer_size": 20000},
                },
            },
        },
        "create_config": {
            "env": {
                "type": "cartpole",
                "import_names": ["dizoo.classic_control.cartpole.envs.cartpole_env"],
            },
            "env_manager": {"type": "base"},
            "policy": {"type": "dqn"},
            "replay_buffer": {
                "type": "deque",
                "import_names": ["ding.data.buffer.deque_buffer_wrapper"],
            },
        },
    }


def parallel_shape() -> dict[str, Any]:
    shape = serial_shape()
    main, create = shape["main_config"], shape["create_config"]
    main["policy"]["learn"]["learner"] = {"learner_num": 1, "send_policy_freq": 4}
    main["policy"]["collect"]["collector"] = {"collector_num": 3, "update_policy_second": 2}
    main["policy"]["other"]["commander"] = {"collector_task_space": 2, "eval_interval": 30}
    create["policy"] = {"type": "dqn_command"}
    create["learner"] = {"type": "base", "import_names": ["ding.worker.learner.base_learner"]}
    create["collector"] = {"type": "zergling", "import_names": ["ding.worker"]}
    create["commander"] = {"type": "solo", "import_names": ["ding.worker"]}
    create["comm_learner"] = {"type": "in_memory", "import_names": ["ding.worker"]}
    create["comm_collector"] = {"type": "in_memory"}
    shape["system_config"] = {
        "coordinator": {},
        "path_data": "./{}/data",
        "path_policy": "./{}/policy",
        "communication_mode": "auto",
        "learner_gpu_num": 1,
    }
    return shape


def test_serial_config_compiles_with_its_values(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="dingsdk"):
        cfg = compile_config(serial_shape())

    assert cfg.env.env_id == "CartPole-v1"
    assert cfg.env_manager.type == "base"
    assert cfg.policy.type == "dqn"
    assert cfg.policy.model.dueling is True
    assert cfg.policy.other.replay_buffer.type == "naive"
    assert cfg.policy.other.replay_buffer.replay_buffer_size == 20000
    assert cfg.policy.eval.evaluator.eval_freq == 40
    assert "deque is called naive here" in caplog.text


def test_a_deque_of_a_policy_with_priorities_samples_by_them() -> None:
    shape = serial_shape()
    shape["main_config"]["policy"]["priority"] = True
    assert compile_config(shape).policy.other.replay_buffer.type == "advanced"


def test_create_config_may_be_given_apart() -> None:
    shape = serial_shape()

    cfg = compile_config(shape["main_config"], create_cfg=shape["create_config"])

    assert cfg.env.env_id == "CartPole-v1"


def test_parallel_config_maps_to_one_transport_and_the_system_section() -> None:
    cfg = compile_config(parallel_shape())

    assert cfg.system.transport.type == "in_memory"
    assert (cfg.system.collector_num, cfg.system.learner_num) == (3, 1)
    assert cfg.policy.type == "dqn"
    assert cfg.policy.collect.parallel_collector.update_policy_second == 2
    assert cfg.policy.collect.collector.type == "sample"
    assert cfg.policy.eval.evaluator.eval_interval_s == 30
    assert cfg.system.learner.send_policy_freq == 4


def test_episodes_per_evaluator_env_give_the_total() -> None:
    shape = parallel_shape()
    env = shape["main_config"]["env"]
    del env["n_evaluator_episode"]
    env.update(evaluator_env_num=8, evaluator_episode_num=2)

    assert compile_config(shape).env.n_evaluator_episode == 16


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("subprocess", "subprocess"),
        ("subprocess_v2", "subprocess"),
        ("async_subprocess", "async_subprocess"),
    ],
)
def test_envs_in_processes_stay_in_processes(theirs: str, ours: str) -> None:
    shape = serial_shape()
    shape["main_config"]["env"]["manager"] = {
        "shared_memory": True,
        "step_timeout": None,
        "max_retry": 5,
    }
    shape["create_config"]["env_manager"] = {"type": theirs}

    manager = compile_config(shape).env_manager

    assert (manager.type, manager.max_retry) == (ours, 5)


def test_switches_that_are_off_carry_over() -> None:
    shape = serial_shape()
    policy = shape["main_config"]["policy"]
    policy.update(multi_gpu=False, priority_IS_weight=False)
    policy["learn"].update(multi_gpu=False, ignore_done=False)

    assert compile_config(shape).policy.learn.batch_size == 64


def test_transport_is_that_of_the_comm_parts() -> None:
    shape = parallel_shape()
    for name in ("comm_learner", "comm_collector"):
        shape["create_config"][name]["type"] = "flask_fs"

    assert convert_reference_shape(shape)["system"]["transport"] == {"type": "flask_fs"}


def test_create_config_wins_over_main_config() -> None:
    shape = serial_shape()
    shape["main_config"]["policy"]["other"]["replay_buffer"]["type"] = "elastic"
    shape["create_config"]["replay_buffer"]["type"] = "advanced"

    found = convert_reference_shape(shape)["policy"]["other"]["replay_buffer"]

    assert found == {"type": "advanced", "replay_buffer_size": 20000}


def test_two_transports_are_refused() -> None:
    shape = parallel_shape()
    shape["create_config"]["comm_collector"]["type"] = "flask_fs"

    with pytest.raises(ConfigError, match="flask_fs"):
        convert_reference_shape(shape)


@pytest.mark.parametrize(
    ("section", "value", "path"),
    [
        ("create_config", {"reward_model": {"type": "rnd"}}, "create_config.reward_model"),
        ("main_config", {"world_model": {"x": 1}}, "main_config.world_model"),
        ("create_config", {"model": {"type": "vac"}}, "create_config.model"),
        (
            "system_config",
            {"coordinator": {"operator_server": {"system_addr": "server:8080"}}},
            "system_config.coordinator.operator_server",
        ),
    ],
)
def test_what_has_no_counterpart_is_named(section: str, value: dict[str, Any], path: str) -> None:
    shape = parallel_shape()
    shape[section].update(value)

    with pytest.raises(ConfigError) as caught:
        convert_reference_shape(shape)

    assert caught.value.path == path


def test_unknown_key_inside_a_carried_section_is_named_with_its_new_path() -> None:
    shape = serial_shape()
    shape["main_config"]["policy"]["model"]["dropout"] = 0.1

    with pytest.raises(UnknownKeyError) as caught:
        compile_config(shape)

    assert caught.value.path == "policy.model.dropout"


@pytest.mark.parametrize(
    ("zoo_name", "env_id"),
    [
        ("cartpole", "CartPole-v1"),
        ("pendulum", "Pendulum-v1"),
        ("mountain_car", "MountainCar-v0"),
        ("acrobot", "Acrobot-v1"),
    ],
)
def test_zoo_name_finds_the_newest_env_of_that_name(zoo_name: str, env_id: str) -> None:
    assert find_env_id(zoo_name) == env_id


def test_zoo_name_that_gymnasium_lacks_is_refused() -> None:
    with pytest.raises(UnknownEnvError) as caught:
        find_env_id("smac_v9")

    assert caught.value.env_id == "smac_v9"


def test_documented_aliases_are_renamed() -> None:
    cfg = rename_all_aliases(
        {
            "system": {"comm_learner_type": "in_memory", "comm_collector_type": "in_memory"},
            "policy": {
                "learn": {"learner": {"learner_type": "base", "import_module": ["mine"]}},
                "other": {"commander": {"parallel_commander_type": "solo"}},
            },
        }
    )

    assert cfg["system"] == {"transport": {"type": "in_memory"}}
    assert cfg["policy"]["learn"]["learner"] == {"type": "base", "import_names": ["mine"]}
    assert cfg["policy"]["other"]["commander"] == {"type": "solo"}


def test_alias_that_contradicts_the_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="keep one of them"):
        rename_all_aliases({"learner": {"type": "base", "learner_type": "other"}})
