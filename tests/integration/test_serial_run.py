"""Serial runs of the shipped example on the real CartPole, with a small budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dingsdk import evaluate, resume, train
from dingsdk.errors import ConfigTypeError
from dingsdk.pipeline.context import RunResult

SMALL = (
    "system.max_env_steps=600",
    "env.n_evaluator_episode=3",
    "env.evaluator_env_num=3",
    "env.collector_env_num=4",
    "policy.collect.n_sample=32",
    "policy.learn.update_per_collect=2",
    "policy.learn.batch_size=32",
    "policy.eval.evaluator.eval_freq=10",
)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A finished small run; tests only read it."""
    return train("cartpole-dqn", sets=SMALL, output=tmp_path_factory.mktemp("runs"))


def test_run_within_a_budget_ends_at_the_limit(ended: RunResult) -> None:
    assert (ended.reason, ended.reached, ended.mode) == ("limit", False, "serial")
    assert 600 <= ended.env_steps < 600 + 200
    assert ended.train_iter > 20
    assert len(ended.evaluations) >= 3
    assert ended.evaluations[0].train_iter == 0
    assert ended.evaluations[-1].train_iter == ended.train_iter


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_progress_of_a_run_can_be_shown_from_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: Any
) -> None:
    assert train("cartpole-dqn", mode, sets=SMALL, output=tmp_path).run_dir.exists()
    assert capsys.readouterr().out == ""
    result = train("cartpole-dqn", mode, sets=SMALL, output=tmp_path, progress=True)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(f"training dqn on CartPole-v1, {mode}, seed 0, until a mean return of")
    assert first.endswith(f"run folder {result.run_dir}")
    assert f"{result.env_steps:,} env steps" in others[-1]
    assert f"{result.train_iter:,} iterations" in others[-1]


def test_progress_that_is_no_display_is_refused_before_a_run_folder_is_made(tmp_path: Path) -> None:
    for wrong in (None, "table", 1):
        with pytest.raises(ConfigTypeError, match=r"^progress: expected True or False"):
            train("cartpole-dqn", sets=SMALL, output=tmp_path, progress=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigTypeError, match=r"^progress: expected"):
        resume(tmp_path, progress=None)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_evaluate_is_repeatable_and_does_not_change_the_run_folder(ended: RunResult) -> None:
    run_dir = ended.run_dir
    before = sorted((path, path.stat().st_mtime_ns) for path in run_dir.rglob("*"))

    first = evaluate(run_dir, checkpoint="latest", episodes=4, seed=3)
    again = evaluate(run_dir, checkpoint="latest", episodes=4, seed=3)

    assert first.returns == again.returns
    assert sorted((path, path.stat().st_mtime_ns) for path in run_dir.rglob("*")) == before
