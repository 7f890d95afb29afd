"""``record``: its episodes are those of an evaluation, its targets are checked before it plays."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import dingsdk
from dingsdk.cli import main
from dingsdk.config import save_config
from dingsdk.errors import ConfigError, DatasetError
from dingsdk.pipeline.evaluate import evaluate, record
from dingsdk.pipeline.run_folder import CHECKPOINT_FOLDER, CONFIG_NAME
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.policy import create_policy
from dingsdk.worker import read_dataset
from dingsdk.worker.learner.checkpoint import save_checkpoint
from tests.extras import needs
from tests.runs import save_run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder whose best checkpoint is at half of its exploration."""
    return save_run(tmp_path_factory.mktemp("run"), "env.evaluator_env_num=2")


def test_recorded_episodes_are_those_of_an_evaluation(run_dir: Path) -> None:
    found = record(run_dir, 5, seed=3)

    expected = evaluate(run_dir, episodes=5, seed=3)
    assert found.returns == expected.returns
    assert found.returns != evaluate(run_dir, episodes=5).returns, "the seed of the run is another"
    assert sorted(found.dataset.returns()) == sorted(expected.returns)
    assert (found.mean, found.train_iter) == (expected.mean, 7)
    assert (found.env_id, found.checkpoint) == ("CartPole-v1", expected.checkpoint)
    assert len(found.dataset.ends) == 5


def test_recorded_transitions_are_steps_of_the_env_with_the_actions_of_the_policy(
    run_dir: Path,
) -> None:
    columns = record(run_dir, 2, seed=3).dataset.columns

    actions, _ = dingsdk.load_policy(run_dir).predict(columns["obs"])
    assert (columns["action"] == actions).all()
    env = gym.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    for obs, action, next_obs, terminated in zip(
        *(columns[name] for name in ("obs", "action", "next_obs", "terminated")), strict=True
    ):
        env.state, env.steps_beyond_terminated = obs.astype(np.float64), None  # type: ignore[attr-defined]
        after, _, is_over, _, _ = env.step(action)
        np.testing.assert_allclose(after, next_obs, rtol=1e-5, atol=1e-6)
        assert is_over == terminated


def test_exploring_policy_takes_other_actions_and_the_same_with_the_same_seed(
    run_dir: Path,
) -> None:
    first, second = (record(run_dir, 20, seed=3, explore=True).dataset for _ in range(2))

    assert (first.columns["action"] == second.columns["action"]).all()
    assert first.ends.tolist() == second.ends.tolist()
    best, _ = dingsdk.load_policy(run_dir).predict(first.columns["obs"])
    # At 500 of 1000 env steps epsilon is 0.525. Half of the random actions differ from the best.
    assert np.mean(best != first.columns["action"]) == pytest.approx(0.525 / 2, abs=0.08)


@pytest.mark.parametrize("name", ["new/data.npz", pytest.param("data.h5", marks=needs("hdf5"))])
def test_written_file_holds_the_recording_and_is_only_replaced_if_asked(
    run_dir: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    found = record(run_dir, 2, path, seed=3)
    read = read_dataset(path)
    for key, column in found.dataset.columns.items():
        np.testing.assert_array_equal(read.columns[key], column)
    assert read.ends.tolist() == found.dataset.ends.tolist()

    with pytest.raises(DatasetError, match=r"exists; .*--overwrite"):
        record(run_dir, 1, path)
    assert len(read_dataset(path)) == len(found.dataset)
    record(run_dir, 1, path, overwrite=True)
    assert len(read_dataset(path).ends) == 1


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        ("data.csv", DatasetError, "no format has the suffix '.csv'"),
        ("minary:a/b-v0", DatasetError, "did you mean .minari"),
        ("minari:a/b-v0", DatasetError, r"pip install \S*plugins/dingsdk-minari"),
        ("minari:", DatasetError, "is no name of a data set"),
    ],
)
def test_target_that_cannot_be_written_is_refused_before_an_env_is_made(
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    error: type[Exception],
    text: str,
) -> None:
    monkeypatch.setattr("dingsdk.pipeline.evaluate.make_eval_envs", None)
    with use_manager(PluginManager(discover=list)), pytest.raises(error, match=text):
        record(run_dir, 1, target)


def test_run_whose_evaluator_plays_no_episodes_is_refused(run_dir: Path, tmp_path: Path) -> None:
    cfg = compile_run("metric-supervised")
    save_config(cfg, tmp_path / CONFIG_NAME)
    policy = create_policy(cfg.policy, enable_field=["learn"], seed=0)
    state = policy.learn_mode.state_dict()
    save_checkpoint(tmp_path / CHECKPOINT_FOLDER, "ckpt_best", state, iteration=1)
    with pytest.raises(ConfigError, match="'metric' plays no episodes"):
        record(tmp_path, 1)


def test_command_prints_one_line(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "data.npz")
    arguments = ["record", str(run_dir), "--episodes", "2", "--to", target, "--seed", "3"]

    assert main(arguments) == 0
    data = read_dataset(target)
    assert capsys.readouterr().out == (
        f"CartPole-v1: 2 episodes, {len(data)} steps, mean return {len(data) / 2:.2f}, "
        f"written to {target}\n"
    )
    assert main(arguments) == 2
    assert "exists" in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--checkpoint", "iteration_8"]) == 2
    assert "no checkpoint 'iteration_8'" in capsys.readouterr().err
