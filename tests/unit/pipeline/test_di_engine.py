"""Configs in the format of DI-engine."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from dingsdk.errors import ConfigError, UnknownEnvError, UnknownKeyError
from dingsdk.pipeline.compile import compile_config
from dingsdk.pipeline.di_engine import convert_reference_shape, find_env_id, rename_all_aliases
from dingsdk.pipeline.di_engine_keys import MOVED, NOT_USED, ONLY, OTHER_POLICIES


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


def test_deque_buffer_of_a_policy_with_priorities_becomes_advanced() -> None:
    shape = serial_shape()
    shape["main_config"]["policy"]["priority"] = True
    assert compile_config(shape).policy.other.replay_buffer.type == "advanced"


def test_create_config_can_be_passed_separately() -> None:
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
    env["n_evaluator_episode"] = 24
    assert compile_config(shape).env.n_evaluator_episode == 24


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("subprocess", "subprocess"),
        ("subprocess_v2", "subprocess"),
        ("async_subprocess", "async_subprocess"),
    ],
)
def test_subprocess_env_manager_is_kept(theirs: str, ours: str) -> None:
    shape = serial_shape()
    shape["main_config"]["env"]["manager"] = {
        "shared_memory": True,
        "step_timeout": None,
        "max_retry": 5,
    }
    shape["create_config"]["env_manager"] = {"type": theirs}

    manager = compile_config(shape).env_manager

    assert (manager.type, manager.max_retry) == (ours, 5)


def test_switches_that_are_off_are_accepted() -> None:
    shape = serial_shape()
    policy = shape["main_config"]["policy"]
    policy.update(multi_gpu=False, priority_IS_weight=False)
    policy["learn"].update(multi_gpu=False, ignore_done=False)

    assert compile_config(shape).policy.learn.batch_size == 64


def test_transport_is_taken_from_the_comm_parts() -> None:
    shape = parallel_shape()
    for name in ("comm_learner", "comm_collector"):
        shape["create_config"][name]["type"] = "flask_fs"

    assert convert_reference_shape(shape)["system"]["transport"] == {"type": "flask_fs"}


def test_create_config_overrides_main_config() -> None:
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
        convert_reference_shape(shape)

    assert caught.value.path == path


def put(section: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for key in parents:
        section = section.setdefault(key, {})
    section[last] = value


def at(section: Any, path: str) -> Any:
    """Return the value at a dotted path, or None if there is none."""
    for key in path.split("."):
        section = section.get(key) if isinstance(section, dict) else None
    return section


@pytest.mark.parametrize("old", [each for each in MOVED if each != "env.manager"])
def test_moved_key_gets_its_new_path(old: str) -> None:
    shape = serial_shape()
    put(shape["main_config"], old, 123)

    found = convert_reference_shape(shape)

    assert (at(found, MOVED[old]), at(found, old)) == (123, None)


@pytest.mark.parametrize("path", NOT_USED)
def test_unused_key_is_removed_and_the_reason_is_logged(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    shape = serial_shape()
    put(shape["main_config"], path, 1)

    with caplog.at_level(logging.INFO, logger="dingsdk"):
        found = convert_reference_shape(shape)

    assert at(found, path) is None
    assert f"{path} is not used: {NOT_USED[path]}" in caplog.text


@pytest.mark.parametrize("path", ONLY)
def test_fixed_switch_is_removed_at_its_value_and_refused_at_another(path: str) -> None:
    shape = serial_shape()
    put(shape["main_config"], path, ONLY[path][0])
    assert at(convert_reference_shape(shape), path) is None

    put(shape["main_config"], path, {"use_norm": False} if path == "env.norm_obs" else False)
    if not ONLY[path][0]:
        assert at(convert_reference_shape(shape), path) is None
        put(shape["main_config"], path, {"use_norm": True} if path == "env.norm_obs" else True)
    with pytest.raises(ConfigError, match=re.escape(ONLY[path][1])) as caught:
        convert_reference_shape(shape)
    assert caught.value.path == path


def test_section_counts_as_on_if_one_of_its_switches_is_on() -> None:
    shape = serial_shape()
    put(shape["main_config"], "env.norm_obs", {"use_norm": True, "offline": False})
    with pytest.raises(ConfigError) as caught:
        convert_reference_shape(shape)
    assert caught.value.path == "env.norm_obs"


def test_env_manager_in_the_env_section_overrides_the_top_level_one() -> None:
    shape = serial_shape()
    shape["main_config"]["env_manager"] = {"max_retry": 2, "step_timeout": 7.0}
    shape["main_config"]["env"]["manager"] = {"max_retry": 5}
    found = convert_reference_shape(shape)["env_manager"]
    assert (found["max_retry"], found["step_timeout"]) == (5, 7.0)


def test_error_lists_everything_that_cannot_be_converted() -> None:
    shape = serial_shape()
    shape["main_config"]["policy"]["learn"] |= {"value_norm": True, "multi_gpu": True}
    shape["create_config"] |= {"policy": {"type": "td3"}, "model": {"type": "qac"}}

    with pytest.raises(ConfigError) as caught:
        convert_reference_shape(shape)

    for text in (
        "main_config.policy.learn.multi_gpu (several learners",
        "create_config.model (known sections are",
        "policy.type ('td3' is none of its policies: sac is nearest; the plugin",
        "policy.learn.value_norm (values",
    ):
        assert text in str(caught.value)


@pytest.mark.parametrize("kind", OTHER_POLICIES)
def test_error_for_a_di_engine_policy_names_the_nearest(kind: str) -> None:
    shape = serial_shape()
    shape["create_config"]["policy"]["type"] = f"{kind}_command"

    with pytest.raises(ConfigError, match=OTHER_POLICIES[kind]):
        convert_reference_shape(shape)


def test_unknown_policy_suggests_the_bridge_and_a_user_policy_keeps_its_module() -> None:
    shape = serial_shape()
    shape["create_config"]["policy"] = {"type": "acer", "import_names": ["ding.policy.acer"]}
    with pytest.raises(ConfigError, match="'acer' is none of its policies; the plugin dingsdk-rl"):
        convert_reference_shape(shape)

    shape["create_config"]["policy"]["import_names"] = ["mine"]
    assert convert_reference_shape(shape)["policy"]["type"] == "acer"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("LunarLander-v2", "LunarLander-v3"),
        ("CartPole-v0", "CartPole-v0"),
        ("CartPole-v99", "CartPole-v99"),
        ("Nowhere-v1", "Nowhere-v1"),
        ("Acrobot", "Acrobot-v1"),
    ],
)
def test_env_id_that_gymnasium_removed_becomes_its_newest_version(theirs: str, ours: str) -> None:
    shape = serial_shape()
    shape["main_config"]["env"]["env_id"] = theirs
    assert convert_reference_shape(shape)["env"]["env_id"] == ours


def test_priorities_of_sequences_are_refused() -> None:
    shape = serial_shape()
    shape["create_config"]["policy"]["type"] = "r2d2"
    shape["main_config"]["policy"]["priority"] = True
    with pytest.raises(ConfigError, match="sequences are drawn uniformly") as caught:
        convert_reference_shape(shape)
    assert caught.value.path == "policy.priority"


def test_ppo_config_of_the_zoo_compiles() -> None:
    shape = serial_shape()
    shape["create_config"] = {"env": {"type": "cartpole"}, "policy": {"type": "ppo"}}
    shape["main_config"]["policy"] = {
        "cuda": False,
        "action_space": "discrete",
        "recompute_adv": True,
        "model": {
            "obs_shape": 4,
            "action_shape": 2,
            "action_space": "discrete",
            "encoder_hidden_size_list": [64, 64, 128],
            "critic_head_hidden_size": 128,
            "actor_head_hidden_size": 128,
        },
        "learn": {
            "epoch_per_collect": 2,
            "batch_size": 64,
            "learning_rate": 0.001,
            "value_weight": 0.5,
            "entropy_weight": 0.01,
            "clip_ratio": 0.2,
            "adv_norm": True,
            "learner": {"hook": {"save_ckpt_after_iter": 100}},
        },
        "collect": {"n_sample": 256, "unroll_len": 1, "discount_factor": 0.9, "gae_lambda": 0.95},
        "eval": {"evaluator": {"eval_freq": 100}},
    }

    policy = compile_config(shape).policy

    assert (policy.discount_factor, policy.gae_lambda) == (0.9, 0.95)
    assert policy.model.encoder_hidden_size_list == [64, 64, 128]
    assert policy.model.action_space == "discrete"


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


def test_sequence_lengths_default_to_those_of_dingsdk() -> None:
    shape = serial_shape()
    shape["create_config"]["policy"]["type"] = "r2d2"
    buffer = convert_reference_shape(shape)["policy"]["other"]["replay_buffer"]
    assert buffer == {"type": "sequence", "replay_buffer_size": 20000}


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

    found = convert_reference_shape(shape)

    assert found["env"]["env_id"] == "ale_py:PongNoFrameskip-v4"
    stack = {"type": "frame_stack", "stack_size": 4}
    assert found["env"]["wrappers"] == ["episode_statistics", "atari", stack]
    assert found["policy"]["model"]["encoder_hidden_size_list"] == [512]


def test_atari_env_keeps_its_given_env_id_and_wrappers() -> None:
    shape = serial_shape()
    shape["create_config"]["env"] = {"type": "atari"}
    shape["main_config"]["env"] |= {"env_id": "ale_py:ALE/Pong-v5", "wrappers": ["atari"]}

    found = convert_reference_shape(shape)

    assert found["env"]["env_id"] == "ale_py:ALE/Pong-v5"
    assert found["env"]["wrappers"] == ["atari"]


def test_frames_of_other_envs_are_stacked_after_their_own_wrappers() -> None:
    shape = serial_shape()
    shape["main_config"]["env"] |= {"frame_stack": 3, "wrappers": ["episode_statistics"]}
    stack = {"type": "frame_stack", "stack_size": 3}
    assert convert_reference_shape(shape)["env"]["wrappers"] == ["episode_statistics", stack]

    del shape["main_config"]["env"]["wrappers"]
    assert convert_reference_shape(shape)["env"]["wrappers"] == [stack]


def test_unknown_key_in_a_converted_section_is_named_with_its_new_path() -> None:
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


@pytest.mark.parametrize(
    ("zoo_name", "says"),
    [
        ("smac_v9", "is no env of gymnasium. Set env.env_id"),
        ("cartpol", "is no env of gymnasium; did you mean 'cartpole'? Set env.env_id"),
    ],
)
def test_zoo_name_that_gymnasium_lacks_is_refused(zoo_name: str, says: str) -> None:
    with pytest.raises(UnknownEnvError, match=re.escape(says)) as caught:
        find_env_id(zoo_name)

    assert caught.value.env_id == zoo_name


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


def test_alias_does_not_change_the_rest_of_its_section() -> None:
    cfg = {
        "system": {
            "comm_learner_type": "flask_fs",
            "transport": {"port": 7777},
            "collector_num": 3,
        }
    }
    assert rename_all_aliases(cfg) == {
        "system": {"transport": {"type": "flask_fs", "port": 7777}, "collector_num": 3}
    }


def test_alias_that_contradicts_the_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="keep one of them"):
        rename_all_aliases({"learner": {"type": "base", "learner_type": "other"}})
