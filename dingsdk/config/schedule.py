"""Numbers of a config that change with the env steps of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from dingsdk.config.section import Count, Section, Whole

_SHAPES: Mapping[str, Callable[[float, float, float], float]] = {
    "linear": lambda start, end, share: start + (end - start) * share,
    "cosine": lambda start, end, share: end + (start - end) * (1 + math.cos(math.pi * share)) / 2,
    "exponential": lambda start, end, share: start * (end / start) ** share,
}
"""How a number goes from ``start`` (share 0) to ``end`` (share 1)."""


def scheduled_value(
    type: str, start: float, end: float, duration: float, env_steps: float
) -> float:
    """Return the value of a schedule.

    Args:
        type: ``linear``, ``cosine`` and ``exponential`` go from ``start`` to ``end`` in
            ``duration`` env steps and stay there; ``exp`` approaches ``end`` with the time constant
            ``duration``; ``constant`` is ``start`` throughout.
        start: Value at env step 0 and below.
        end: Final value.
        duration: Env steps, > 0.
        env_steps: Env steps so far.

    Source: ``cosine`` is Loshchilov & Hutter 2017, equation 5, with one cycle.
    """
    share = max(0.0, float(env_steps)) / duration
    if type == "constant":
        return start
    if type == "exp":
        return end + (start - end) * math.exp(-share)
    return end if share >= 1 else _SHAPES[type](start, end, share)


def check_ends(type: str, start: float, end: float) -> None:
    """Raise ValueError if a schedule of this type cannot go from ``start`` to ``end``."""
    for name, value in (("start", start), ("end", end)):
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}, but a schedule goes between finite numbers")
        if type == "exponential" and value * start <= 0:
            raise ValueError(
                f"{name} is {value}, but an exponential schedule multiplies its value by the same "
                "factor in each env step, and never reaches 0 or changes its sign; use a small "
                "number in place of 0, or the type linear"
            )


class Schedule(Section, frozen=True, kw_only=True):
    """A number that changes with the env steps of the run; call it with them.

    Attributes:
        type: How it goes from ``start`` to ``end``: ``linear``, ``cosine`` (half a cosine wave)
            or ``exponential`` (by the same factor in each env step).
        start: Value at the start, or after the warm-up.
        end: Final value.
        env_steps: Env step at which ``end`` is reached; it stays there.
        warmup: Env steps at the start in which the number grows from almost 0 to ``start``.
    """

    type: Literal["linear", "cosine", "exponential"] = "linear"
    start: float
    end: float
    env_steps: Count
    warmup: Whole = 0

    def __post_init__(self) -> None:
        check_ends(self.type, self.start, self.end)
        if self.warmup >= self.env_steps:
            raise ValueError(
                f"warmup {self.warmup} must be below env_steps {self.env_steps}, which includes it"
            )

    def __call__(self, env_steps: float) -> float:
        """Return the value after ``env_steps`` env steps; negative counts as 0.

        During a warm-up of n env steps it is ``start * (env_steps + 1) / (n + 1)``.
        """
        done = max(0.0, float(env_steps))
        if done < self.warmup:
            return self.start * (done + 1) / (self.warmup + 1)
        duration = self.env_steps - self.warmup
        return scheduled_value(self.type, self.start, self.end, duration, done - self.warmup)

    @property
    def extremes(self) -> Mapping[str, float]:
        """The largest and smallest values, by the key that each follows from."""
        found = {"start": self.start, "end": self.end}
        return found | ({"warmup": self(0)} if self.warmup else {})


_Number = TypeVar("_Number")

if TYPE_CHECKING:
    Scheduled = Annotated[_Number, Schedule]
else:

    class Scheduled:
        """The type of a number in a section of a policy that may be given as a ``Schedule``.

        ``learning_rate: Scheduled[Finite] = 1e-3`` accepts what ``Finite`` accepts, and a schedule
        whose values are all in that range. ``self.section`` of the policy has the number of today:
        that of the env steps of the training.

        Declare only numbers that ``learn`` reads each time, or that an optimizer in ``state`` is
        made with. Methods that act or make samples must not read them: they may run in other
        processes, where the number is that of the start.
        """

        def __class_getitem__(cls, number: Any) -> Any:
            return number | Schedule


@cache
def number_of(kind: Any) -> Any:
    """Return the annotation of a ``Scheduled`` field without the schedule; None for others."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    rest = tuple(each for each in kinds if each is not Schedule)
    return Union[rest] if len(rest) < len(kinds) else None  # noqa: UP007
