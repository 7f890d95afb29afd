"""``compile_config`` turns a user config into a complete and checked config."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

from dingsdk.config import (
    Configurable,
    PartSection,
    apply_set,
    deep_merge_dicts,
    load_config,
    to_plain,
)
from dingsdk.config.plain import find, flatten, put
from dingsdk.errors import (
    CheckpointMissingError,
    ConfigError,
    DingError,
    PluginNotInstalledError,
    UnknownKeyError,
    UnknownPluginError,
)
from dingsdk.pipeline.compile import compile_config, compile_config_parallel
from dingsdk.pipeline.run_folder import LAST_KEY
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import PluginManager, Switches, hookimpl, use_manager
from dingsdk.plugins.discovery import Advert, discover
from dingsdk.policy import DQNPolicy
from dingsdk.worker import NaiveReplayBuffer
from dingsdk.worker.replay_buffer import IBuffer
from dingsdk.worker.replay_buffer.config import BufferSection
from dingsdk.worker.replay_buffer.remover import FifoRemover
from tests.extras import needs

EVALUATOR = "policy.eval.evaluator"
MINIMAL: dict[str, Any] = {"env": {"env_id": "CartPole-v1"}, "policy": {"type": "dqn"}}


class RaisesAtClose(CartPoleEnv):  # type: ignore[misc]
    """An environment whose ``close`` raises."""

    def close(self) -> None:
        raise RuntimeError("stuck")


class Counted(CartPoleEnv):  # type: ignore[misc]
    """An environment that counts how many of its objects are open."""

    made = 0
    open = 0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        Counted.made += 1
        Counted.open += 1

    def close(self) -> None:
        Counted.open -= 1


OUT_OF_RANGE = (
    "seed=abc",
    "exp_name=../elsewhere",
    "exp_name=.",
    "exp_name=..",
    'exp_name="run\\n"',
    "env.collector_env_num=1e12",
    "policy=dqn",
    "env.stop_value=.nan",
    "system.coordinator.lease_s=0",
    "policy.learn.learning_rate=.inf",
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
    "policy.eval.evaluator.type=battle_interaction",
    "policy.cuda=true",
)
"""Values with which a run could never train."""


class Unrolled(DQNPolicy):
    """A policy that trains on sequences."""

    trains_on = frozenset({"sequences"})


class Foreign:
    """A class that is no policy of dingsdk but has the config of one."""

    default_config = DQNPolicy.default_config
    learn_mode = collect_mode = eval_mode = None


class Lonely(Configurable):
    """A comm part without support for several learners, and for a replay server."""

    class Config(PartSection, frozen=True, kw_only=True):
        type: str = "lonely"

    def start(self, master_address: str) -> None: ...

    def close(self) -> None: ...


class LooseFifo(FifoRemover):
    is_fifo = False


@pytest.fixture(scope="module")
def parts() -> PluginManager:
    """A manager with parts of others."""
    manager = PluginManager()
    methods = dict.fromkeys(IBuffer.__abstractmethods__, lambda self, *args: None)
    bare: Any = type("Bare", (IBuffer,), {**methods, "Config": BufferSection})
    for kind, key, part in (
        ("policies", "unrolled", Unrolled),
        ("policies", "foreign", Foreign),
        ("parallel_collectors", "foreign", lambda cfg: None),
        ("comm_learners", "lonely", Lonely),
        ("comm_collectors", "lonely", Lonely),
        ("buffers", "bare", bare),
        ("removers", "loose", LooseFifo),
    ):
        manager.registry(kind).register(key, part)
    return manager


def config_of(example: str, *sets: str) -> dict[str, Any]:
    """Return an example, or the minimal config, with overrides."""
    if example == GAME:
        pytest.importorskip("pettingzoo", reason="the extra multiagent is not installed")
    cfg = load_config(example) if example else deep_merge_dicts(MINIMAL, {})
    for each in sets:
        apply_set(cfg, each)
    return cfg


def refused(
    text: str,
    *sets: str,
    of: str = "",
    path: str | None = "",
    mode: str = "serial",
    fix: Sequence[str] = (),
    works_in: str = "",
    marks: Any = (),
) -> Iterator[Any]:
    """Yield a case of a config that cannot work; for two modes, two cases.

    Args:
        text: Regular expression for the error.
        of: The example to which the overrides ``sets`` apply.
        path: The path in the error; by default, that of the last override.
        mode: One mode, or ``both``.
        fix: Further overrides, with which the config works.
        works_in: Another mode, in which the config works.
    """
    path = sets[-1].partition("=")[0] if path == "" else path
    for each in ("serial", "parallel") if mode == "both" else (mode,):
        name = f"{each}: {of} {' '.join(sets)}"
        yield pytest.param(of, each, sets, text, path, fix, works_in, id=name, marks=marks)


GAME = "tictactoe-selfplay"
TWO_PLAYERS = "policy.other.league.active_player_num"
BUFFER = "policy.other.replay_buffer"
LIMITED = (
    "policy.learn.update_per_collect=4",
    "policy.learn.batch_size=32",
    "policy.collect.n_sample=16",
    f"{BUFFER}.limiter.type=samples_per_insert",
)
"""Serial mode samples 4 batches of 32 rows for each collect of 16: 8 rows for each row pushed."""
EPISODES = "policy.collect.collector={type: episode, get_train_sample: true}"
INFERENCE = ("system.roles.inference.num=1", "system.transport.type=flask_fs")
RENDER = "policy.eval.evaluator.render"
RENDERED = ("env_manager.type=in_process", "env.kwargs.render_mode=rgb_array")
SUMS = (
    "env.env_id=tests.unit.envs.games:Sums",
    "env.kwargs={lengths: [3, 3, 3]}",
    "env.wrappers=[]",
)
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
REFUSED = (
    *(refused(".", each, mode="parallel") for each in OUT_OF_RANGE),
    *(refused(".", each) for each in USELESS),
    refused("n_evaluator_episode is 4, less than", f"{EVALUATOR}.n_episode=4", path=None),
    refused(
        "observation_space of an evaluation",
        "env.wrappers=[{type: select_obs, indices: [0, 1], evaluate: false}]",
    ),
    refused(
        "Acrobot-v1 has no vector env of its own",
        *("env_manager.type=vector", "env_manager.vectorization_mode=native"),
        "env.env_id=Acrobot-v1",
        path="env_manager.vectorization_mode",
        fix=["env.env_id=CartPole-v1"],
    ),
    # the size of a collect
    refused(
        "a collector of type 'sample' counts",
        "policy.collect.n_sample=null",
        fix=["policy.collect.n_sample=64"],
    ),
    refused(
        "counts in one of",
        "policy.collect.n_sample=null",
        mode="parallel",
        fix=["policy.collect.n_episode=8"],
    ),
    refused(
        "a collector of type 'episode' counts",
        EPISODES,
        path="policy.collect.n_episode",
        mode="both",
        fix=["policy.collect.n_episode=8"],
    ),
    refused(
        "trains on train samples; set it to true",
        *("policy.collect.collector.type=episode", "policy.collect.n_episode=8"),
        path="policy.collect.collector.get_train_sample",
        mode="both",
        fix=["policy.collect.collector.get_train_sample=true"],
    ),
    # the replay buffer
    *(
        refused(
            rf"needs 64 rows, and {BUFFER}\.replay_buffer_size is 63",
            f"{BUFFER}.replay_buffer_size=63",
            *("policy.learn.batch_size=8", "policy.collect.n_sample=8", f"policy.{key}=64"),
            fix=[f"{BUFFER}.replay_buffer_size=64"],
        )
        for key in ("learn.batch_size", "collect.n_sample")
    ),
    *(
        refused(
            "which cannot be allocated",
            *(f"{BUFFER}.storage={storage}", f"{BUFFER}.replay_buffer_size={10**13}"),
            mode="both",
        )
        for storage in ("{type: auto}", "{type: memmap, path: rows}")
    ),
    refused(
        "batch_size times sequence_length needs 128 rows",
        *("policy.type=unrolled", f"{BUFFER}.type=sequence", f"{BUFFER}.sequence_length=8"),
        *("policy.learn.batch_size=16", f"{BUFFER}.replay_buffer_size=127"),
        path="policy.learn.batch_size",
        mode="both",
        fix=[f"{BUFFER}.replay_buffer_size=128"],
    ),
    *(
        refused(
            "could ever be sampled",
            *("policy.learn.batch_size=64", "system.max_env_steps=5000"),
            f"{BUFFER}={section}",
            path=key,
            mode="both",
        )
        for section, key in (
            ("{type: elastic, set_buffer_size: 63}", "policy.learn.batch_size"),
            (
                "{type: elastic, set_buffer_size: {start: 9, end: 63, env_steps: 100}}",
                "policy.learn.batch_size",
            ),
            ("{limiter: {min_size: 5001}}", f"{BUFFER}.limiter.min_size"),
            (
                "{limiter: {type: push_sample_rate, sample_min_limit_ratio: 200}}",
                f"{BUFFER}.limiter.sample_min_limit_ratio",
            ),
            (
                "{type: advanced, thruput_controller: {sample_min_limit_ratio: 200}}",
                f"{BUFFER}.thruput_controller.sample_min_limit_ratio",
            ),
        )
    ),
    *(
        refused(f"a buffer of type '{kind}' draws", f"{BUFFER}.type={kind}", "policy.priority=true")
        for kind in ("elastic", "sequence")
    ),
    *(
        refused(
            f"'{sampler}' is no {family}",
            f"{BUFFER}={{type: {buffer}, sampler: {{type: {sampler}}}}}",
            path=f"{BUFFER}.sampler.type",
        )
        for buffer, sampler, family in (
            ("naive", "proportional", "RowSampler"),
            ("elastic", "sequence", "RowSampler"),
            ("episode", "rank", "RowSampler"),
            ("advanced", "uniform", "PrioritySampler"),
            ("sequence", "proportional", "SequenceSampler"),
        )
    ),
    refused(
        "type sequence needs rows to leave",
        f"{BUFFER}={{type: sequence, remover: {{type: loose}}}}",
        path=f"{BUFFER}.remover.type",
        fix=[f"{BUFFER}.type=naive"],
    ),
    *(
        refused(
            f"'{buffer}' draws {buffer}s, on which .* '{policy}' does not .* buffers {buffers}$",
            *(f"env.env_id={env_id}", f"policy.type={policy}", f"{BUFFER}.type={buffer}"),
            mode="both",
        )
        for env_id, policy, buffer, buffers in (
            ("CartPole-v1", "dqn", "episode", "advanced, bare, deque, elastic, naive, queue"),
            ("Pendulum-v1", "sac", "sequence", "advanced, bare, .*, naive, queue"),
            ("CartPole-v1", "r2d2", "episode", "advanced, .*, queue, sequence"),
        )
    ),
    refused(
        "lists of rows.*'r2d2' trains on columns",
        *("policy.type=r2d2", f"{BUFFER}.storage.type=object"),
    ),
    refused("is no Table", f"{BUFFER}.type=bare", mode="parallel", works_in="serial"),
    *(
        refused(
            "'ppo' trains on its newest samples without",
            f"{BUFFER}.{key}={kind}",
            of="cartpole-ppo",
            mode="both",
        )
        for key, kind in (
            ("type", "advanced"),
            ("storage.type", "object"),
            ("limiter.type", "push_sample_rate"),
        )
    ),
    refused(
        "is 9, but a serial run samples only 8 rows",
        *LIMITED,
        f"{BUFFER}.limiter.samples_per_insert=9",
        fix=[f"{BUFFER}.limiter.samples_per_insert=8"],
        works_in="parallel",
    ),
    refused(
        "batches of 32; raise it to 160",
        *LIMITED,
        f"{BUFFER}.limiter.samples_per_insert=8",
        f"{BUFFER}.limiter.error_buffer=50",
        fix=[f"{BUFFER}.limiter.error_buffer=160"],
    ),
    # evaluations
    *(
        refused(match, f"{EVALUATOR}.data={data}", of="metric-supervised")
        for data, match in (
            ("null", "data is missing: an evaluator of type 'metric' measures on data"),
            ("digits", r"'digits' gives no data \(no module:function\)"),
        )
    ),
    refused(
        "one process makes the evaluations", f"{EVALUATOR}.multi_gpu=true", of="metric-supervised"
    ),
    refused(
        "evaluations in parallel mode do not take",
        *(*RENDERED, f"{RENDER}={{render_freq: 10}}"),
        path=f"{RENDER}.render_freq",
        mode="parallel",
        works_in="serial",
        marks=needs("video"),
    ),
    refused(
        "evaluations in parallel mode do not take",
        *(*RENDERED, f"{EVALUATOR}.figure_path=figures"),
        mode="parallel",
        works_in="serial",
    ),
    refused("env_manager.type to in_process", f"{RENDER}.render_freq=1"),
    *(
        refused(
            text,
            *(*sets, f"{RENDER}.render_freq=1"),
            marks=needs("video"),
        )
        for text, sets in (
            ("env.kwargs.render_mode is None", RENDERED[:1]),
            ("is 'human'", (*RENDERED, "env.kwargs.render_mode=human")),
        )
    ),
    # normalisation
    *(
        refused(text, *sets, path=path, mode="both")
        for text, path, *sets in (
            (
                "type 'foreign' is no BasePolicy, which normalises",
                "policy.normalize.reward",
                *("policy.type=foreign", "policy.normalize.reward=true"),
            ),
            (
                "reward_shaping changes rewards",
                "policy.normalize.reward",
                EPISODES.replace("}", ", reward_shaping: true}"),
                *("policy.collect.n_episode=8", "policy.normalize.reward=true"),
            ),
            (
                "has no vector to normalise",
                "policy.normalize.obs",
                *("env.env_id=FrozenLake-v1", "env.stop_value=1", "policy.normalize.obs=true"),
            ),
        )
    ),
    # workers
    refused(
        "runs workers as threads",
        "system.worker_memory_limit=1e9",
        mode="parallel",
        fix=["system.transport.type=flask_fs"],
        works_in="serial",
    ),
    *(
        refused(text, *INFERENCE, *sets, path="system.roles.inference", mode="parallel")
        for text, sets in (
            (
                "runs all workers in one process; choose one whose",
                ["system.transport.type=in_memory"],
            ),
            ("type 'foreign' is no BasePolicy, whose act", ["policy.type=foreign"]),
            (
                "and this is 'foreign' with the",
                ["policy.collect.parallel_collector.type=foreign"],
            ),
            ("with the collector 'episode'", [EPISODES, "policy.collect.n_episode=8"]),
        )
    ),
    *(
        refused(
            f"type '{policy}' is trained by one learner",
            *(f"policy.type={policy}", "system.learner_num=2"),
            marks=NO_GPU,
        )
        for policy in ("ppo", "foreign")
    ),
    refused(
        "no multiple",
        *("system.learner_num=2", "policy.learn.batch_size=63"),
        marks=NO_GPU,
    ),
    refused(
        "type 'lonely' is one learner",
        *("system.learner.type=lonely", "system.learner_num=2"),
        mode="parallel",
        works_in="serial",
    ),
    *(
        refused(
            text,
            *(f"system.{part}.type=lonely", "system.replay.type=server"),
            mode="parallel",
        )
        for part, text in (
            ("learner", "a comm learner of type 'lonely' does not sample"),
            ("collector", "a comm collector of type 'lonely' does not insert"),
        )
    ),
    # games
    *(
        refused("CartPole-v1 has 1; choose one for envs of", f"policy.{key}", mode=mode)
        for mode, key in (
            ("both", "collect.collector.type=sample_1v1"),
            ("serial", "other.serial_commander.type=one_vs_one"),
            ("parallel", "collect.parallel_collector.type=marine"),
            ("parallel", "other.commander.type=one_vs_one"),
        )
    ),
    *(
        refused(f"has 2; choose {advice}", f"{key}.type={kind}", of=GAME, mode=mode)
        for mode, key, kind, advice in (
            ("serial", "policy.collect.collector", "sample", "sample_1v1 or episode_1v1"),
            ("serial", "policy.other.serial_commander", "base", "one_vs_one"),
            ("parallel", "policy.collect.parallel_collector", "zergling", "marine"),
            ("parallel", "policy.other.commander", "solo", "one_vs_one"),
        )
    ),
    refused(
        "sample_1v1 or episode_1v1; policy.other.serial_commander.type: one_vs_one$",
        "policy={type: dqn}",
        of=GAME,
        path=None,
    ),
    *(
        refused(
            "plays two players, .* has 3; choose an env of two",
            *SUMS,
            of=GAME,
            path=f"policy.other.{commander}.type",
            mode=mode,
        )
        for mode, commander in (("serial", "serial_commander"), ("parallel", "commander"))
    ),
    *(
        refused(text, override, of=GAME, path=None)
        for override, text in (
            ("env.wrappers=[flatten_obs]", "no axis of 2 players"),
            ("env.eval_opponents=[nobody]", "'nobody' is no opponent"),
            ("env.eval_opponents=[]", "env.eval_opponents"),
            (f"{TWO_PLAYERS}=0", "expected a whole number >= 1"),
        )
    ),
    *(
        refused(text, override, f"{TWO_PLAYERS}=2", of=GAME, mode=mode)
        for mode, override, text in (
            ("serial", "system.learner_num=2", "trained by one process"),
            ("parallel", "system.replay.type=server", "a replay server holds the samples of one"),
        )
    ),
)
"""Configs that cannot work, by what is wrong."""


@pytest.mark.parametrize(
    ("of", "mode", "sets", "text", "path", "fix", "works_in"), [*chain.from_iterable(REFUSED)]
)
def test_config_that_cannot_work_is_refused_with_its_path(
    of: str,
    mode: Any,
    sets: Sequence[str],
    text: str,
    path: str | None,
    fix: Sequence[str],
    works_in: Any,
    parts: PluginManager,
) -> None:
    with use_manager(parts):
        with pytest.raises(ConfigError, match=text) as caught:
            compile_config(config_of(of, *sets), mode=mode)
        assert path in (None, caught.value.path)
        if fix:
            compile_config(config_of(of, *sets, *fix), mode=mode)
        if works_in:
            compile_config(config_of(of, *sets), mode=works_in)


@pytest.mark.parametrize(
    ("mode", "of", "sets"),
    [
        (
            "serial",
            "",
            [f"{BUFFER}.replay_buffer_size={10**13}", f"{BUFFER}.storage={{type: object}}"],
        ),
        ("serial", "", [f"{BUFFER}.limiter.min_size=10000"]),
        ("parallel", "", ["policy.type=r2d2", f"{BUFFER}.type=sequence"]),
        ("parallel", "", [f"{BUFFER}.type=advanced"]),
        ("serial", "", ["policy.model.obs_shape=[4]"]),
        ("serial", "", [f"env.env_id={__name__}:RaisesAtClose"]),
        ("serial", "", [EPISODES, "policy.collect.unroll_len=500", "policy.collect.n_episode=8"]),
        ("parallel", "", INFERENCE),
        ("serial", GAME, [f"{TWO_PLAYERS}=2"]),
        ("parallel", GAME, [f"{TWO_PLAYERS}=2"]),
    ],
)
def test_config_at_the_edge_of_what_works_is_accepted(
    mode: Any, of: str, sets: Sequence[str]
) -> None:
    compile_config(config_of(of, *sets), mode=mode)


@pytest.mark.parametrize(
    ("wrong", "count"),
    [([], 2), (["policy.model.obs_shape=7"], 2), (["env.wrappers=[clip_reward]"], 1)],
    ids=["right", "wrong shape", "wrapper without arguments"],
)
def test_envs_that_were_made_to_check_a_config_are_closed(wrong: list[str], count: int) -> None:
    wrapper = "env.wrappers=[{type: clip_reward, min_reward: 0}]"
    Counted.made = Counted.open = 0

    with pytest.raises(ConfigError) if wrong else nullcontext():
        compile_config(config_of("", f"env.env_id={__name__}:Counted", wrapper, *wrong))

    assert Counted.made >= count
    assert Counted.open == 0


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

    cfg = config_of(GAME, f"policy.other.replay_buffer.type={buffer}")
    cfg["policy"]["collect"]["collector"] = collector
    if collector["type"] == "episode_1v1":
        cfg["policy"]["collect"]["n_episode"] = 8

    assert compile_config(cfg, policy=Ordered, mode=mode).policy.traj_len_inf is True


def test_episode_collector_of_games_is_refused_in_parallel_on_policy_training() -> None:
    cfg = config_of(GAME, "policy.type=ppo", "policy.collect.n_episode=8")
    cfg["policy"]["learn"] = {}
    cfg["policy"]["other"] = {"commander": cfg["policy"]["other"]["commander"]}
    del cfg["policy"]["nstep"]
    compile_config(cfg, mode="parallel")

    cfg["policy"]["collect"]["collector"] = {"type": "episode_1v1", "get_train_sample": True}
    with pytest.raises(ConfigError, match="'episode_1v1' cannot do; choose sample_1v1,") as caught:
        compile_config(cfg, mode="parallel")
    assert caught.value.path == "policy.collect.collector.type"


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_initial_checkpoint_of_a_league_must_exist(mode: Any, tmp_path: Path) -> None:
    game = config_of(GAME, f"policy.other.league.load_path={tmp_path}")
    with pytest.raises(CheckpointMissingError, match=str(tmp_path)):
        compile_config(game, mode=mode)
    assert compile_config(game, mode="eval").policy.other.league.load_path == str(tmp_path)


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
    cfg = compile_config(config_of("", *sets))

    assert (cfg.env.stop_value, cfg.env.n_evaluator_episode) == expected
    assert (cfg.policy.eval.evaluator.stop_value, cfg.policy.eval.evaluator.n_episode) == expected
    assert caplog.messages == log


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
        assert list(flatten(saved))[-1] == LAST_KEY


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


def test_inputs_are_not_changed() -> None:
    user = config_of("", "policy.learn.learner.hook.log_show_after_iter=5")
    before = deep_merge_dicts(user, {})

    compile_config(user, seed=3)

    assert user == before


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_all_unknown_keys_are_in_one_error_whatever_else_is_wrong(mode: Any) -> None:
    mistakes = {
        "env.env_idd=x": "did you mean 'env_id'?",
        "policy.learn.batchsize=3": "did you mean 'batch_size'?",
        "policy.learn.learner.hook.save_ckpt_after_itr=5": "did you mean 'save_ckpt_after_iter'?",
        "policy.learn.learner.hook.a.typ=log_show": "did you mean 'type'?",
        "policy.learn.learner.hook.b.typ=log_show": "did you mean 'type'?",
        "policy.other.replay_buffer.limiter.min_siz=1": "did you mean 'min_size'?",
        "system.torch_thread=3": "did you mean 'torch_threads'?",
    }
    user = config_of("", *mistakes, "policy.learn.batch_size=often")
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
        compile_config(config_of("", assignment), mode=mode)

    assert caught.value.kind == kind
    assert caught.value.nearest in caught.value.known


@pytest.mark.parametrize(
    ("mode", "path"), [("serial", "system.transport.type"), ("eval", "policy.learn.learner.type")]
)
def test_part_that_the_mode_does_not_need_may_be_unknown(mode: Any, path: str) -> None:
    assert find(compile_config(config_of("", f"{path}=absent"), mode=mode), path) == "absent"


@pytest.mark.parametrize("value", ["true", "{obs: true}"])
def test_normalize_in_another_place_is_refused_with_its_place(value: str) -> None:
    with pytest.raises(UnknownKeyError, match=r"there is policy\.normalize") as caught:
        compile_config(config_of("", f"normalize={value}"))
    assert (caught.value.path, caught.value.elsewhere) == ("normalize", "policy.normalize")


def test_error_for_a_missing_section_shows_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"policy: \{type: dqn\}"):
        compile_config({"env": {"env_id": "CartPole-v1"}})
    with pytest.raises(ConfigError, match="env_id: CartPole-v1"):
        compile_config({"policy": {"type": "dqn"}})


def test_priorities_are_allowed_for_a_buffer_with_its_own_update() -> None:
    class Own(NaiveReplayBuffer):  # type: ignore[misc]
        def update(self, info: Any) -> None:
            """Accept priorities."""

    compile_config(config_of("", "policy.priority=true"), buffer=Own)


def test_class_passed_instead_of_a_type_uses_its_own_defaults() -> None:
    class Larger(NaiveReplayBuffer):  # type: ignore[misc]
        config: ClassVar[dict[str, Any]] = {"replay_buffer_size": 123_456}

    compile_config(MINIMAL)
    for config in (MINIMAL, config_of("", f"{BUFFER}.type=naive")):
        cfg = compile_config(config, buffer=Larger)

        assert cfg.policy.other.replay_buffer.replay_buffer_size == 123_456


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


@pytest.mark.parametrize("count", [1, 2])
def test_learners_that_train_together_need_a_gpu_each(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    cfg = config_of("", "policy.cuda=true", "system.learner_num=2")

    if count == 2:
        assert compile_config(cfg).system.learner_num == 2
        return
    with pytest.raises(ConfigError, match=r"each of them needs a GPU.* torch finds 1") as caught:
        compile_config(cfg)
    assert caught.value.path == "system.learner_num"


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
        compile_config(config_of("", f"policy.learn.learner.hook={hook}"))

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

    with pytest.raises(ConfigError, match=r"learn\.batch_size: Expected"):
        compile_config(MINIMAL, policy=policy)


@pytest.mark.parametrize(
    ("wrapper", "instead"),
    [
        ("NormalizeObservation", "policy.normalize.obs"),
        ("NormalizeReward", "policy.normalize.reward"),
        ("ClipReward", None),
    ],
)
def test_wrapper_that_measures_while_it_runs_is_reported(
    wrapper: str, instead: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    section = {"type": wrapper, **({} if instead else {"max_reward": 1})}
    compile_config(config_of("", f"env.wrappers=[{json.dumps(section)}, TimeAwareObservation]"))
    found = [each.getMessage() for each in caplog.records if wrapper in each.getMessage()]
    if instead is None:
        assert found == []
    else:
        assert "evaluations begin without" in found[0]
        assert instead in found[0]
        assert len(found) == 1
