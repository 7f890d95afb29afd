"""A learner hook that schedules the learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec

from dingsdk.config import Count, Section, Whole
from dingsdk.worker.learner.hooks import LearnerHook

if TYPE_CHECKING:
    from dingsdk.worker.learner.base import BaseLearner

_SHAPES: Mapping[str, Callable[[float, float], float]] = {
    "linear": lambda final, share: 1 + (final - 1) * share,
    "cosine": lambda final, share: final + (1 - final) * (1 + math.cos(math.pi * share)) / 2,
    "exponential": lambda final, share: final**share,
}


class _Args(Section, frozen=True, kw_only=True):
    """Options of ``lr_schedule``.

    Attributes:
        iterations: Train iteration at which the final rate is reached.
        kind: How the rate changes, from the start or from the end of the warm-up on.
        final: The final rate, as a share of the one in the config; above 0 for ``exponential``.
        warmup: Iterations in which the rate grows from 0 to the one in the config.
    """

    iterations: Count
    kind: Literal["linear", "cosine", "exponential"] = "linear"
    final: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    warmup: Whole = 0

    def __post_init__(self) -> None:
        if self.kind == "exponential" and self.final == 0:
            raise ValueError("final must be above 0 for an exponential schedule")
        if self.warmup >= self.iterations:
            raise ValueError(f"warmup {self.warmup} must be below iterations {self.iterations}")


class LearningRateHook(LearnerHook):
    """Multiplies all learning rates of the policy by a factor, set before each training.

    A training is one iteration, or, with an on-policy algorithm, all iterations on the data of one
    collect; their factor is that of the first one.

    The hook sets the policy's attribute ``learning_rate_factor``, which every ``BasePolicy`` has.
    The factor depends only on the iteration, so that a resumed run continues with the same rates.

    Source: linear warm-up as in Goyal et al. 2017, section 2.2; ``cosine`` is Loshchilov & Hutter
    2017, equation 5, with one cycle.
    """

    positions = ("before_iter",)
    Args = _Args
    contract_config: ClassVar[Mapping[str, Any]] = {"iterations": 10}

    def __call__(self, engine: BaseLearner) -> None:
        key = "learning_rate_factor"
        try:
            engine.policy.set_attribute(key, self.factor(engine.train_iter))
        except (NotImplementedError, KeyError, AttributeError) as error:
            raise self._lacks(key, error) from error

    def factor(self, iteration: int) -> float:
        """Return the factor of an iteration; the first iteration is 0."""
        args = self.args
        if iteration < args.warmup:
            return float((iteration + 1) / args.warmup)
        share = (iteration - args.warmup) / (args.iterations - args.warmup)
        return _SHAPES[args.kind](args.final, min(1.0, share))
