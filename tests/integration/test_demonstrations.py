"""Runs with demonstrations: their share of each batch in both modes, resuming, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dingsdk import resume, train
from dingsdk.config import to_plain
from dingsdk.data import Dataset
from dingsdk.errors import ConfigError
from dingsdk.pipeline.compile import compile_config
from dingsdk.pipeline.resume import find_save
from dingsdk.pipeline.status_file import read_status
from dingsdk.policy.dqn import DQNPolicy
from dingsdk.testing import StopAndGo
from dingsdk.worker import read_dataset, write_dataset
from dingsdk.worker.commander.tasks import demonstrations_task
from dingsdk.worker.demonstrations import demonstration_samples
from dingsdk.worker.replay_buffer.demonstrations import STATE_NAME
from tests.own_plugins import using

from . import short_runs
from .clusters import JobCluster
from .test_parallel_resume import ITERATIONS, contents

DEMONSTRATIONS = "policy.other.demonstrations"
BUFFER = "policy.other.replay_buffer"
ADVANCED = (f"{BUFFER}.type=advanced", "policy.priority=true")


class SharePolicy(DQNPolicy):
    """Trains only on batches of 12 collected samples and 4 demonstrations."""

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        is_shown = batch["collect_iter"] < 0
        assert is_shown.tolist() == [False] * 12 + [True] * 4
        # The recorded rewards are 5 and those of the env 1, in sums of one or two steps.
        assert batch["reward"][is_shown].min() >= 5
        assert batch["reward"][~is_shown].max() < 2
        return super().learn(batch)


def balance(obs: Any) -> int:
    """Return an action that balances the pole."""
    return int(obs[2] + obs[3] > 0)


def recorded(
    path: Path, steps: int = 120, reward: float = 5.0, act: Callable[[Any], int] = balance
) -> Path:
    """Write episodes of CartPole of at most 40 steps each; return the path."""
    env, rows = gym.make("CartPole-v1", max_episode_steps=40), list[Any]()
    obs, _ = env.reset(seed=0)
    while len(rows) < steps:
        action = act(obs)
        next_obs, _, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward, next_obs, terminated, truncated))
        obs = env.reset()[0] if terminated or truncated else next_obs
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    columns = {
        name: np.array(each) for name, each in zip(names, zip(*rows, strict=True), strict=True)
    }
    write_dataset(Dataset(columns), path)
    env.close()
    return path


def shown(path: Path, share: float = 0.25) -> tuple[str, str]:
    return f"{DEMONSTRATIONS}.path={path}", f"{DEMONSTRATIONS}.share={share}"


@pytest.mark.parametrize(
    ("mode", "transport"),
    [
        ("serial", None),
        ("parallel", "in_memory"),
        pytest.param("parallel", "shared_memory", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("sets", [(), ADVANCED], ids=["uniform", "prioritized"])
def test_every_batch_has_the_share_in_both_modes(
    tmp_path: Path, mode: str, transport: str | None, sets: tuple[str, ...]
) -> None:
    own = () if transport is None else (f"system.transport.type={transport}",)
    result = train(
        "cartpole-dqn",
        mode,
        sets=[
            *short_runs.QUICK,
            *("policy.nstep=2", f"{BUFFER}.replay_buffer_size=100"),
            *shown(recorded(tmp_path / "shown.npz")),
            *own,
            *sets,
        ],
        policy=SharePolicy,
        seed=1,
        output=tmp_path,
    )
    assert (result.reason, result.train_iter) == ("limit", 200)
    assert result.samples.trained == 200 * 16
    # Two updates for every 16 samples, as without demonstrations; collectors are a little ahead.
    # They replaced each other only.
    assert 1600 <= result.samples.collected < 2400
    assert result.samples.evicted["overwritten"] >= 1400
    if mode == "parallel":
        # A buffer of 100 samples has those of about 12 updates; a version is 10 updates.
        assert read_status(result.run_dir)["policy_lag"]["largest"] < 10


@pytest.mark.parametrize("mode", ["serial", pytest.param("parallel", marks=pytest.mark.slow)])
def test_a_recurrent_policy_trains_on_sequences_of_demonstrations(
    tmp_path: Path, mode: str
) -> None:
    sets = (
        *(*ADVANCED, "policy.learn.sequence_length=8", "policy.learn.burn_in=4"),
        *("policy.collect.n_sample=8", "policy.learn.batch_size=8", "env.stop_value=1000"),
        *("policy.learn.learner.train_iterations=20", "env.n_evaluator_episode=5"),
        *shown(recorded(tmp_path / "shown.npz"), 0.5),
    )
    cfg = {"env": {"env_id": "CartPole-v1"}, "policy": {"type": "r2d2"}}
    result = train(cfg, mode, sets=sets, seed=1, output=tmp_path)
    assert (result.reason, result.train_iter) == ("limit", 20)
    assert result.samples.trained == 20 * 8


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_preloaded_demonstrations_are_rows_of_the_buffer(tmp_path: Path, mode: str) -> None:
    path = recorded(tmp_path / "shown.npz")
    preload = (f"{DEMONSTRATIONS}.path={path}", f"{DEMONSTRATIONS}.preload=true")
    result = train(
        "cartpole-dqn",
        mode,
        sets=[*short_runs.QUICK, *preload, "system.validate_state=true"],
        seed=1,
        output=tmp_path,
    )
    assert (result.reason, result.train_iter) == ("limit", 200)
    result.samples.check()
    # Two updates for every 16 collected samples: the others do not count as collected ones.
    assert 1600 <= result.samples.collected < 2400
    assert result.samples.preloaded == (120 if mode == "serial" else 0)


@pytest.mark.parametrize("is_preloaded", [False, True], ids=["share", "preload"])
def test_a_learner_that_replaces_a_lost_one_has_the_demonstrations_again(
    tmp_path: Path, is_preloaded: bool
) -> None:
    path = recorded(tmp_path / "shown.npz")
    own = (f"{DEMONSTRATIONS}.path={path}", f"{DEMONSTRATIONS}.preload=true")
    if not is_preloaded:
        own = (*shown(path), "policy.type=share", "policy.nstep=2")
    part = using(policies={"share": SharePolicy})
    with part, JobCluster(tmp_path, "greenlets", *own) as cluster:
        cluster.expect(lambda: cluster.train_iter() > 60)
        cluster.transport.abandon_worker("learner-0")
        cluster.expect(lambda: cluster.coordinator.status().workers["learner"] == 1)
        at_return = cluster.train_iter()
        cluster.expect(lambda: cluster.train_iter() > at_return + 50)
        cluster.coordinator.validate_state()


@pytest.mark.parametrize(
    "sets",
    [
        pytest.param((), marks=pytest.mark.slow, id="uniform"),
        pytest.param(ADVANCED, id="prioritized"),
        pytest.param((*ADVANCED, f"{BUFFER}.sampler.type=rank"), marks=pytest.mark.slow, id="rank"),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, sets: tuple[str, ...]) -> None:
    short = (
        *short_runs.QUICK,
        *("policy.learn.learner.train_iterations=60", "policy.eval.evaluator.eval_freq=25"),
        "policy.eval.evaluator.eval_interval_s=null",
    )
    demonstrations = shown(recorded(tmp_path / "shown.npz"), 0.5)
    StopAndGo("cartpole-dqn", (*short, *demonstrations, *sets)).run(tmp_path, [6, 41])
    saves = [find_save(tmp_path / name).path for name in ("whole", "stopped")]
    one, other = ((each / "buffer" / STATE_NAME).read_bytes() for each in saves)
    assert one == other


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize(
    "kind", ["share", pytest.param("preload", marks=pytest.mark.slow), "collector"]
)
def test_a_run_is_not_resumed_with_other_data(tmp_path: Path, mode: Any, kind: str) -> None:
    path, section = recorded(tmp_path / "shown.npz"), DEMONSTRATIONS
    own = shown(path)
    if kind == "preload":
        own = (f"{DEMONSTRATIONS}.path={path}", f"{DEMONSTRATIONS}.preload=true")
    elif kind == "collector":
        section = "policy.collect.collector"
        own = (f"{section}={{type: dataset, path: {path}}}", "policy.collect.n_sample=null")
    run = train(
        "cartpole-dqn",
        mode,
        "in_memory" if mode == "parallel" else None,
        sets=[*short_runs.QUICK, *own, f"{ITERATIONS}=20", "system.journal.enabled=true"],
        output=tmp_path,
    ).run_dir
    before, more = contents(run), [f"{ITERATIONS}=30"]
    recorded(path, reward=3.0)
    for words in ("is not the data that the run began with: its digest is", "does not exist"):
        with pytest.raises(ConfigError, match=words) as caught:
            resume(run, sets=more)
        assert caught.value.path == f"{section}.path"
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert contents(run) == before
        path.unlink(missing_ok=True)
    recorded(path)
    assert resume(run, sets=more).train_iter == 30


def compiled(*sets: str, config: dict[str, Any] | None = None, mode: Any = "serial") -> Any:
    from dingsdk.config import apply_set

    cfg: dict[str, Any] = {"env": {"env_id": "CartPole-v1"}, "policy": {"type": "dqn"}}
    cfg = cfg if config is None else config
    for each in sets:
        apply_set(cfg, each)
    return compile_config(cfg, mode=mode)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("policy.type=ppo",), "'ppo' trains only on its newest samples"),
        ((f"{BUFFER}.type=queue",), "'queue' gives each row once"),
        (
            ("policy.priority=true", f"{BUFFER}.type=advanced", f"{BUFFER}.sampler.type=oldest"),
            "'advanced' gives each row once",
        ),
        (("policy.type=r2d2",), "'sequence' draws sequences"),
        ((f"{BUFFER}.storage.type=object",), r"storage\.type 'object' holds no columns"),
        ((f"{DEMONSTRATIONS}.share=0.005",), "0.005 of policy.learn.batch_size 64 is 0 samples"),
        ((f"{DEMONSTRATIONS}.share=0.999",), "0.999 of policy.learn.batch_size 64 is 64 samples"),
        ((f"{DEMONSTRATIONS}.preload=true",), "share is 0.25, but preload is true"),
        ((f"{DEMONSTRATIONS}.share=null",), "share is not set"),
        ((f"{DEMONSTRATIONS}.path=''",), "path is empty"),
        ((f"{DEMONSTRATIONS}.pathh=x",), "pathh"),
        (
            (
                "policy.collect.collector.type=dataset",
                "policy.collect.collector.path={path}",
                "policy.learn.learner.train_iterations=9",
            ),
            "'dataset' collects nothing beside them",
        ),
        (("policy.learn.batch_size=600",), "150 rows of each batch, but .* makes only 120"),
        (
            (
                f"{DEMONSTRATIONS}.share=null",
                f"{DEMONSTRATIONS}.preload=true",
                f"{BUFFER}.replay_buffer_size=119",
            ),
            "makes 120 rows, more than",
        ),
    ],
)
def test_configs_that_cannot_work_are_refused(
    tmp_path: Path, sets: tuple[str, ...], words: str
) -> None:
    path = recorded(tmp_path / "shown.npz")
    with pytest.raises(ConfigError, match=words) as caught:
        compiled(*shown(path), *(each.format(path=path) for each in sets))
    assert "\n" not in str(caught.value)
    assert caught.value.path.startswith("policy.")


def test_a_replay_server_is_refused(tmp_path: Path) -> None:
    path = recorded(tmp_path / "shown.npz")
    with pytest.raises(ConfigError, match="a replay server holds collected samples only"):
        compiled(*shown(path), "system.replay.type=server", mode="parallel")


def test_data_that_does_not_fit_is_refused_with_its_file_and_column(tmp_path: Path) -> None:
    path = recorded(tmp_path / "shown.npz")
    columns = read_dataset(path).columns
    write_dataset(Dataset({**columns, "action": columns["action"] + 1}), path)
    with pytest.raises(ConfigError, match="column 'action' is 2 in row") as caught:
        compiled(*shown(path))
    assert caught.value.path == f"{DEMONSTRATIONS}.path"
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_samples_are_those_that_a_collector_would_make(tmp_path: Path) -> None:
    # Two episodes, of which the second was cut; float64 and int32 become the env's types.
    columns = {
        "obs": np.arange(20, dtype=np.float64).reshape(5, 4),
        "next_obs": np.arange(20, dtype=np.float64).reshape(5, 4) + 4,
        "action": np.array([0, 1, 0, 1, 1], np.int32),
        "reward": np.array([1.0, 2.0, 4.0, 8.0, 16.0]),
        "terminated": np.array([False, False, True, False, False]),
        "truncated": np.array([False, False, False, False, True]),
    }
    path = tmp_path / "shown.npz"
    write_dataset(Dataset(columns), path)
    sets = ("policy.nstep=2", "policy.discount_factor=0.5", "policy.learn.batch_size=4")
    cfg = to_plain(compiled(*shown(path), *sets))
    task = demonstrations_task(cfg)
    assert task is not None
    found = demonstration_samples(read_dataset(path), task, cfg["policy"]).columns
    assert found["reward"].tolist() == [2.0, 4.0, 4.0, 16.0, 16.0]
    assert found["discount"].tolist() == [0.25, 0.0, 0.0, 0.25, 0.5]
    assert found["next_obs"][:, 0].tolist() == [8.0, 12.0, 12.0, 20.0, 20.0]
    assert found["done"].tolist() == [False, False, True, False, True]
    assert found["collect_iter"].tolist() == [-1] * 5
    types = {name: str(column.dtype) for name, column in found.items()}
    wanted = dict.fromkeys(("obs", "next_obs", "reward", "discount"), "float32")
    assert types == {**wanted, "action": "int64", "done": "bool", "collect_iter": "int64"}
