"""Runs on a data set: they collect nothing, and all else is as in other runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dingsdk import load_policy, train
from dingsdk.cli import main
from dingsdk.config.plain import put
from dingsdk.data import Dataset
from dingsdk.data.columns import column_equal
from dingsdk.errors import ConfigError, DingError
from dingsdk.pipeline.compile import compile_config
from dingsdk.policy import DQNPolicy
from dingsdk.testing import StopAndGo
from dingsdk.worker import NaiveReplayBuffer, read_dataset, write_dataset
from dingsdk.worker.learner.checkpoint import load_checkpoint
from tests.own_plugins import using

from .clusters import JobCluster
from .test_coordinator_restart import code_without_coordinator
from .test_demonstrations import recorded
from .test_parallel_resume import ITERATIONS, SETS, started

COLLECTOR = "policy.collect.collector"
BUFFER = "policy.other.replay_buffer"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with episodes of random actions on CartPole."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "cartpole.npz"
    return recorded(path, 150, reward=1.0, act=lambda obs: int(rng.integers(2)))


@pytest.fixture
def config(data: Path) -> dict[str, Any]:
    return {
        "env": {"env_id": "CartPole-v1", "evaluator_env_num": 2, "n_evaluator_episode": 2},
        "policy": {
            "type": "dqn",
            "learn": {
                "batch_size": 16,
                "update_per_collect": 5,
                "learner": {"train_iterations": 30},
            },
            "collect": {"collector": {"type": "dataset", "path": str(data)}},
            "eval": {"evaluator": {"eval_freq": 10}},
        },
    }


def count(data: Path) -> int:
    with np.load(data, allow_pickle=False) as arrays:
        return len(arrays["reward"])


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_statistics_are_those_of_the_data_set(
    config: dict[str, Any], data: Path, tmp_path: Path, mode: Any
) -> None:
    config["policy"] |= {"normalize": {"obs": True, "reward": True}, "discount_factor": 0.9}
    transport = "in_memory" if mode == "parallel" else None
    result = train(config, mode, transport, output=tmp_path)

    with np.load(data, allow_pickle=False) as arrays:
        obs, ends = arrays["obs"], arrays["terminated"] | arrays["truncated"]
        rewards = arrays["reward"]
    returns, total = [], 0.0
    for reward, is_end in zip(rewards.tolist(), ends.tolist(), strict=True):
        total = 0.9 * total + reward
        returns.append(total)
        total = 0.0 if is_end else total
    saved = load_checkpoint(result.checkpoints["latest"]).state["model"]
    for part, rows in (
        ("encoder.features", obs.astype(np.float64)),
        ("reward_scale", np.array(returns)[:, None]),
    ):
        found = {key.rpartition(".")[2]: saved[key] for key in saved if part in key}
        assert float(found["count"]) == len(rows)
        np.testing.assert_allclose(found["mean"], rows.mean(0), rtol=1e-6)
        np.testing.assert_allclose(found["var"], rows.var(0), rtol=1e-6)


def test_run_without_env_has_the_shapes_of_the_data(
    config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del config["env"]

    result = train(config, output=tmp_path)

    assert (result.reason, result.train_iter, result.evaluations) == ("limit", 30, ())
    policy = load_policy(result.run_dir, "latest")
    assert policy.action_space == gym.spaces.Discrete(2)
    assert policy.predict(np.zeros(4, np.float32))[0] in (0, 1)
    # The compiled config runs again, and an evaluation says what it lacks.
    assert train(result.run_dir / "config.yaml", output=tmp_path).train_iter == 30
    assert main(["eval", str(result.run_dir), "--checkpoint", "latest"]) == 2
    assert "env.env_id is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "sets",
    [
        (),
        pytest.param((f"{BUFFER}.type=advanced", "policy.priority=true"), marks=pytest.mark.slow),
        pytest.param(
            (
                "policy.type=r2d2",
                "policy.learn.sequence_length=4",
                "policy.learn.burn_in=2",
                f"{BUFFER}.sequence_length=4",
                f"{BUFFER}.sampler.burn_in=2",
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(("policy.normalize.obs=true",), marks=pytest.mark.slow),
    ],
    ids=["naive", "priorities", "sequences", "normalised"],
)
def test_interrupted_run_equals_an_uninterrupted_one(
    config: dict[str, Any], tmp_path: Path, sets: tuple[str, ...]
) -> None:
    StopAndGo(config, sets).run(tmp_path, after_iterations=[7, 20])


def test_console_shows_updates_and_no_env_steps(
    config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(config))

    assert main(["train", str(path), "--output", str(tmp_path)]) == 0

    shown = capsys.readouterr().out
    assert "after iteration 30" in shown
    assert "Limit reached: mean return" in shown
    assert "30 iterations" in shown
    assert "0 env steps" not in shown.replace("after 0 env steps, iteration 0", "")


@pytest.mark.parametrize(
    ("sets", "path", "text"),
    [
        ({f"{COLLECTOR}.path": "absent.npz"}, f"{COLLECTOR}.path", "absent.npz does not exist"),
        ({"env.env_id": "Pendulum-v1"}, "env.env_id", "cannot use the action space"),
        ({"env.env_id": "Acrobot-v1"}, f"{COLLECTOR}.path", r"cartpole\.npz: column 'obs' is f"),
        ({"policy.collect.n_sample": 8}, "policy.collect.n_sample", "leave it out"),
        ({"policy.collect.n_episode": 9}, "policy.collect.n_episode", "leave it out"),
        ({"system.max_env_steps": 9}, "system.max_env_steps", "takes no env steps"),
        ({"policy.type": "ppo"}, "policy.on_policy", "newest samples"),
        ({f"{BUFFER}.replay_buffer_size": 50}, f"{BUFFER}.replay_buffer_size", "leave it out"),
        ({"policy.learn.batch_size": 9999}, "policy.learn.batch_size", "lower it"),
        ({f"{BUFFER}.type": "queue"}, f"{BUFFER}.max_use", "rows would leave"),
        ({f"{BUFFER}.limiter.type": "samples_per_insert"}, f"{BUFFER}.limiter.type", "at once"),
        ({f"{BUFFER}.limiter.min_size": 9999}, f"{BUFFER}.limiter.min_size", "lower it"),
    ],
)
def test_what_cannot_work_is_one_line_before_the_start(
    config: dict[str, Any], sets: dict[str, Any], path: str, text: str, tmp_path: Path
) -> None:
    for key, value in sets.items():
        put(config, key, value)

    with pytest.raises(ConfigError, match=text) as caught:
        train(config, output=tmp_path)

    assert caught.value.path == path
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("has_env", [True, False])
@pytest.mark.parametrize(
    "transport", [None, "in_memory", pytest.param("shared_memory", marks=pytest.mark.slow)]
)
def test_run_trains_on_all_rows_and_takes_no_env_steps(
    config: dict[str, Any], data: Path, tmp_path: Path, transport: str | None, has_env: bool
) -> None:
    if not has_env:
        del config["env"]
    sets, mode = ["system.validate_state=true"], "serial" if transport is None else "parallel"

    result = train(config, mode, transport, sets, output=tmp_path)  # type: ignore[arg-type]

    rows = count(data)
    assert (result.reason, result.env_steps, result.train_iter) == ("limit", 0, 30)
    evaluated = [each.train_iter for each in result.evaluations]
    if mode == "serial" and has_env:
        assert evaluated == [0, 10, 20, 30]
    # In parallel mode, a slow evaluator may find a policy that has been trained.
    assert evaluated[-1:] == ([30] if has_env else [])
    assert (result.samples.collected, result.samples.live) == (rows, rows)
    assert result.samples.trained == 30 * 16
    assert result.elapsed_s > 0
    record = json.loads((result.run_dir / "result.json").read_text())
    assert (record["env_steps"], record["samples"]["acknowledged"]) == (0, rows)
    assert (result.run_dir / "curve.png").is_file() == has_env


def test_both_modes_train_on_the_same_batches(config: dict[str, Any], tmp_path: Path) -> None:
    weights = []
    for mode in ("serial", "parallel"):
        result = train(config, mode, output=tmp_path)  # type: ignore[arg-type]
        state = load_checkpoint(result.checkpoints["latest"]).state["model"]
        weights.append({name: each.numpy() for name, each in state.items()})

    assert column_equal(*weights)


@pytest.mark.parametrize(
    ("sets", "path"),
    [
        ({"policy.other.commander.type": "naive"}, "policy.other.commander.type"),
        ({"system.replay.type": "server"}, "system.replay.type"),
    ],
)
def test_what_parallel_mode_cannot_do_is_refused(
    config: dict[str, Any], sets: dict[str, str], path: str
) -> None:
    for key, value in sets.items():
        put(config, key, value)

    with pytest.raises(ConfigError) as caught:
        compile_config(config, mode="parallel")
    assert caught.value.path == path


def on_cartpole(data: Path, iterations: int) -> tuple[str, ...]:
    """Return the settings of the example ``cartpole-dqn`` that make it train on the data."""
    return (
        *("policy.collect.n_sample=null", f"{COLLECTOR}={{type: dataset, path: {data}}}"),
        *("policy.learn.batch_size=16", "policy.nstep=4", f"{ITERATIONS}={iterations}"),
    )


def test_a_learner_that_replaces_a_lost_one_trains_on_the_same_rows(
    data: Path, tmp_path: Path
) -> None:
    with JobCluster(tmp_path, "greenlets", *on_cartpole(data, 400)) as cluster:
        cluster.expect(lambda: cluster.train_iter() > 60)
        cluster.transport.abandon_worker("learner-0")
        cluster.running("learner", attempt=2)
        cluster.expect(lambda: cluster.train_iter() == 400)
        cluster.coordinator.validate_state()
        found = cluster.coordinator.status()
    rows = count(data)
    assert (found.samples.collected, found.samples.live) == (rows, rows)
    assert not any(found.samples.evicted.values())
    assert found.env_steps == 0


def test_a_learner_that_replaces_a_lost_one_refuses_other_data(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(data.read_bytes())
    with JobCluster(tmp_path / "run", "greenlets", *on_cartpole(path, 1_000_000)) as cluster:
        cluster.expect(lambda: cluster.train_iter() > 60)
        changed = read_dataset(data).columns
        write_dataset(Dataset({**changed, "reward": changed["reward"] * 2}), path)
        cluster.transport.abandon_worker("learner-0")
        with pytest.raises(AssertionError, match=r"data\.npz is not the data that the run"):
            cluster.expect(lambda: False)


@pytest.mark.slow
def test_a_run_whose_coordinator_is_killed_makes_the_updates_of_a_serial_run(
    data: Path, tmp_path: Path
) -> None:
    # A learner that loses its lease on a busy machine would begin again from a checkpoint.
    sets = (*SETS, "system.coordinator.lease_s=30", *on_cartpole(data, 4000))
    run = tmp_path / "run"
    with started(tmp_path, *sets) as process:
        assert code_without_coordinator(process, run) == 0
    found = json.loads((run / "result.json").read_text())
    rows = count(data)
    assert (found["reason"], found["train_iter"], found["env_steps"]) == ("limit", 4000, 0)
    assert (found["samples"]["collected"], found["samples"]["live"]) == (rows, rows)
    serial = train("cartpole-dqn", sets=[*sets, "system.torch_threads=1"], seed=3, output=tmp_path)
    first, second = (
        {name: each.numpy() for name, each in load_checkpoint(folder).state["model"].items()}
        for folder in (run / "ckpt", serial.run_dir / "ckpt")
    )
    assert column_equal(first, second)


def test_buffer_fits_the_data_unless_its_size_is_given(config: dict[str, Any], data: Path) -> None:
    assert compile_config(config).policy.other.replay_buffer.replay_buffer_size == count(data)

    put(config, f"{BUFFER}.replay_buffer_size", 999)
    assert compile_config(config).policy.other.replay_buffer.replay_buffer_size == 999


def test_run_without_env_and_limit_is_refused(config: dict[str, Any]) -> None:
    del config["env"], config["policy"]["learn"]["learner"]

    with pytest.raises(ConfigError, match="train_iterations is not set"):
        compile_config(config)


def test_policy_that_learns_offline_needs_a_data_set(config: dict[str, Any]) -> None:
    class Offline(DQNPolicy):
        is_offline = True

    compile_config(config, policy=Offline)
    config["policy"]["collect"] = {"n_sample": 8}

    with pytest.raises(ConfigError, match=r"needs policy\.collect\.collector\.type=dataset"):
        compile_config(config, policy=Offline)


class DryBuffer(NaiveReplayBuffer):
    """Gives ten batches."""

    def sample(self, size: int, cur_learner_iter: int, *args: Any, **kwargs: Any) -> Any:
        return super().sample(size, cur_learner_iter) if cur_learner_iter < 10 else None


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_run_whose_buffer_gives_no_batch_ends_with_an_error(
    config: dict[str, Any], tmp_path: Path, mode: Any
) -> None:
    put(config, f"{BUFFER}.type", "dry")

    said = "after iteration 10 the DryBuffer gave no batch"
    with using(buffers={"dry": DryBuffer}), pytest.raises(DingError, match=said):
        train(config, mode, output=tmp_path)
