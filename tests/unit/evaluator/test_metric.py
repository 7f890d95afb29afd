"""The evaluator on a data set: its result, the best checkpoint and the stop value."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.errors import ConfigError, NotSetError
from dingsdk.worker import IMetric, MetricSerialEvaluator
from dingsdk.worker.evaluator.base import returns_of
from tests.fakes import Scalars
from tests.own_plugins import plugin_of, using


class Accuracy(IMetric):
    """The share of correct outputs; with ``as_dict`` it is ``{"acc": share}``."""

    def __init__(self, as_dict: bool = False) -> None:
        self.as_dict = as_dict

    def eval(self, inputs: Any, label: Any) -> Any:
        assert isinstance(inputs, torch.Tensor)
        assert isinstance(label, torch.Tensor)
        return float((inputs == label).float().mean())

    def reduce_mean(self, inputs: list[Any]) -> Any:
        mean = sum(inputs) / len(inputs)
        return {"acc": mean} if self.as_dict else mean

    def gt(self, metric1: Any, metric2: Any) -> bool:
        if metric2 is None:
            return True
        return bool(metric1["acc"] >= metric2["acc"] if self.as_dict else metric1 >= metric2)


def _batch(right: int) -> Any:
    inputs = np.arange(4, dtype=np.float32)
    return inputs, np.where(np.arange(4) < right, inputs, -1)


@pytest.fixture
def resets() -> list[Any]:
    return []


@pytest.fixture
def make_evaluator(tmp_path, resets):
    opened = []

    def make(data: Any, metric: Any = None, **cfg: Any) -> Any:
        policy = SimpleNamespace(
            forward=lambda inputs: inputs, reset=lambda ids=None: resets.append(ids)
        )
        evaluator = MetricSerialEvaluator(
            cfg, (data, metric or Accuracy()), policy, Scalars(), str(tmp_path)
        )
        opened.append(evaluator)
        return evaluator

    yield make
    for each in opened:
        each.close()


def test_the_mean_over_all_batches_is_the_result(make_evaluator, resets) -> None:
    evaluator = make_evaluator([_batch(4), _batch(1)])
    resets.clear()

    assert evaluator.eval(train_iter=3, envstep=30) == (False, 0.625)
    assert resets == [None]
    points = evaluator._tb_logger.points
    assert points == {"evaluator_iter/metric": [(0.625, 3)], "evaluator_step/metric": [(0.625, 30)]}


def test_metric_gets_the_outputs_and_then_the_labels(make_evaluator) -> None:
    class SumOfAnswers(Accuracy):
        def eval(self, inputs: Any, label: Any) -> Any:
            return float(inputs.sum() + 100 * label.sum())

    batch = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    assert make_evaluator([batch], SumOfAnswers()).eval() == (False, 703.0)


@pytest.mark.parametrize("as_dict", [False, True])
def test_a_result_as_good_as_the_best_is_saved(make_evaluator, as_dict) -> None:
    data: list[Any] = []
    evaluator = make_evaluator(data, Accuracy(as_dict))
    saved: list[Any] = []
    for train_iter, right in ((0, 4), (1, 2), (2, 1), (3, 2), (4, 3)):
        data[:] = [_batch(right)]
        evaluator.eval(lambda name, at=train_iter: saved.append((name, at)), train_iter)

    # Any trained policy is better than the untrained one.
    assert saved == [("ckpt_best", at) for at in (0, 1, 3, 4)]


@pytest.mark.parametrize(
    ("stop_value", "train_iter", "stops"),
    [(0.5, 1, True), (0.5, 0, False), (0.5, -1, False), (0.75, 1, False)],
)
def test_training_may_stop_at_the_stop_value(make_evaluator, stop_value, train_iter, stops) -> None:
    evaluator = make_evaluator([_batch(2)], stop_value=stop_value)
    assert evaluator.eval(train_iter=train_iter)[0] is stops


def test_named_results_are_logged_and_can_stop_the_training(make_evaluator) -> None:
    evaluator = make_evaluator([_batch(2)], Accuracy(as_dict=True), stop_value={"acc": 0.5})
    assert evaluator.eval(train_iter=5, envstep=2) == (True, {"acc": 0.5})
    assert evaluator._tb_logger.points["evaluator_iter/acc"] == [(0.5, 5)]
    assert make_evaluator([_batch(4)], Accuracy(as_dict=True)).eval(train_iter=5)[0] is False


def test_observers_are_called_only_for_results_that_are_numbers(make_evaluator) -> None:
    told: list[Any] = []

    def told_of(source: str, mean_return: float, train_iter: int, envstep: int) -> None:
        told.append((source, mean_return, train_iter, envstep))

    with using(plugin_of(after_evaluate=told_of)):
        make_evaluator([_batch(1)]).eval(train_iter=2, envstep=8)
        make_evaluator([_batch(1)], Accuracy(as_dict=True)).eval(train_iter=2)
        make_evaluator([_batch(2)]).eval()
    assert told == [("evaluator", 0.25, 2, 8), ("evaluator", 0.5, -1, -1)]


def test_data_and_policy_can_be_set_later(make_evaluator, tmp_path) -> None:
    evaluator = MetricSerialEvaluator({}, exp_name=str(tmp_path), instance_name="late")
    with pytest.raises(NotSetError, match="data loader") as caught:
        evaluator.eval()
    assert caught.value.what == "env"
    evaluator.reset_env(([_batch(4)], Accuracy()))
    with pytest.raises(NotSetError, match="policy"):
        evaluator.eval()
    evaluator.reset_policy(make_evaluator([]).policy)
    assert evaluator.eval() == (False, 1.0)
    evaluator.reset(None, ([_batch(2)], Accuracy()))
    assert evaluator.eval() == (False, 0.5)
    evaluator.close()


@pytest.mark.parametrize("data", ["digits", "no_such_module:digits"])
def test_data_that_cannot_be_found_is_refused_before_a_run(data: str) -> None:
    with pytest.raises(ConfigError, match="gives no data") as caught:
        MetricSerialEvaluator.check_imports({"data": data})
    assert (caught.value.path, caught.value.facts["found"]) == ("policy.eval.evaluator.data", data)


def test_an_empty_data_set_is_refused(make_evaluator) -> None:
    with pytest.raises(ConfigError, match="no batch"):
        make_evaluator([]).eval()


def test_result_is_the_mean_over_all_ranks(make_evaluator, monkeypatch) -> None:
    import torch.distributed as dist

    def add_the_other_ranks(values: torch.Tensor) -> None:
        values += torch.tensor([1.25])

    monkeypatch.setattr(dist, "all_reduce", add_the_other_ranks)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    evaluator = make_evaluator([_batch(3)], multi_gpu=True)
    evaluator.policy.get_attribute = {"device": "cpu"}.__getitem__

    assert evaluator.eval() == (False, (0.75 + 1.25) / 4)


def test_returns_of_a_result_are_episode_returns_or_the_metric() -> None:
    assert returns_of({"eval_episode_return": [np.float32(1.5), 2], "other": 3}) == [1.5, 2.0]
    assert returns_of(np.float64(0.25)) == [0.25]


@pytest.mark.parametrize("result", [{"acc": 1.0}, None, [1.0, 2.0]])
def test_returns_of_a_result_that_is_not_a_number_are_refused(result: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        returns_of(result)
    assert caught.value.path == "policy.eval.evaluator.data"
