"""``compile_config`` turns a user config into a complete and checked config."""

from __future__ import annotations

import copy
import functools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from easydict import EasyDict
from gymnasium.envs.classic_control import CartPoleEnv

from dingsdk.config import (
    Configurable,
    PartSection,
    apply_set,
    deep_merge_dicts,
    load_config,
    to_plain,
)
from dingsdk.config.plain import find, put
from dingsdk.errors import (
    CheckpointMissingError,
    ConfigError,
    ConfigTypeError,
    DingError,
    EnvError,
    PluginNotInstalledError,
    UnknownEnvError,
    UnknownKeyError,
    UnknownPluginError,
)
from dingsdk.pipeline.compile import compile_config, compile_config_parallel
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import PluginManager, Switches, hookimpl, use_manager
from dingsdk.plugins.discovery import Advert, discover
from dingsdk.policy import DQNPolicy
from dingsdk.worker import NaiveReplayBuffer
from dingsdk.worker.replay_buffer import IBuffer
from dingsdk.worker.replay_buffer.config import BufferSection
from dingsdk.worker.replay_buffer.limiter import SamplesPerInsertLimiter
from dingsdk.worker.replay_buffer.remover import FifoRemover
from tests.extras import needs

EVALUATOR = "policy.eval.evaluator"
MINIMAL: dict[str, Any] = {"env": {"env_id": "CartPole-v1"}, "policy": {"type": "dqn"}}


class RaisesAtClose(CartPoleEnv):  # type: ignore[misc]
    """An environment whose ``close`` raises."""

    def close(self) -> None:
        raise RuntimeError("stuck")


class Spaceless(gym.Env[Any, Any]):
    """An environment with an observation space but no action space."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)


def changed(*assignments: str) -> dict[str, Any]:
    cfg = deep_merge_dicts(MINIMAL, {})
    for assignment in assignments:
        apply_set(cfg, assignment)
    return cfg


def test_minimal_config_gets_the_defaults_of_every_selected_class() -> None:
    cfg = compile_config(MINIMAL)

    assert isinstance(cfg, EasyDict)
    assert cfg.policy.learn.learner.type == "base"
    assert cfg.policy.learn.learner.hook.save_ckpt_after_run is True
    assert cfg.policy.other.replay_buffer.type == "naive"
    assert (
        cfg.policy.other.replay_buffer.replay_buffer_size
        == NaiveReplayBuffer.default_config().replay_buffer_size
    )
    assert cfg.policy.collect.collector.type == "sample"
    assert cfg.policy.collect.parallel_collector.type == "zergling"
    assert cfg.policy.eval.evaluator.type == "interaction"
    assert cfg.policy.other.commander.type == "solo"


def test_model_shapes_are_read_from_the_env() -> None:
    cfg = compile_config(MINIMAL)

    assert (cfg.policy.model.obs_shape, cfg.policy.model.action_shape) == (4, 2)


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_too_large_update_per_collect_is_refused_on_policy(mode: Any) -> None:
    def compiled(example: str, count: int) -> Any:
        config = load_config(example)
        apply_set(config, f"policy.learn.update_per_collect={count}")
        return compile_config(config, mode=mode)

    compiled("cartpole-ppo", 1000)
    compiled(
        "cartpole-dqn", 10**9
    )  # off-policy, each training is one iteration, and limits are checked between iterations
    with pytest.raises(ConfigError, match=r"update_per_collect is 1,001: .* at most 1,000"):
        compiled("cartpole-ppo", 1001)


def test_error_for_a_bad_run_name_lists_the_allowed_characters() -> None:
    with pytest.raises(ConfigTypeError) as caught:
        compile_config(changed("exp_name=a b"))
    words = "text of one or more letters, digits, '.', '_' and '-'"
    assert str(caught.value) == f"exp_name: expected {words}, found 'a b' (str)"


OUT_OF_RANGE = (
    "seed=abc",
    "seed=-1",
    "exp_name=../elsewhere",
    "env.collector_env_num=1e12",
    "env.collector_env_num=0",
    "env.n_evaluator_episode=1e30",
    "policy.cuda=1",
    "policy.learn.learner=base",
    "policy=dqn",
    "policy.type=[dqn]",
    "env.stop_value=.nan",
    "env.stop_value=high",
    "system.collector_num=1.5",
    "system.coordinator.lease_s=0",
    "policy.learn.learning_rate=0.0",
    "policy.learn.learning_rate=.inf",
    "policy.collect.parallel_collector.print_freq=0",
    "policy.discount_factor=1.5",
    "policy.other.eps.decay=null",
    "policy.other.replay_buffer.seed=abc",
    "policy.other.replay_buffer.limiter.min_size=0",
    "policy.other.commander.collector_task_space=0",
    "policy.model.obs_shape=text",
    "policy.model.obs_shape=[4, 1]",
)
USELESS = (
    "policy.collect.n_episode=3",
    "policy.collect.n_episode=8",  # this collector counts samples
    "policy.collect.unroll_len=501",
    "env_manager.auto_reset=false",
    "env_manager.episode_num=2",
    "policy.priority=true",
    "policy.other.replay_buffer.limiter.min_size=10001",
    "env.n_evaluator_episode=4",  # for 5 envs
    "policy.model.obs_shape=7",  # CartPole-v1 has 4
    "policy.model.obs_shape=.nan",
    "policy.collect.n_sample=null",
    "policy.eval.evaluator.type=battle_interaction",
    "policy.cuda=true",
)
"""Values with which a run could never train."""


@pytest.mark.parametrize(
    ("mode", "assignment"),
    [
        *(("parallel", each) for each in OUT_OF_RANGE),
        *(("serial", each) for each in USELESS),
    ],
)
def test_value_that_cannot_work_is_refused_with_its_path(mode: Any, assignment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compile_config(changed(assignment), mode=mode)

    assert caught.value.path == assignment.partition("=")[0]


@pytest.mark.parametrize(("section", "key"), [("learn", "batch_size"), ("collect", "n_sample")])
def test_buffer_smaller_than_a_batch_or_a_collect_is_refused(section: str, key: str) -> None:
    sets = [
        "policy.learn.batch_size=8",
        "policy.collect.n_sample=8",
        f"policy.{section}.{key}=64",
        "policy.other.replay_buffer.replay_buffer_size=63",
    ]

    with pytest.raises(ConfigError, match=rf"63, less than policy\.{section}\.{key} 64") as caught:
        compile_config(changed(*sets))

    assert caught.value.path == "policy.other.replay_buffer.replay_buffer_size"
    compile_config(changed(*sets[:3], "policy.other.replay_buffer.replay_buffer_size=64"))


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_replay_buffer_that_cannot_be_allocated_is_refused(mode: Any) -> None:
    path = "policy.other.replay_buffer"
    with pytest.raises(ConfigError, match="which cannot be allocated") as caught:
        compile_config(changed(f"{path}.replay_buffer_size={10**13}"), mode=mode)
    assert caught.value.path == f"{path}.replay_buffer_size"


@pytest.mark.parametrize("storage", ["{type: memmap, path: rows}", "{type: object}"])
def test_size_of_a_replay_buffer_outside_of_arrays_is_not_limited_by_memory(storage: str) -> None:
    path = "policy.other.replay_buffer"
    sets = (f"{path}.replay_buffer_size={10**13}", f"{path}.storage={storage}")
    assert compile_config(changed(*sets)).policy.other.replay_buffer.replay_buffer_size == 10**13


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_capacity_below_a_batch_of_sequences_is_refused(mode: Any) -> None:
    class Unrolled(DQNPolicy):
        trains_on = frozenset({"sequences"})

    path = "policy.other.replay_buffer"
    sets = (f"{path}.type=sequence", f"{path}.sequence_length=8", "policy.learn.batch_size=16")
    compiled = functools.partial(compile_config, policy=Unrolled, mode=mode)
    with pytest.raises(ConfigError, match="batch_size 16 times sequence_length 8"):
        compiled(changed(*sets, f"{path}.replay_buffer_size=127"))
    compiled(changed(*sets, f"{path}.replay_buffer_size=128"))


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_whole_episodes_are_refused_if_the_policy_trains_on_samples(mode: Any) -> None:
    sets = ("policy.collect.collector.type=episode", "policy.collect.n_episode=8")
    path = "policy.collect.collector.get_train_sample"

    with pytest.raises(ConfigError, match="trains on train samples; set it to true") as caught:
        compile_config(changed(*sets), mode=mode)
    assert caught.value.path == path

    compile_config(changed(*sets, f"{path}=true"), mode=mode)


@pytest.mark.parametrize(("kind", "key"), [("episode", "n_episode"), ("sample", "n_sample")])
def test_missing_collect_size_is_refused_in_serial_mode(kind: str, key: str) -> None:
    sets = [f"policy.collect.collector={{type: {kind}}}", "policy.collect.n_sample=null"]

    with pytest.raises(ConfigError, match=f"a collector of type '{kind}' counts") as caught:
        compile_config(changed(*sets))

    assert caught.value.path == f"policy.collect.{key}"
    if kind == "episode":
        sets.append("policy.collect.collector.get_train_sample=true")
    compile_config(changed(*sets, f"policy.collect.{key}=64"))


@pytest.mark.parametrize(
    ("mode", "path", "kind"),
    [
        ("serial", "policy.collect.collector", "sample_1v1"),
        ("parallel", "policy.collect.collector", "sample_1v1"),
        ("serial", "policy.other.serial_commander", "one_vs_one"),
        ("parallel", "policy.collect.parallel_collector", "marine"),
        ("parallel", "policy.other.commander", "one_vs_one"),
    ],
)
def test_part_for_several_players_is_refused_for_an_env_of_one_player(
    mode: Any, path: str, kind: str
) -> None:
    with pytest.raises(ConfigError, match="CartPole-v1 has 1; choose one for envs of") as caught:
        compile_config(changed(f"{path}.type={kind}"), mode=mode)

    assert caught.value.path == f"{path}.type"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        pytest.param(
            "policy.eval.evaluator.render={render_freq: 10}",
            "render.render_freq",
            marks=needs("video"),
        ),
        ("policy.eval.evaluator.figure_path=figures", "figure_path"),
    ],
)
def test_videos_and_figures_of_evaluations_are_refused_in_parallel_mode(
    change: str, path: str
) -> None:
    cfg = changed(change, "env_manager.type=in_process", "env.kwargs.render_mode=rgb_array")
    compile_config(cfg)

    with pytest.raises(ConfigError, match="evaluations in parallel mode do not take") as caught:
        compile_config(cfg, mode="parallel")

    assert caught.value.path == f"policy.eval.evaluator.{path}"


def _supervised(data: str) -> dict[str, Any]:
    cfg = load_config("metric-supervised")
    apply_set(cfg, f"policy.eval.evaluator.data={data}")
    return cfg


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ("null", "data is missing: an evaluator of type 'metric' measures on data"),
        ("digits", r"'digits' gives no data \(no module:function\)"),
        ("no.such.module:held_out", "its import raised ModuleNotFoundError"),
        ("dingsdk.examples.digits:nothing", "dingsdk.examples.digits has no function 'nothing'"),
    ],
)
def test_metric_without_data_is_refused(data: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        compile_config(_supervised(data))

    assert caught.value.path == "policy.eval.evaluator.data"


def _game(*sets: str) -> dict[str, Any]:
    pytest.importorskip("pettingzoo", reason="the extra multiagent is not installed")
    cfg = load_config("tictactoe-selfplay")
    for each in sets:
        apply_set(cfg, each)
    return cfg


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize(
    ("collector", "buffer"),
    [
        ({"type": "sample_1v1"}, "sequence"),
        ({"type": "episode_1v1", "get_train_sample": True}, "sequence"),
        ({"type": "episode_1v1"}, "episode"),
    ],
)
def test_traj_len_inf_is_set_for_games_with_ordered_buffers(
    mode: Any, collector: dict[str, Any], buffer: str
) -> None:
    class Ordered(DQNPolicy):
        trains_on = frozenset({"sequences", "episodes"})

    cfg = _game(f"policy.other.replay_buffer.type={buffer}")
    cfg["policy"]["collect"]["collector"] = collector
    if collector["type"] == "episode_1v1":
        cfg["policy"]["collect"]["n_episode"] = 8

    assert compile_config(cfg, policy=Ordered, mode=mode).policy.traj_len_inf is True


@pytest.mark.parametrize(
    ("mode", "path", "kind", "advice"),
    [
        ("serial", "policy.collect.collector", "sample", "sample_1v1 or episode_1v1"),
        ("serial", "policy.other.serial_commander", "base", "one_vs_one"),
        ("parallel", "policy.collect.parallel_collector", "zergling", "marine"),
        ("parallel", "policy.other.commander", "solo", "one_vs_one"),
        ("serial", "env_manager", "envpool", "vector, subprocess or async_subprocess"),
    ],
)
def test_part_for_one_player_is_refused_for_an_env_of_two_players(
    mode: Any, path: str, kind: str, advice: str
) -> None:
    with pytest.raises(ConfigError, match=f"has 2; choose {advice}") as caught:
        compile_config(_game(f"{path}.type={kind}"), mode=mode)

    assert caught.value.path == f"{path}.type"


def test_all_parts_for_one_player_are_named_at_once() -> None:
    game = _game()
    cfg = {"env": game["env"], "policy": {"type": "dqn"}}
    with pytest.raises(ConfigError) as caught:
        compile_config(cfg)
    assert str(caught.value).endswith(
        "has 2; choose sample_1v1 or episode_1v1; policy.other.serial_commander.type: one_vs_one"
    )


def test_episode_collector_of_games_is_refused_in_parallel_on_policy_training() -> None:
    cfg = _game("policy.type=ppo", "policy.collect.n_episode=8")
    cfg["policy"]["learn"] = {}
    cfg["policy"]["other"] = {"commander": cfg["policy"]["other"]["commander"]}
    del cfg["policy"]["nstep"]
    compile_config(cfg, mode="parallel")

    cfg["policy"]["collect"]["collector"] = {"type": "episode_1v1", "get_train_sample": True}
    with pytest.raises(ConfigError, match="'episode_1v1' cannot do; choose sample_1v1,") as caught:
        compile_config(cfg, mode="parallel")
    assert caught.value.path == "policy.collect.collector.type"


@pytest.mark.parametrize(
    ("mode", "path"),
    [("serial", "policy.other.serial_commander"), ("parallel", "policy.other.commander")],
)
def test_league_of_two_players_is_refused_for_an_env_of_three(mode: Any, path: str) -> None:
    sums = ("env.env_id=tests.unit.envs.games:Sums", "env.kwargs={lengths: [3, 3, 3]}")

    with pytest.raises(
        ConfigError, match=r"plays two players, .* has 3; choose an env of two"
    ) as caught:
        compile_config(_game(*sums, "env.wrappers=[]"), mode=mode)

    assert caught.value.path == f"{path}.type"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("env.wrappers=[flatten_obs]", "no axis of 2 players"),
        ("env.eval_opponents=[nobody]", "'nobody' is no opponent"),
        ("env.eval_opponents=[]", "env.eval_opponents"),
        ("policy.other.league.active_player_num=0", "expected a whole number >= 1"),
    ],
)
def test_game_that_cannot_be_played_is_refused(change: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        compile_config(_game(change))


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_initial_checkpoint_of_a_league_must_exist(mode: Any, tmp_path: Path) -> None:
    game = _game(f"policy.other.league.load_path={tmp_path}")
    with pytest.raises(CheckpointMissingError, match=str(tmp_path)):
        compile_config(game, mode=mode)
    assert compile_config(game, mode="eval").policy.other.league.load_path == str(tmp_path)


@pytest.mark.parametrize(
    ("mode", "change", "match"),
    [
        ("serial", "system.learner_num=2", "trained by one process"),
        ("parallel", "system.replay.type=server", "a replay server holds the samples of one"),
        (
            "serial",
            "policy.other.replay_buffer.storage={type: memmap, path: rows}",
            "cannot share the folder",
        ),
    ],
)
def test_several_active_players_refuse_parts_that_cannot_be_shared(
    mode: Any, change: str, match: str
) -> None:
    two = "policy.other.league.active_player_num=2"
    with pytest.raises(ConfigError, match=match) as caught:
        compile_config(_game(two, change), mode=mode)

    assert caught.value.path == "policy.other.league.active_player_num"
    assert compile_config(_game(two), mode=mode).policy.other.league.active_player_num == 2


def test_shapes_of_a_game_are_those_of_one_player() -> None:
    model = compile_config(_game()).policy.model

    assert model.obs_shape == {"observation": 18, "action_mask": 9}
    assert model.action_shape == 9


def test_shape_may_be_a_list_of_one() -> None:
    assert compile_config(changed("policy.model.obs_shape=[4]")).policy.model.obs_shape == [4]


@pytest.mark.parametrize(
    ("sets", "expected", "log"),
    [
        (["env.stop_value=123", "env.n_evaluator_episode=7"], (123, 7), []),
        ([f"{EVALUATOR}.stop_value=123", f"{EVALUATOR}.n_episode=7"], (123, 7), []),
        (
            ["env.n_evaluator_episode=6", f"{EVALUATOR}.n_episode=7"],
            (math.inf, 6),
            [f"{EVALUATOR}.n_episode 7 gives way to env.n_evaluator_episode 6"],
        ),
    ],
)
def test_goal_and_episodes_of_env_and_evaluator_agree_and_those_of_env_count(
    sets: list[str], expected: tuple[float, int], log: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    cfg = compile_config(changed(*sets))

    assert (cfg.env.stop_value, cfg.env.n_evaluator_episode) == expected
    assert (cfg.policy.eval.evaluator.stop_value, cfg.policy.eval.evaluator.n_episode) == expected
    assert caplog.messages == log


def test_episodes_set_for_the_evaluator_are_checked() -> None:
    with pytest.raises(ConfigError, match="n_evaluator_episode is 4, less than evaluator_env_num"):
        compile_config(changed(f"{EVALUATOR}.n_episode=4"))


def test_saved_compiled_config_compiles_to_the_same_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    compile_config(MINIMAL)
    assert list(tmp_path.iterdir()) == []
    first = compile_config(MINIMAL, save_cfg=True)
    second = compile_config(MINIMAL, save_cfg=True, save_path="mine.py")
    third = compile_config(MINIMAL, save_cfg=True, renew_dir=False)

    assert first.exp_name == third.exp_name == "run"
    assert second.exp_name.startswith("run-")
    for cfg, name in ((first, "total_config.yaml"), (second, "mine.yaml")):
        saved = load_config(tmp_path / cfg.exp_name / name)
        assert to_plain(compile_config(saved)) == to_plain(cfg)


class Converter:
    """A plugin that converts configs with ``main`` and ``create``, as DI-engine's."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    @hookimpl
    def dingsdk_convert_config(self, config: Any) -> Any:
        if "main" not in config:
            return None
        self.given.append(config)
        return {**config["main"], "policy": config["create"]["policy"]}


@pytest.fixture
def converter() -> Iterator[Converter]:
    plugin = Converter()
    parts = [advert for advert in discover() if advert.kind != "plugins"]
    with use_manager(PluginManager(discover=lambda: parts)) as manager:
        manager.register_plugin(plugin, "converter")
        yield plugin


def test_parameters_have_the_order_of_the_reference(converter: Converter) -> None:
    main = {"env": {"env_id": "CartPole-v1"}}
    create = {"policy": {"type": "dqn"}}

    cfg = compile_config(main, seed=3, auto=True, create_cfg=create, save_cfg=False)
    same = compile_config(
        main, None, None, None, None, None, None, None, None, None, 3, True, create, False
    )
    compile_config(main, create_cfg=create, system_cfg={"coordinator": {}}, mode="parallel")

    assert (cfg.seed, cfg.env.env_id, cfg.policy.type) == (3, "CartPole-v1", "dqn")
    assert same == cfg
    pair = {"main": main, "create": create}
    systems: list[dict[str, Any]] = [{}, {}, {"coordinator": {}}]
    assert converter.given == [{**pair, "system": each} for each in systems]


def test_converted_config_is_checked_and_overridden_as_any_other(converter: Converter) -> None:
    shape = {"main": {"env": {"env_id": "CartPole-v1"}}, "create": {"policy": {"type": "dqn"}}}
    before = deep_merge_dicts({}, shape)

    assert compile_run(shape, sets=["policy.nstep=3"]).policy.nstep == 3
    assert shape == before
    shape["create"]["policy"]["nsteps"] = 3
    with pytest.raises(UnknownKeyError, match=r"policy\.nsteps"):
        compile_run(shape)


def converter_of(module: str) -> Advert:
    return Advert("plugins", "di_engine", module, "dingsdk-rl-di-engine", "0.1")


@pytest.mark.parametrize(
    ("adverts", "switches", "why"),
    [
        ([], {}, "it is not installed; to get it: pip install .*dingsdk-di-engine"),
        ([converter_of("absent_module")], {}, "it is not loaded: ModuleNotFoundError"),
        (
            [converter_of("any")],
            {"disabled": ("dingsdk-rl-di-engine",)},
            "it is not loaded: .*DISABL",
        ),
    ],
)
@pytest.mark.parametrize("shape", [{"main_config": {}, "create_config": {}}, {"main": {}}])
def test_config_of_di_engine_without_its_plugin_is_one_line_that_names_the_plugin(
    adverts: list[Advert], switches: Any, why: str, shape: dict[str, Any]
) -> None:
    manager = PluginManager(Switches(**switches), discover=lambda: adverts)

    with use_manager(manager), pytest.raises(PluginNotInstalledError, match=why) as caught:
        compile_run(shape)

    assert caught.value.install == "dingsdk-rl-di-engine"
    assert len(str(caught.value).splitlines()) == 1


def test_cfg_type_keys_are_removed() -> None:
    named = deep_merge_dicts(
        MINIMAL, {"cfg_type": "RunDict", "policy": {"learn": {"cfg_type": "LearnDict"}}}
    )
    assert compile_config(named) == compile_config(MINIMAL)


@pytest.mark.parametrize(
    ("given", "path", "reason"),
    [
        ({"env": dict}, "env", "env.env_id names the env"),
        ({"reward_model": dict}, "reward_model", "dingsdk has none"),
        ({"world_model": dict}, "world_model", "dingsdk has none"),
        ({"auto": True}, "create_cfg", "give it"),
    ],
)
def test_parameter_of_the_reference_without_a_counterpart_is_refused_by_name(
    given: dict[str, Any], path: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        compile_config(MINIMAL, **given)

    assert caught.value.path == path


def test_each_of_several_buffers_gets_the_defaults_of_its_type() -> None:
    several = {
        "multi_buffer": True,
        "agent": {"type": "naive", "replay_buffer_size": 500},
        "expert": {},
    }
    user = deep_merge_dicts(MINIMAL, {"policy": {"other": {"replay_buffer": several}}})

    cfg = compile_config(user)
    buffers = cfg.policy.other.replay_buffer

    assert buffers.multi_buffer is True
    assert (buffers.agent.replay_buffer_size, buffers.agent.deepcopy) == (500, False)
    assert (buffers.expert.type, buffers.expert.alpha) == ("advanced", 0.6)
    assert to_plain(compile_config(cfg)) == to_plain(cfg)
    with pytest.raises(ConfigError, match="one replay buffer"):
        compile_run(user)


def test_unknown_key_in_one_of_several_buffers_is_named() -> None:
    several = {"multi_buffer": True, "agent": {"type": "naive", "depcopy": True}}
    user = deep_merge_dicts(MINIMAL, {"policy": {"other": {"replay_buffer": several}}})

    with pytest.raises(UnknownKeyError) as caught:
        compile_config(user)

    assert caught.value.path == "policy.other.replay_buffer.agent.depcopy"
    assert caught.value.nearest == "deepcopy"


def test_inputs_are_not_changed() -> None:
    user = changed("policy.learn.learner.hook.log_show_after_iter=5")
    before = deep_merge_dicts(user, {})

    compile_config(user, seed=3)

    assert user == before


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_all_unknown_keys_are_in_one_error_whatever_else_is_wrong(mode: Any) -> None:
    mistakes = {
        "env.env_idd=x": "did you mean 'env_id'?",
        "policy.learn.batchsize=3": "did you mean 'batch_size'?",
        "policy.learn.learner.hook.save_ckpt_after_itr=5": "Did you mean 'save_ckpt_after_iter'?",
        "policy.learn.learner.hook.a.typ=log_show": "did you mean 'type'?",
        "policy.learn.learner.hook.b.typ=log_show": "did you mean 'type'?",
        "policy.other.replay_buffer.limiter.min_siz=1": "did you mean 'min_size'?",
        "system.torch_thread=3": "did you mean 'torch_threads'?",
    }
    user = changed(*mistakes, "policy.learn.batch_size=often")
    del user["env"]["env_id"]

    with pytest.raises(UnknownKeyError) as caught:
        compile_config(user, mode=mode)

    asked = {mistake.partition("=")[0]: advice for mistake, advice in mistakes.items()}
    assert dict(caught.value.unknown) == asked
    for path, advice in asked.items():
        assert f"{path} ({advice})" in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "assignment", "kind"),
    [
        ("serial", "policy.type=dqm", "policies"),
        ("serial", "policy.other.replay_buffer.type=naiv", "buffers"),
        ("parallel", "policy.learn.learner.type=bass", "learners"),
        ("serial", "policy.other.commander.type=sole", "commanders"),
        ("serial", "env_manager.type=vectors", "env_managers"),
        ("parallel", "system.transport.type=in_memori", "transports"),
        ("eval", "policy.type=dqm", "policies"),
    ],
)
def test_error_for_an_unknown_type_names_kind_and_known_types(
    mode: Any, assignment: str, kind: str
) -> None:
    with pytest.raises(UnknownPluginError) as caught:
        compile_config(changed(assignment), mode=mode)

    assert caught.value.kind == kind
    assert caught.value.nearest in caught.value.known


@pytest.mark.parametrize(
    ("mode", "path"), [("serial", "system.transport.type"), ("eval", "policy.learn.learner.type")]
)
def test_part_that_the_mode_does_not_need_may_be_unknown(mode: Any, path: str) -> None:
    assert find(compile_config(changed(f"{path}=absent"), mode=mode), path) == "absent"


def test_unknown_env_id_names_the_nearest_one() -> None:
    with pytest.raises(UnknownEnvError) as caught:
        compile_config(changed("env.env_id=CartPoll-v1"))

    assert caught.value.nearest == "CartPole-v1"


def test_error_for_a_missing_section_shows_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"policy: \{type: dqn\}"):
        compile_config({"env": {"env_id": "CartPole-v1"}})
    with pytest.raises(ConfigError, match="env_id: CartPole-v1"):
        compile_config({"policy": {"type": "dqn"}})


@pytest.mark.parametrize(
    ("sets", "path"),
    [
        (["policy.collect.n_sample=null"], "policy.collect.n_sample"),
        (
            ["policy.collect.collector={type: episode, get_train_sample: true}"],
            "policy.collect.n_episode",
        ),
    ],
)
def test_missing_collect_size_is_refused_in_parallel_mode(sets: list[str], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compile_config(changed(*sets), mode="parallel")

    assert caught.value.path == path
    compile_config(changed(*sets, "policy.collect.n_episode=8"), mode="parallel")


BUFFER = "policy.other.replay_buffer"


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize(
    ("sets", "path"),
    [
        ([f"{BUFFER}={{type: elastic, set_buffer_size: 63}}"], "set_buffer_size"),
        (
            [f"{BUFFER}={{type: elastic, set_buffer_size: {{start: 9, end: 63, steps: 100}}}}"],
            "set_buffer_size",
        ),
        (["system.max_env_steps=5000", f"{BUFFER}.limiter.min_size=5001"], "limiter.min_size"),
        (
            [f"{BUFFER}.limiter={{type: push_sample_rate, sample_min_limit_ratio: 200}}"],
            "limiter.sample_min_limit_ratio",
        ),
        (
            [f"{BUFFER}={{type: advanced, thruput_controller: {{sample_min_limit_ratio: 200}}}}"],
            "thruput_controller.sample_min_limit_ratio",
        ),
    ],
)
def test_buffer_that_can_never_give_a_batch_is_refused(
    mode: Any, sets: list[str], path: str
) -> None:
    sets = ["policy.learn.batch_size=64", *sets]
    with pytest.raises(ConfigError, match="could ever be sampled") as caught:
        compile_config(changed(*sets), mode=mode)
    assert caught.value.path == f"{BUFFER}.{path}"


def test_buffer_that_is_no_table_is_refused_in_parallel_mode() -> None:
    methods = dict.fromkeys(IBuffer.__abstractmethods__, lambda self, *args: None)
    bare: Any = type("Bare", (IBuffer,), {**methods, "Config": BufferSection})

    with use_manager(PluginManager()) as manager:
        manager.registry("buffers").register("bare", bare)
        cfg = changed(f"{BUFFER}.type=bare")
        compile_config(cfg)
        with pytest.raises(ConfigError, match="is no Table") as caught:
            compile_config_parallel(cfg)
    assert caught.value.path == f"{BUFFER}.type"


def test_limiter_may_wait_for_a_full_buffer() -> None:
    compile_config(changed("policy.other.replay_buffer.limiter.min_size=10000"))


@pytest.mark.parametrize("kind", ["elastic", "sequence"])
def test_priorities_are_refused_for_a_buffer_without_priorities(kind: str) -> None:
    sets = (f"policy.other.replay_buffer.type={kind}", "policy.priority=true")

    with pytest.raises(ConfigError, match=f"a buffer of type '{kind}' draws") as caught:
        compile_config(changed(*sets))

    assert caught.value.path == "policy.priority"


@pytest.mark.parametrize(
    ("buffer", "sampler", "family"),
    [
        ("naive", "proportional", "RowSampler"),
        ("elastic", "sequence", "RowSampler"),
        ("episode", "rank", "RowSampler"),
        ("advanced", "uniform", "PrioritySampler"),
        ("sequence", "proportional", "SequenceSampler"),
    ],
)
def test_sampler_that_the_buffer_cannot_draw_with_is_refused(
    buffer: str, sampler: str, family: str
) -> None:
    section = {"type": buffer, "sampler": {"type": sampler}}
    path = "policy.other.replay_buffer"
    for given, where in (
        (section, path),
        ({"multi_buffer": True, "agent": section}, f"{path}.agent"),
    ):
        user = deep_merge_dicts(MINIMAL, {"policy": {"other": {"replay_buffer": given}}})

        with pytest.raises(ConfigError, match=f"'{sampler}' is no {family}") as caught:
            compile_config(user)

        assert caught.value.path == f"{where}.sampler.type"


def test_remover_that_breaks_the_order_of_a_sequence_buffer_is_refused() -> None:
    class LooseFifo(FifoRemover):
        is_fifo = False

    buffer = {"type": "sequence", "remover": {"type": "loose"}}
    user = deep_merge_dicts(MINIMAL, {"policy": {"other": {"replay_buffer": buffer}}})
    with use_manager(PluginManager()) as manager:
        manager.registry("removers").register("loose", LooseFifo)

        with pytest.raises(ConfigError, match="type sequence needs rows to leave") as caught:
            compile_config(user)
        compile_config(
            deep_merge_dicts(user, {"policy": {"other": {"replay_buffer": {"type": "naive"}}}})
        )

    assert caught.value.path == "policy.other.replay_buffer.remover.type"


@pytest.mark.parametrize(
    ("policy", "buffer", "fits"),
    [
        ("dqn", "sequence", False),
        ("sac", "sequence", False),
        ("r2d2", "sequence", True),
        ("r2d2", "episode", False),
        ("dqn", "advanced", True),
        ("dqn", "episode", False),
    ],
)
def test_buffer_whose_samples_the_policy_cannot_train_on_is_refused(
    policy: str, buffer: str, fits: bool
) -> None:
    env_id = "Pendulum-v1" if policy == "sac" else "CartPole-v1"
    path = "policy.other.replay_buffer"
    user = {
        "env": {"env_id": env_id},
        "policy": {"type": policy, "other": {"replay_buffer": {"type": buffer}}},
    }
    if fits:
        compile_config_parallel(user)
        return

    with pytest.raises(
        ConfigError, match=f"'{buffer}' draws {buffer}s, on which a policy of type '{policy}'"
    ) as caught:
        compile_config_parallel(user)

    assert caught.value.path == f"{path}.type"


def test_limiter_that_would_refuse_the_pushes_of_a_serial_run_is_refused() -> None:
    # 4 updates with 32 rows for each collect of 16: 8 rows are sampled for each row pushed.
    limiter = "policy.other.replay_buffer.limiter"
    sets = (
        *("policy.learn.update_per_collect=4", "policy.learn.batch_size=32"),
        *("policy.collect.n_sample=16", f"{limiter}.type=samples_per_insert"),
    )
    compile_config(changed(*sets, f"{limiter}.samples_per_insert=8"))
    compile_config_parallel(changed(*sets, f"{limiter}.samples_per_insert=9"))

    with pytest.raises(ConfigError, match="is 9, but a serial run samples only 8 rows") as caught:
        compile_config(changed(*sets, f"{limiter}.samples_per_insert=9"))

    assert caught.value.path == f"{limiter}.samples_per_insert"

    sets = (*sets, f"{limiter}.samples_per_insert=8")
    compile_config(changed(*sets, f"{limiter}.error_buffer=384"))
    with pytest.raises(ConfigError, match="batches of 32; raise it to 384") as caught:
        compile_config(changed(*sets, f"{limiter}.error_buffer=50"))

    assert caught.value.path == f"{limiter}.error_buffer"


def test_limiter_is_tried_with_a_limited_number_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def can_sample(self: Any, n: int) -> bool:
        tried.append(n)
        assert len(tried) <= 100_000
        return self.size >= n

    monkeypatch.setattr(SamplesPerInsertLimiter, "can_sample", can_sample)
    limiter = "policy.other.replay_buffer.limiter={type: samples_per_insert}"
    compile_config(changed(limiter, "policy.learn.update_per_collect=1000"))
    assert tried
    compile_config(changed(limiter, "policy.learn.update_per_collect=1000000000"))


def test_sequences_of_objects_are_refused_for_a_policy_that_trains_on_columns() -> None:
    path = "policy.other.replay_buffer.storage.type"
    with pytest.raises(ConfigError, match=r"lists of rows.*'r2d2' trains on columns") as caught:
        compile_config(changed("policy.type=r2d2", f"{path}=object"))
    assert caught.value.path == path


def test_metric_evaluator_of_several_ranks_is_refused_in_a_run() -> None:
    path = "policy.eval.evaluator.multi_gpu"
    with pytest.raises(ConfigError, match="one process makes the evaluations") as caught:
        compile_run("metric-supervised", sets=[f"{path}=true"])
    assert caught.value.path == path


def test_env_manager_that_cannot_run_the_env_is_refused() -> None:
    sets = ("env_manager.type=vector", "env_manager.vectorization_mode=native")
    compile_config(changed(*sets))

    with pytest.raises(ConfigError, match="Acrobot-v1 has no vector env of its own") as caught:
        compile_config(changed(*sets, "env.env_id=Acrobot-v1"))

    assert caught.value.path == "env_manager.vectorization_mode"


@pytest.mark.parametrize(
    ("wrapper", "instead"),
    [
        ("NormalizeObservation", "policy.model.normalize_obs"),
        ("NormalizeReward", "clip_reward"),
        ("ClipReward", None),
    ],
)
def test_wrapper_that_measures_while_it_runs_is_reported(
    wrapper: str, instead: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    section = {"type": wrapper, **({} if instead else {"max_reward": 1})}
    compile_config(changed(f"env.wrappers=[{json.dumps(section)}, TimeAwareObservation]"))
    found = [each.getMessage() for each in caplog.records if wrapper in each.getMessage()]
    if instead is None:
        assert found == []
    else:
        assert "evaluations begin without" in found[0]
        assert instead in found[0]
        assert len(found) == 1


def test_priorities_are_allowed_for_a_buffer_with_its_own_update() -> None:
    class Own(NaiveReplayBuffer):  # type: ignore[misc]
        def update(self, info: Any) -> None:
            """Accept priorities."""

    compile_config(changed("policy.priority=true"), buffer=Own)


def test_env_whose_close_raises_is_accepted() -> None:
    cfg = compile_config(changed(f"env.env_id={__name__}:RaisesAtClose"))

    assert cfg.policy.model.obs_shape == 4


def test_env_without_a_space_is_named() -> None:
    with pytest.raises(EnvError, match="Spaceless has the action_space None, and a space"):
        compile_config(changed(f"env.env_id={__name__}:Spaceless"))


def test_train_sample_may_be_as_long_as_an_episode() -> None:
    collector = "policy.collect.collector={type: episode, get_train_sample: true}"
    sets = ("policy.collect.unroll_len=500", "policy.collect.n_episode=8")
    cfg = compile_config(changed(collector, *sets))

    assert (cfg.policy.collect.unroll_len, cfg.policy.collect.n_episode) == (500, 8)


@pytest.mark.parametrize(
    ("sets", "match"),
    [
        (["system.transport.type=in_memory"], "runs all workers in one process; choose one whose"),
        (["policy.type=foreign"], "type 'foreign' is no BasePolicy"),
        (["policy.collect.parallel_collector.type=foreign"], "and this is 'foreign' with the"),
        (
            [
                "policy.collect.collector={type: episode, get_train_sample: true}",
                "policy.collect.n_episode=8",
            ],
            "with the collector 'episode'",
        ),
    ],
)
def test_inference_server_refuses_unsupported_parts(sets: list[str], match: str) -> None:
    class Foreign:
        """A class that is no policy of dingsdk but has the config of one."""

        default_config = DQNPolicy.default_config
        learn_mode = collect_mode = eval_mode = None

    def make_collector(cfg: Any) -> None:
        """A collector factory that does not support an inference server."""

    base = ("system.roles.inference.num=1", "system.transport.type=flask_fs")
    with use_manager(PluginManager()) as manager:
        compile_config(changed(*base), mode="parallel")
        manager.registry("policies").register("foreign", Foreign)
        manager.registry("parallel_collectors").register("foreign", make_collector)
        with pytest.raises(ConfigError, match=match) as caught:
            compile_config(changed(*base, *sets), mode="parallel")
    assert caught.value.path == "system.roles.inference"


def test_memory_limit_is_refused_if_workers_are_threads() -> None:
    user = changed("system.worker_memory_limit=1e9")

    assert compile_config(user).system.worker_memory_limit == 10**9
    with pytest.raises(ConfigError) as caught:
        compile_config(user, mode="parallel")
    assert caught.value.path == "system.worker_memory_limit"
    apply_set(user, "system.transport.type=flask_fs")
    compile_config(user, mode="parallel")


def test_class_passed_instead_of_a_type_uses_its_own_defaults() -> None:
    class Larger(NaiveReplayBuffer):  # type: ignore[misc]
        config: ClassVar[dict[str, Any]] = {"replay_buffer_size": 123_456}

    cfg = compile_config(MINIMAL, buffer=Larger)

    assert cfg.policy.other.replay_buffer.replay_buffer_size == 123_456


@pytest.mark.parametrize(
    ("make", "name"), [(lambda cls: cls, "Mine"), (lambda cls: functools.partial(cls), "own")]
)
def test_type_of_a_passed_class_is_its_name_unless_the_config_sets_one(
    make: Any, name: str
) -> None:
    class Mine(NaiveReplayBuffer):
        """A user-defined buffer."""

    cfg = compile_config(MINIMAL, buffer=make(Mine))
    assert cfg.policy.other.replay_buffer.type == name
    named = changed("policy.other.replay_buffer.type=mine")
    cfg = compile_config(named, buffer=make(Mine))
    assert cfg.policy.other.replay_buffer.type == "mine"


def test_parallel_config_has_a_main_and_a_system_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = compile_config_parallel(MINIMAL, seed=5)

    assert list(tmp_path.iterdir()) == []
    compile_config_parallel(MINIMAL, seed=5, save_cfg=True, save_path="all.py")
    assert load_config(tmp_path / "run" / "all.yaml")["seed"] == 5

    assert found.seed == found.main.seed == 5
    assert found.system.transport.type == "in_memory"
    assert "system" not in found.main


def test_unknown_platform_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="known: k8s, local, slurm"):
        compile_config_parallel(MINIMAL, platform="cloud")  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("sets", "path", "reason"),
    [
        (["policy.type=ppo"], "system.learner_num", "type 'ppo' is trained by one learner"),
        (["policy.learn.batch_size=63"], "policy.learn.batch_size", "no multiple"),
    ],
)
def test_several_learners_are_refused_for_unsuitable_policy_or_batch_size(
    sets: list[str], path: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        compile_config(changed("system.learner_num=2", *sets))

    assert caught.value.path == path


@pytest.mark.parametrize("has_said_so", [True, False])
def test_policy_that_does_not_declare_data_parallel_is_refused_with_two_learners(
    has_said_so: bool,
) -> None:
    class Alone:
        """A class that is no policy of dingsdk but has the config of one."""

        default_config = DQNPolicy.default_config
        learn_mode = collect_mode = eval_mode = None

    if has_said_so:
        Alone.is_data_parallel = False  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="trained by one learner") as caught:
        compile_config(changed("system.learner_num=2"), policy=Alone)
    assert caught.value.path == "system.learner_num"


@pytest.mark.parametrize(
    ("kind", "part", "match"),
    [
        ("comm_learners", "learner", "a comm learner of type 'lonely' does not sample"),
        ("comm_collectors", "collector", "a comm collector of type 'lonely' does not insert"),
    ],
)
def test_comm_part_without_support_for_a_replay_server_is_refused_with_one(
    kind: str, part: str, match: str
) -> None:
    class Lonely(Configurable):
        class Config(PartSection, frozen=True, kw_only=True):
            type: str = "lonely"

    with use_manager(PluginManager()) as manager:
        manager.registry(kind).register("lonely", Lonely)
        cfg = changed("system.replay.type=server", f"system.{part}.type=lonely")
        with pytest.raises(ConfigError, match=match) as caught:
            compile_config(cfg, mode="parallel")
    assert caught.value.path == "system.replay.type"


def test_comm_learner_for_one_learner_is_refused_with_several_learners() -> None:
    class Lonely(Configurable):
        class Config(PartSection, frozen=True, kw_only=True):
            type: str = "lonely"

    cfg = changed("system.learner_num=2")
    with use_manager(PluginManager()) as manager:
        manager.registry("comm_learners").register("lonely", Lonely)
        cfg["system"]["learner"] = {"type": "lonely"}

        assert compile_config(cfg).system.learner_num == 2
        with pytest.raises(ConfigError, match="type 'lonely' is one learner") as caught:
            compile_config(cfg, mode="parallel")

    assert caught.value.path == "system.learner_num"


@pytest.mark.parametrize("count", [1, 2])
def test_learners_that_train_together_need_a_gpu_each(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    cfg = changed("policy.cuda=true", "system.learner_num=2")

    if count == 2:
        assert compile_config(cfg).system.learner_num == 2
        return
    with pytest.raises(ConfigError, match=r"each of them needs a GPU.* torch finds 1") as caught:
        compile_config(cfg)
    assert caught.value.path == "system.learner_num"


@pytest.mark.parametrize(
    ("sets", "advice"),
    [
        ([], "env_manager.type to in_process"),
        pytest.param(
            ["env_manager.type=in_process"],
            "env.kwargs.render_mode is None",
            marks=needs("video"),
        ),
        pytest.param(
            ["env_manager.type=in_process", "env.kwargs.render_mode=human"],
            "is 'human'",
            marks=needs("video"),
        ),
    ],
)
def test_videos_are_refused_if_the_env_cannot_be_rendered(sets: list[str], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice) as caught:
        compile_config(changed("policy.eval.evaluator.render.render_freq=1", *sets))

    assert caught.value.path == "policy.eval.evaluator.render.render_freq"


@pytest.mark.parametrize(
    ("hook", "path"),
    [
        ("{log_show_after_iter: soon}", "log_show_after_iter"),
        ("{mine: {type: nothing, position: after_iter}}", "mine"),
        ("{mine: {type: save_ckpt, position: midway}}", "mine"),
        ("{mine: {type: save_ckpt, position: after_iter, ext_args: {freq: 0}}}", "mine"),
        ("{save_ckpt_after_itr: 3}", "save_ckpt_after_itr"),
    ],
)
def test_hook_that_cannot_be_built_is_refused(hook: str, path: str) -> None:
    with pytest.raises(DingError) as caught:
        compile_config(changed(f"policy.learn.learner.hook={hook}"))

    said = "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert f"policy.learn.learner.hook.{path}" in said
    assert caught.value.is_user_mistake


def test_eval_interval_of_the_commander_is_an_alias_of_the_evaluators() -> None:
    user = load_config("cartpole-dqn")
    apply_set(user, "policy.other.commander.eval_interval=7")
    cfg = compile_config(user)
    assert cfg.policy.eval.evaluator.eval_interval_s == 7
    assert cfg.policy.other.commander.eval_interval is None
    assert compile_config(cfg) == cfg
    apply_set(user, "policy.eval.evaluator.eval_interval_s=8")
    with pytest.raises(ConfigError, match="state one of them"):
        compile_config(user)


def test_chosen_buffer_keeps_its_own_default_sampler() -> None:
    cfg = load_config("cartpole-r2d2")
    cfg["policy"]["other"]["replay_buffer"] = {"type": "advanced"}

    buffer = compile_config(cfg).policy.other.replay_buffer

    assert buffer.sampler.type == "proportional"


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("type", "advanced"),
        ("storage.type", "object"),
        ("limiter.type", "push_sample_rate"),
    ],
)
def test_kind_of_buffer_that_an_on_policy_run_does_not_use_is_refused(
    mode: Any, key: str, kind: str
) -> None:
    path = f"policy.other.replay_buffer.{key}"
    with pytest.raises(ConfigError, match="'ppo' trains on its newest samples without") as caught:
        compile_run("cartpole-ppo", mode, None, [f"{path}={kind}"], 0)
    assert caught.value.path == path


PLAIN: dict[str, Any] = {
    "model": {"obs_shape": 4},
    "learn": {"batch_size": 8, "learner": {"train_iterations": 7}},
    "collect": {"n_sample": 16, "collector": {}},
    "eval": {"evaluator": {"eval_freq": 50}},
    "other": {"replay_buffer": {"replay_buffer_size": 70}, "commander": {}},
}
"""The config of a policy as a plain dict. It names only what differs from the defaults."""


@pytest.mark.parametrize("own", ["class", "policy", "configurable"])
@pytest.mark.parametrize("empty", [{}, None])
def test_empty_section_of_a_plain_config_has_the_defaults(own: str, empty: Any) -> None:
    modes: dict[str, Any] = dict.fromkeys(("learn_mode", "collect_mode", "eval_mode"))
    bases: dict[str, tuple[type, ...]] = {
        "class": (),
        "policy": (DQNPolicy,),
        "configurable": (Configurable,),
    }
    inner = [(key, name) for key in PLAIN for name, value in PLAIN[key].items() if value == {}]
    paths = [*PLAIN, *map(".".join, inner), "learn.learner", "other.replay_buffer"]
    for path in ["", *paths]:
        if path == "model" and empty is None:
            continue
        config = copy.deepcopy(PLAIN)
        if path:
            put(config, path, empty)
        policy = type("Plain", bases[own], {"config": config, **modes})

        user = {"env": {"env_id": "CartPole-v1"}, "policy": {"collect": {"n_sample": 16}}}
        cfg = compile_config(user, policy=policy)

        buffer, learner = cfg.policy.other.replay_buffer, cfg.policy.learn.learner
        assert (buffer.type, learner.type) == ("naive", "base"), path
        assert cfg.policy.collect.collector.type == "sample", path
        assert buffer.replay_buffer_size == 70 or path.startswith("other"), path
        assert learner.train_iterations == 7 or path.startswith("learn"), path


@pytest.mark.parametrize("base", [object, DQNPolicy, Configurable])
@pytest.mark.parametrize("value", [None, {}, 0])
def test_wrong_default_of_a_plain_config_is_refused(base: type, value: Any) -> None:
    config = {"learn": {"batch_size": value}}
    policy = type("Plain", (base,), {"config": config, "learn_mode": 1, "collect_mode": 1})
    policy.eval_mode = 1  # type: ignore[attr-defined]

    with pytest.raises(ConfigError, match=r"batch_size: expected a whole number.*its default"):
        compile_config(MINIMAL, policy=policy)
