"""The results of ``evaluate`` and the errors that it raises before it plays an episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dingsdk.config import apply_set, load_config, save_config
from dingsdk.errors import ConfigError, PluginLoadError
from dingsdk.pipeline.evaluate import EvalResult, evaluate
from dingsdk.pipeline.run_folder import CONFIG_NAME
from tests.runs import save_run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return save_run(tmp_path, "env.evaluator_env_num=2", "env.n_evaluator_episode=3")


def test_result_computes_mean_min_max_and_std(tmp_path: Path) -> None:
    result = EvalResult("CartPole-v1", tmp_path, 7, (1.0, 2.0, 6.0))
    assert (result.mean, result.min, result.max) == (3.0, 1.0, 6.0)
    assert result.std == pytest.approx((14 / 3) ** 0.5)


def test_default_episode_count_is_that_of_the_run(run_dir: Path) -> None:
    result = evaluate(run_dir)
    assert len(result.returns) == 3
    assert (result.env_id, result.train_iter) == ("CartPole-v1", 7)
    assert result.checkpoint.name.startswith("ckpt_best")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"episodes": 0}, "episodes"),
        ({"episodes": "x"}, "episodes"),
        ({"checkpoint": 5}, "checkpoint"),
    ],
)
def test_wrong_arguments_are_refused(run_dir: Path, given: Any, path: str) -> None:
    with pytest.raises(ConfigError, match=f"^{path}") as caught:
        evaluate(run_dir, **given)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "section",
    [
        "other.replay_buffer",
        "other.replay_buffer.sampler",
        "collect.collector",
        "learn.learner",
        "other.commander",
    ],
)
def test_run_with_a_missing_training_plugin_can_be_evaluated(run_dir: Path, section: str) -> None:
    before = evaluate(run_dir, episodes=2).returns
    change_type(run_dir, f"policy.{section}")
    assert evaluate(run_dir, episodes=2).returns == before


@pytest.mark.parametrize("section", ["env_manager", "policy.eval.evaluator"])
def test_run_with_a_missing_env_or_evaluator_plugin_is_refused(run_dir: Path, section: str) -> None:
    change_type(run_dir, section)
    with pytest.raises(PluginLoadError, match="gone_plugin"):
        evaluate(run_dir)


def change_type(run_dir: Path, section: str) -> None:
    """Set a type in the run's config that a missing module would provide."""
    config = load_config(run_dir / CONFIG_NAME)
    apply_set(config, f"{section}.type=gone")
    apply_set(config, f"{section}.import_names=[gone_plugin]")
    save_config(config, run_dir / CONFIG_NAME)
