"""Learner hooks that measure the training and add the results to ``engine.log_vars``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dingsdk.config import Count
from dingsdk.errors import HookError
from dingsdk.worker.learner.hooks import LearnerHook, PeriodArgs

if TYPE_CHECKING:
    from dingsdk.worker.learner.base import BaseLearner


class _Args(PeriodArgs, frozen=True, kw_only=True):
    freq: Count = 100


class NormsHook(LearnerHook):
    """Logs ``param_norm/<part>`` and ``grad_norm/<part>`` of the policy's networks and optimizers.

    The norms are Euclidean, over all parameters, and over the last gradient before clipping. They
    are read from the policy's attribute ``norms``, which every ``BasePolicy`` has.
    """

    positions = ("after_iter",)
    Args = _Args

    def __call__(self, engine: BaseLearner) -> None:
        if engine.rank != 0 or engine.train_iter % self.args.freq:
            return
        try:
            norms = engine.policy.get_attribute("norms")
        except (NotImplementedError, KeyError, AttributeError) as error:
            raise HookError(
                f"the learner hook {self.name!r} needs a policy with the attribute 'norms', as "
                f"each BasePolicy has: {error}",
                name=self.name,
                found="norms",
            ) from error
        engine.add_log_vars(norms)


class ThroughputHook(LearnerHook):
    """Logs ``iterations_per_s``, ``samples_per_s`` and ``train_share`` since the last time.

    ``train_share`` is the share of the time that was spent in the policy's training; the rest
    was spent waiting for data, collecting (serial mode) and in hooks.
    """

    positions = ("after_iter",)
    Args = _Args
    _clock = staticmethod(time.perf_counter)
    _since: tuple[float, int, int] | None = None
    _train_s = 0.0

    def __call__(self, engine: BaseLearner) -> None:
        iteration, samples = engine.train_iter, engine.sample_count
        if self._since is None:
            self._since = (self._clock(), iteration, samples)
            return
        self._train_s += engine.log_vars["train_time"]
        if iteration % self.args.freq or engine.rank != 0:
            return
        now = self._clock()
        since, first, before = self._since
        passed_s = max(now - since, 1e-9)
        engine.add_log_vars(
            {
                "iterations_per_s": (iteration - first) / passed_s,
                "samples_per_s": (samples - before) / passed_s,
                "train_share": self._train_s / passed_s,
            }
        )
        self._since, self._train_s = (now, iteration, samples), 0.0
