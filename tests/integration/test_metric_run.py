"""Runs whose policy is evaluated by a metric on a data set."""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.pipeline.evaluate import evaluate
from dingsdk.pipeline.train import train

SHORT = (
    "policy.learn.learner.train_iterations=160",
    "policy.eval.evaluator.eval_freq=80",
    "env.stop_value=2",
)


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_run_reports_the_metric_as_its_result(mode: Any, tmp_path: Any) -> None:
    result = train("metric-supervised", mode=mode, sets=SHORT, output=tmp_path)

    assert (result.reason, result.train_iter) == ("limit", 160)
    first, *_, last = result.evaluations
    assert all((each.episodes, each.mean) == (1, each.max) for each in result.evaluations)
    assert 0.0 <= first.mean < 0.25 < last.mean <= 1.0
    again = evaluate(result.run_dir, "latest")
    assert again.returns == (last.mean,)
