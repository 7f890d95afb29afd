"""Configs in the format of DI-engine."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import Any

import pytest
from dingsdk_di_engine.config import convert
from dingsdk_di_engine.keys import ENVS, LEFT_OUT, MOVED, ONLY

from dingsdk.config import put
from dingsdk.errors import ConfigError, UnknownEnvError
from dingsdk.pipeline.compile import compile_config


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
    with caplog.at_level(logging.INFO, logger="dingsdk_di_engine"):
        cfg = compile_config(serial_shape())

    assert cfg.env.env_id == "CartPole-v1"
    assert cfg.env_manager.type == "base"
    assert cfg.policy.type == "dqn"
    assert cfg.policy.model.dueling is True
    assert cfg.policy.other.replay_buffer.type == "naive"
    assert cfg.policy.other.replay_buffer.replay_buffer_size == 20000
    assert cfg.policy.eval.evaluator.eval_freq == 40
    assert "deque is called naive here" in caplog.text


def test_deque_buffer_of_a_policy_with_priorities_becomes_advanced() -> None:
    shape = serial_shape()
    shape["main_config"]["policy"]["priority"] = True
    assert compile_config(shape).policy.other.replay_buffer.type == "advanced"


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
    env["n_evaluator_episode"] = 24
    assert compile_config(shape).env.n_evaluator_episode == 24


def test_create_config_overrides_main_config() -> None:
    shape = serial_shape()
    shape["main_config"]["policy"]["other"]["replay_buffer"]["type"] = "elastic"
    shape["create_config"]["replay_buffer"]["type"] = "advanced"

    found = convert(shape)["policy"]["other"]["replay_buffer"]

    assert found == {"type": "advanced", "replay_buffer_size": 20000}


def test_two_transports_are_refused() -> None:
    shape = parallel_shape()
    shape["create_config"]["comm_collector"]["type"] = "flask_fs"

    with pytest.raises(ConfigError, match="flask_fs"):
        convert(shape)


@pytest.mark.parametrize(
    ("section", "value", "path"),
    [
        ("create_config", {"reward_model": {"type": "rnd"}}, "create_config.reward_model"),
        ("main_config", {"world_model": {"x": 1}}, "main_config.world_model"),
        ("create_config", {"model": {"type": "vac"}}, "create_config.model"),
        (
            "system_config",
            {"coordinator": {"operator_server": {"system_addr": "server:8080"}}},
            "system.coordinator.operator_server",
        ),
    ],
)
def test_section_without_counterpart_is_refused_by_name(
    section: str, value: dict[str, Any], path: str
) -> None:
    shape = parallel_shape()
    shape[section].update(value)

    with pytest.raises(ConfigError) as caught:
        convert(shape)

    assert caught.value.path == path


def at(section: Any, path: str) -> Any:
    """Return the value at a dotted path, or None if there is none."""
    for key in path.split("."):
        section = section.get(key) if isinstance(section, dict) else None
    return section


def shape_for(entry: str) -> tuple[dict[str, Any], str]:
    """Return a config of the policy that an entry of a table is for, and the entry's path."""
    kind, _, path = entry.rpartition(":")
    shape = serial_shape()
    shape["create_config"]["policy"]["type"] = kind or "dqn"
    return shape, path


@pytest.mark.parametrize("entry", [each for each in MOVED if each != "env.manager"])
def test_moved_key_gets_its_new_path(entry: str) -> None:
    shape, path = shape_for(entry)
    put(shape["main_config"], path, 123)

    found = convert(shape)

    assert (at(found, MOVED[entry]), at(found, path)) == (123, None)


@pytest.mark.parametrize("entry", LEFT_OUT)
def test_unused_key_is_removed_and_the_reason_is_logged(
    entry: str, caplog: pytest.LogCaptureFixture
) -> None:
    shape, path = shape_for(entry)
    put(shape["main_config"], path, 1)

    with caplog.at_level(logging.INFO, logger="dingsdk_di_engine"):
        found = convert(shape)

    assert at(found, path) is None
    assert f"{path} is not used: {LEFT_OUT[entry]}" in caplog.text


@pytest.mark.parametrize("entry", ONLY)
def test_fixed_switch_is_removed_at_its_value_and_refused_at_another(entry: str) -> None:
    shape, path = shape_for(entry)
    only, reason = ONLY[entry]
    put(shape["main_config"], path, only)
    assert at(convert(shape), path) is None

    put(shape["main_config"], path, {"use_norm": False} if path == "env.norm_obs" else False)
    if not only:
        assert at(convert(shape), path) is None
        put(shape["main_config"], path, {"use_norm": True} if path == "env.norm_obs" else True)
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        convert(shape)
    assert (caught.value.path, caught.value.refused) == (path, {path: reason})


def test_env_manager_in_the_env_section_overrides_the_top_level_one() -> None:
    shape = serial_shape()
    shape["main_config"]["env_manager"] = {"max_retry": 2, "step_timeout": 7.0}
    shape["main_config"]["env"]["manager"] = {"max_retry": 5}
    found = convert(shape)["env_manager"]
    assert (found["max_retry"], found["step_timeout"]) == (5, 7.0)


def test_user_policy_keeps_its_module_and_its_shapes() -> None:
    shape = serial_shape()
    shape["create_config"]["policy"] = {"type": "acer", "import_names": ["ding.x", "mine"]}

    policy = convert(shape)["policy"]

    assert (policy["type"], policy["import_names"]) == ("acer", ["mine"])
    assert policy["model"]["obs_shape"] == 4


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("LunarLander-v2", "LunarLander-v3"),
        ("CartPole-v0", "CartPole-v0"),
        ("CartPole-v99", "CartPole-v99"),
        ("Hopper-v3", "Hopper-v5"),
        ("mine:Nowhere-v1", "mine:Nowhere-v1"),
        ("Acrobot", "Acrobot-v1"),
    ],
)
def test_env_id_that_gymnasium_removed_becomes_its_newest_version(theirs: str, ours: str) -> None:
    shape = serial_shape()
    shape["main_config"]["env"]["env_id"] = theirs
    assert convert(shape)["env"]["env_id"] == ours


def test_envpool_of_atari_has_its_own_ids_and_wrappers() -> None:
    shape = serial_shape()
    shape["create_config"] |= {"env": {"type": "atari"}, "env_manager": {"type": "env_pool"}}
    shape["main_config"]["env"] |= {"env_id": "PongNoFrameskip-v4", "frame_stack": 4}

    found = convert(shape)

    assert (found["env"]["env_id"], found["env_manager"]["type"]) == ("envpool:Pong-v5", "vector")
    assert "wrappers" not in found["env"]


@pytest.mark.parametrize(
    ("theirs", "ours"), [("group/x y", "group_x_y"), ("a.b-c_1", "a.b-c_1"), ("../up", "__up")]
)
def test_experiment_name_becomes_the_name_of_a_run_folder(theirs: str, ours: str) -> None:
    shape = serial_shape()
    shape["main_config"]["exp_name"] = theirs
    assert compile_config(shape).exp_name == ours


def test_learning_rate_scheduler_of_ppo_becomes_a_schedule_over_env_steps() -> None:
    shape = serial_shape()
    shape["create_config"]["policy"]["type"] = "ppo"
    policy = shape["main_config"]["policy"] = {
        "learn": {"epoch_per_collect": 3, "batch_size": 64, "learning_rate": 0.01},
        "collect": {"n_sample": 200},
    }
    policy["learn"]["lr_scheduler"] = {"epoch_num": 50, "min_lr_lambda": 0.1}

    found = compile_config(shape).policy.learn.learning_rate

    line = {"type": "linear", "start": 0.01, "end": 0.001}
    assert found == {**line, "env_steps": 10_000, "warmup": 0}


@pytest.mark.parametrize("garbage", [3, "a b/c d-v-1", [1], {"a": {}}, [[]], True])
def test_wrong_value_anywhere_is_an_error_of_the_config(garbage: Any) -> None:
    for section, paths in {
        "main_config": flatten(parallel_shape()["main_config"]),
        "create_config": flatten(parallel_shape()["create_config"]),
        "system_config": ["coordinator", "path_data"],
    }.items():
        for path in ["", "env.env_id", "policy.learn.lr_scheduler", "env_manager.type", *paths]:
            shape = parallel_shape()
            if path:
                put(shape[section], path, garbage)
            else:
                shape[section] = garbage
            with suppress(ConfigError):
                convert(shape)


def flatten(section: dict[str, Any], path: str = "") -> list[str]:
    """Return the dotted paths of all keys."""
    found = []
    for key, value in section.items():
        found.append(f"{path}{key}")
        if isinstance(value, dict):
            found += flatten(value, f"{path}{key}.")
    return found


def test_r2d2_config_of_the_zoo_compiles_with_equal_lengths() -> None:
    shape = serial_shape()
    shape["create_config"]["policy"]["type"] = "r2d2"
    policy = shape["main_config"]["policy"]
    del policy["model"]["dueling"]
    policy |= {"nstep": 5, "burnin_step": 2, "learn_unroll_len": 40, "unroll_len": 42}
    policy["learn"]["target_update_theta"] = 0.001
    policy["collect"] = {"n_sample": 32, "unroll_len": 42, "traj_len_inf": True, "env_num": 8}

    compiled = compile_config(shape).policy

    assert (compiled.learn.burn_in, compiled.learn.sequence_length) == (2, 40)
    assert compiled.other.replay_buffer.sampler.burn_in == 2
    assert compiled.other.replay_buffer.sampler.pad is True
    assert compiled.other.replay_buffer.sequence_length == 40
    assert compiled.learn.target_theta == 0.001
    assert compiled.collect.unroll_len == 1


def test_sac_config_of_the_zoo_compiles_with_the_width_of_its_heads() -> None:
    shape = serial_shape()
    shape["create_config"] = {
        "env": {"type": "pendulum", "import_names": ["dizoo.classic_control.pendulum.envs"]},
        "policy": {"type": "sac", "import_names": ["ding.policy.sac"]},
        "replay_buffer": {"type": "naive"},
    }
    shape["main_config"]["env"]["act_scale"] = True
    shape["main_config"]["policy"] = {
        "priority": False,
        "random_collect_size": 1000,
        "model": {
            "obs_shape": 3,
            "action_shape": 1,
            "twin_critic": True,
            "action_space": "reparameterization",
            "actor_head_hidden_size": 128,
            "critic_head_hidden_size": 128,
        },
        "learn": {
            "batch_size": 128,
            "learning_rate_q": 0.001,
            "ignore_done": True,
            "target_theta": 0.005,
            "discount_factor": 0.98,
            "reparameterization": True,
            "log_space": True,
        },
        "collect": {"n_sample": 10, "unroll_len": 1, "collector_logit": False},
    }

    policy = compile_config(shape).policy

    assert policy.model.encoder_hidden_size_list == [128, 128]
    assert (policy.discount_factor, policy.random_collect_size) == (0.98, 1000)

    shape["main_config"]["policy"]["model"]["encoder_hidden_size_list"] = [64]
    assert compile_config(shape).policy.model.encoder_hidden_size_list == [64]
    del shape["main_config"]["policy"]["model"]["encoder_hidden_size_list"]
    del shape["main_config"]["policy"]["model"]["actor_head_hidden_size"]
    assert compile_config(shape).policy.model.encoder_hidden_size_list == [256, 256]


def test_atari_config_of_the_zoo_gets_env_id_and_wrappers() -> None:
    shape = serial_shape()
    shape["create_config"]["env"] = {"type": "atari", "import_names": ["dizoo.atari.envs"]}
    shape["main_config"]["env"] |= {"env_id": "PongNoFrameskip-v4", "frame_stack": 4}
    shape["main_config"]["policy"]["model"]["obs_shape"] = [4, 84, 84]
    shape["main_config"]["policy"]["model"]["encoder_hidden_size_list"] = [128, 128, 512]

    found = convert(shape)

    assert found["env"]["env_id"] == "ale_py:PongNoFrameskip-v4"
    stack = {"type": "frame_stack", "stack_size": 4}
    assert found["env"]["wrappers"] == ["episode_statistics", "atari", stack]
    assert found["policy"]["model"]["encoder_hidden_size_list"] == [512]


@pytest.mark.parametrize(("zoo_name", "env_id"), ENVS.items())
def test_env_of_the_zoo_without_an_id_has_one_in_gymnasium(zoo_name: str, env_id: str) -> None:
    shape = serial_shape()
    shape["create_config"]["env"]["type"] = zoo_name

    name, _, _ = convert(shape)["env"]["env_id"].rpartition("-v")
    assert name == env_id.rpartition("-v")[0]  # its version may be newer
    shape["create_config"]["env"]["type"] = f"{zoo_name}x"
    with pytest.raises(UnknownEnvError, match=rf"'{zoo_name}x' is no env of gymnasium"):
        convert(shape)
