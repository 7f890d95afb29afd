"""The evaluator that measures a policy's outputs on a data set."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from dingsdk.config import Count
from dingsdk.data.pytree import to_tensor
from dingsdk.errors import ConfigError
from dingsdk.plugins.user_functions import find_function
from dingsdk.worker.evaluator.base import ISerialEvaluator


class IMetric(ABC):
    """Measures how good outputs are, as one number or several by name."""

    @abstractmethod
    def eval(self, inputs: Any, label: Any) -> Any:
        """Return the result of one batch: ``inputs`` are the policy's outputs."""

    @abstractmethod
    def reduce_mean(self, inputs: list[Any]) -> Any:
        """Return the mean of results."""

    @abstractmethod
    def gt(self, metric1: Any, metric2: Any) -> bool:
        """Whether ``metric1`` is at least as good as ``metric2``; True if ``metric2`` is None."""


class MetricSerialEvaluator(ISerialEvaluator):
    """Runs the policy on every batch of a data set; ``env`` is ``(dataloader, IMetric)``.

    The data loader yields ``(inputs, label)``; both are passed on as tensors. In a run the config
    key ``data`` provides loader and metric; the result must be one number, and larger is better.
    """

    plays = False

    contract_capabilities: ClassVar[None] = None

    class Config(ISerialEvaluator.Config, frozen=True, kw_only=True):
        """Section ``policy.eval.evaluator``.

        Attributes:
            eval_freq: Train iterations between two evaluations.
            stop_value: The run ends when the metric rates the result at least as good as this; inf
                for never.
            data: ``module:function`` that returns ``(dataloader, metric)``, used if none are
                passed; required in a run.
            multi_gpu: Whether results are averaged over the ranks of torch.distributed.
        """

        type: str = "metric"
        eval_freq: Count | None = 50
        stop_value: Any = math.inf
        data: str | None = None
        multi_gpu: bool = False

    _cfg: Config
    _config_path: ClassVar[str] = "policy.eval.evaluator"
    _data: tuple[Iterable[Any], IMetric] | None = None

    @property
    def env(self) -> Any:
        """The data loader and the metric in use; raises NotSetError if there are none."""
        if self._data is None:
            if self._cfg.data is None:
                raise self._not_set("env", "data loader and metric")
            self._data = _find_data(self._cfg.data)()
        return self._data

    @classmethod
    def check_config(cls, cfg: Mapping[str, Any], path: str) -> None:
        """Raise ConfigError if a run would have no data, or would wait for other ranks."""
        if cfg["data"] is None:
            raise ConfigError(
                f"{path}.data is missing: an evaluator of type {cfg['type']!r} measures on data, "
                "which module:function gives",
                path=f"{path}.data",
            )
        if cfg["multi_gpu"]:
            raise ConfigError(
                f"{path}.multi_gpu is true, but one process makes the evaluations of a run; leave "
                "it out, or use the evaluator from Python",
                path=f"{path}.multi_gpu",
            )

    @classmethod
    def check_imports(cls, cfg: Mapping[str, Any]) -> None:
        """Import what the section names; raise ConfigError if a run could not use it."""
        _find_data(cfg["data"])

    def reset_env(self, _env: Any = None) -> None:
        """Use another ``(dataloader, IMetric)`` if given; the current one needs no reset."""
        if _env is not None:
            loader, metric = _env
            self._data = loader, metric
        _ = self.env

    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        """Reset the policy, use other data if given, and clear the best result."""
        if _env is not None:
            self.reset_env(_env)
        super().reset(_policy)

    def eval(
        self,
        save_ckpt_fn: Callable[[str], Any] | None = None,
        train_iter: int = -1,
        envstep: int = -1,
    ) -> tuple[bool, Any]:
        """Measure the policy.

        Args:
            save_ckpt_fn: Called with ``"ckpt_best"`` when the result is at least as good as the
                best, or is the first of a trained policy.
            train_iter: Version of the policy; the default never stops training.
            envstep: Env steps collected so far, the second x-axis of the curves.

        Returns:
            Whether training may stop (the result is as good as ``stop_value``, and
            ``train_iter > 0``), and the mean result.

        Raises:
            NotSetError: no data or no policy.
            ConfigError: an empty data set.
        """
        loader, metric = self.env
        self.policy.reset()
        results = []
        for batch in loader:
            inputs, label = to_tensor(batch)
            results.append(metric.eval(self.policy.forward(inputs), label))
        if not results:
            raise ConfigError("the evaluator's data loader gave no batch", path="env")
        mean = metric.reduce_mean(results)
        if self._cfg.multi_gpu:
            mean = self._mean_of_ranks(mean)
        named = mean if isinstance(mean, Mapping) else {"metric": mean}
        numbers = {k: float(v) for k, v in named.items() if isinstance(v, int | float)}
        if self._log_pace.is_due():
            self._report(numbers, train_iter, envstep, f": {mean}")
        if isinstance(mean, int | float):
            self._tell_observers(float(mean), train_iter, envstep)
        self._note_result(mean, train_iter, metric.gt, save_ckpt_fn)
        stop = self._cfg.stop_value
        is_reached = stop != math.inf and train_iter > 0 and bool(metric.gt(mean, stop))
        return is_reached, mean

    def _mean_of_ranks(self, result: Any) -> Any:
        import torch
        import torch.distributed as dist

        names = sorted(result) if isinstance(result, Mapping) else None
        numbers = [result[name] for name in names] if names is not None else [result]
        device = self.policy.get_attribute("device")
        values = torch.tensor([float(each) for each in numbers], device=device)
        dist.all_reduce(values)
        means = (values / dist.get_world_size()).tolist()
        return dict(zip(names, means, strict=True)) if names is not None else means[0]

    def _zero(self) -> None:
        super()._zero()
        self._best_result = (False, None)


def _find_data(name: str) -> Callable[[], tuple[Iterable[Any], IMetric]]:
    found, why = find_function(name)
    if found is not None:
        return found
    path = "policy.eval.evaluator.data"
    raise ConfigError(f"{path}: {name!r} gives no data ({why})", path=path, found=name)
