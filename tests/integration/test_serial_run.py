"""Serial runs of the shipped example on the real CartPole, with a small budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dingsdk import evaluate, resume, train
from dingsdk.errors import ConfigTypeError
from dingsdk.pipeline.context import RunResult

from .short_runs import SIXTY


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A finished small run; tests only read it."""
    return train("cartpole-dqn", sets=SIXTY, output=tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_progress_of_a_run_can_be_shown_from_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: Any
) -> None:
    assert train("cartpole-dqn", mode, sets=SIXTY, output=tmp_path).run_dir.exists()
    assert capsys.readouterr().out == ""
    result = train("cartpole-dqn", mode, sets=SIXTY, output=tmp_path, progress=True)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(f"training dqn on CartPole-v1, {mode}, seed 0, until a mean return of")
    assert first.endswith(f"run folder {result.run_dir}")
    assert f"{result.env_steps:,} env steps" in others[-1]
    assert f"{result.train_iter:,} iterations" in others[-1]


def test_progress_and_output_of_wrong_types_are_refused_before_a_run_folder_is_made(
    tmp_path: Path,
) -> None:
    for wrong in (None, "table", 1):
        with pytest.raises(ConfigTypeError, match=r"^progress: expected True or False"):
            train("cartpole-dqn", sets=SIXTY, output=tmp_path, progress=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigTypeError, match=r"^progress: expected"):
        resume(tmp_path, progress=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigTypeError, match=r"^output: expected a path, found 5"):
        train("cartpole-dqn", sets=SIXTY, output=5)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_evaluate_is_repeatable_and_does_not_change_the_run_folder(ended: RunResult) -> None:
    run_dir = ended.run_dir
    before = sorted((path, path.stat().st_mtime_ns) for path in run_dir.rglob("*"))

    first = evaluate(run_dir, checkpoint="latest", episodes=4, seed=3)
    again = evaluate(run_dir, checkpoint="latest", episodes=4, seed=3)

    assert first.returns == again.returns
    assert sorted((path, path.stat().st_mtime_ns) for path in run_dir.rglob("*")) == before
