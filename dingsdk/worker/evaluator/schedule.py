"""The schedule of evaluations, for serial and parallel mode."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from dingsdk.config import Count, NotNegative, PartSection
from dingsdk.errors import ConfigTypeError


class EvaluatorSection(PartSection, frozen=True, kw_only=True):
    """Keys of ``policy.eval.evaluator`` for the time of evaluations: when any interval has passed.

    Attributes:
        eval_freq: Train iterations between two evaluations; None to ignore iterations.
        eval_freq_env_steps: Env steps between two evaluations.
        eval_interval_s: Seconds between two evaluations.
    """

    eval_freq: Count | None = 1000
    eval_freq_env_steps: Count | None = None
    eval_interval_s: NotNegative | None = None


class EvalSchedule:
    """Tells when the next evaluation is due. Not thread safe.

    The first is due at once. No iteration is evaluated twice.

    Args:
        section: May have the keys of ``EvaluatorSection``; missing ones take its defaults.
        clock: Monotonic seconds.
    """

    def __init__(
        self, section: Mapping[str, Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not isinstance(section, Mapping):
            raise ConfigTypeError(
                f"the section of an evaluator is a dict, found {section!r:.80}",
                path="policy.eval.evaluator",
            )
        keys = ("eval_freq", "eval_freq_env_steps", "eval_interval_s")
        self._every = [section.get(key, getattr(EvaluatorSection(), key)) for key in keys]
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget the last evaluation, so that the next one is due at once."""
        self._last: tuple[float, float, float] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the last evaluation: iterations, env steps, and how many seconds ago it was."""
        last = self._last
        return {"last": None if last is None else (*last[:2], self._clock() - last[2])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from ``state_dict``."""
        last = state["last"]
        self._last = None if last is None else (*last[:2], self._clock() - last[2])

    def is_due(self, train_iter: int, envstep: int) -> bool:
        """Whether an evaluation is due after these numbers of iterations and env steps."""
        if self._last is None or train_iter == self._last[0]:
            return self._last is None
        now = (train_iter, envstep, self._clock())
        return any(
            every is not None and at - last >= every
            for every, at, last in zip(self._every, now, self._last, strict=True)
        )

    def note(self, train_iter: int, envstep: int) -> None:
        """Record that an evaluation begins after these numbers of iterations and env steps."""
        self._last = (float(train_iter), float(envstep), self._clock())
