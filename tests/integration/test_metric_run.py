"""Runs whose policy is evaluated by a metric on a data set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dingsdk.errors import ConfigError
from dingsdk.examples import digits
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


def test_run_ends_at_the_requested_accuracy(tmp_path: Any) -> None:
    sets = (*SHORT[:2], "env.stop_value=0.15")
    result = train("metric-supervised", sets=sets, output=tmp_path)

    assert (result.reason, result.train_iter) == ("stop_value", 80)


class Both(digits.Accuracy):
    """A metric of two numbers."""

    def eval(self, inputs: Any, label: Any) -> Any:
        return {"a": 1.0, "b": 2.0}

    def reduce_mean(self, inputs: Any) -> Any:
        return inputs[0]

    def gt(self, metric1: Any, metric2: Any) -> bool:
        return True


def two_numbers() -> Any:
    """Data with a metric of two numbers."""
    rng = np.random.default_rng(0)

    def batches() -> Iterator[Any]:
        yield digits.draw(rng, 3)

    return list(batches()), Both()


def test_metric_of_several_numbers_is_refused(tmp_path: Any) -> None:
    sets = (*SHORT, f"policy.eval.evaluator.data={__name__}:two_numbers")
    with pytest.raises(ConfigError, match=r"whose result is one number, found \{") as caught:
        train("metric-supervised", sets=sets, output=tmp_path)

    assert caught.value.path == "policy.eval.evaluator.data"


def test_digits_are_complete_and_the_same_for_the_same_seed() -> None:
    images, labels = digits.draw(np.random.default_rng(3), 200)
    again = digits.draw(np.random.default_rng(3), 200)

    assert np.array_equal(images, again[0])
    assert np.array_equal(labels, again[1])
    assert set(labels.tolist()) == set(range(10))
    inked = (images.reshape(200, 8, 8) > 0.5).sum((1, 2))
    expected = [12, 8, 11, 11, 9, 11, 12, 7, 13, 12]
    assert all(abs(inked[i] - expected[label]) <= 1 for i, label in enumerate(labels.tolist()))
