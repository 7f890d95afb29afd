"""A limiter on the rate of pushes to samples over a sliding window of time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from dingsdk.errors import CheckpointCorruptError, ConfigError, ConfigTypeError
from dingsdk.worker.replay_buffer.limiter import Limiter
from dingsdk.worker.replay_buffer.limiter.contract import read_counts
from dingsdk.worker.replay_buffer.settings import read_positive

_FORGOTTEN = 0.01
"""A count below this is none: what is left of one row after one window."""
_SINCE = ("inserts_at_sample", "samples_at_insert", "last_asked")


class PushSampleRateLimiter(Limiter):
    """Bounds pushed per sampled rows of the recent past (type ``push_sample_rate``).

    ``pushed`` and ``sampled`` are rows counted with a weight that decays, to 1 % in one window.

    * A push of ``n`` rows is admitted while ``(pushed + n) / sampled <= max``, and once
      ``sampled`` has decayed to nothing.
    * A sample of ``n`` rows is admitted while ``pushed / (sampled + n) >= min`` and the buffer
      holds ``sample_min_limit_ratio * n`` rows.

    Source: the throughput controller of DI-engine's advanced buffer. Differences:

    * a push that is refused waits or raises BufferFullError; there it is dropped without a word;
    * once the pushes before it have decayed to nothing, a push is admitted too if it keeps
      ``max`` to all that was sampled since (and a sample likewise): one that is large beside
      what a window remembers would never be otherwise;
    * so is a push while a sample as large as the last one asked for would be refused, or
      both sides could wait for each other.

    Config:
        max: >= ``min`` and > 0, the most rows pushed per row sampled; ``.inf``: no bound.
        min: >= 0 and finite, the fewest.
        window_seconds: > 0, seconds in which a count decays to 1 %.
        sample_min_limit_ratio: >= 1, rows that a sample needs in the buffer, by its size.

    Args:
        cfg: The ``limiter`` section of the buffer's config.
        clock: Seconds, monotonic.
    """

    config: ClassVar[dict[str, Any]] = {
        "type": "push_sample_rate",
        "max": math.inf,
        "min": 0.0,
        "window_seconds": 30.0,
        "sample_min_limit_ratio": 1.0,
    }

    def __init__(self, cfg: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(cfg)
        self._max = _read_bound(cfg, "max")
        self._min = _read_bound(cfg, "min")
        if not (self._min <= self._max and self._max > 0 and math.isfinite(self._min)):
            raise ConfigError(
                f"limiter.min and limiter.max are {self._min} and {self._max}; they bound rows "
                "pushed per row sampled, so 0 <= min <= max, max > 0 and min is finite",
                path="limiter.max",
            )
        self._window_s = read_positive(cfg, "window_seconds", self.config, "limiter")
        self._fill = read_positive(cfg, "sample_min_limit_ratio", self.config, "limiter")
        if self._fill < 1:
            raise ConfigError(
                f"limiter.sample_min_limit_ratio is {self._fill}; it counts rows in the buffer "
                "per row of a sample, so it is at least 1",
                path="limiter.sample_min_limit_ratio",
                least=1,
            )
        self._clock = clock
        self._last_asked = 0
        self._start_window(0.0, 0.0)

    def can_insert(self, n: int) -> bool:
        self._decay()
        if self._recent_samples < _FORGOTTEN:
            return True
        if self._recent_inserts + n <= self._max * self._recent_samples:
            return True
        since = self.samples - self._samples_at_insert
        if self._recent_inserts < _FORGOTTEN and n <= self._max * since:
            return True
        return not self._admits_sample(self._last_asked)

    def can_sample(self, n: int) -> bool:
        self._last_asked = n
        self._decay()
        return self._admits_sample(n)

    def _admits_sample(self, n: int) -> bool:
        if self.size < self._fill * n:
            return False
        if self._recent_inserts >= self._min * (self._recent_samples + n):
            return True
        since = self.inserts - self._inserts_at_sample
        return self._recent_samples < _FORGOTTEN and since >= self._min * n

    def retry_after_s(self) -> float | None:
        # Both counts decay alike, which leaves their ratio: time admits nothing before one of
        # them is forgotten.
        self._decay()
        known = [n for n in (self._recent_inserts, self._recent_samples) if n >= _FORGOTTEN]
        if not known:
            return None
        return self._window_s * math.log(min(known) / _FORGOTTEN) / math.log(100) + 1e-6

    def on_insert(self, n: int) -> None:
        super().on_insert(n)
        self._decay()
        self._recent_inserts += n
        self._samples_at_insert = self.samples

    def on_sample(self, n: int) -> None:
        super().on_sample(n)
        self._decay()
        self._recent_samples += n
        self._inserts_at_sample = self.inserts

    def reset(self) -> None:
        super().reset()
        self._start_window(0.0, 0.0)

    def state_dict(self) -> dict[str, Any]:
        self._decay()
        since = self._inserts_at_sample, self._samples_at_insert, self._last_asked
        return {
            **super().state_dict(),
            "recent_inserts": self._recent_inserts,
            "recent_samples": self._recent_samples,
            **dict(zip(_SINCE, since, strict=True)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        recent = [state.get(name, 0.0) for name in ("recent_inserts", "recent_samples")]
        for count in recent:
            number = isinstance(count, (int, float)) and not isinstance(count, bool)
            if not (number and math.isfinite(count) and count >= 0):
                raise CheckpointCorruptError(f"limiter counters are wrong: {dict(state)!r:.200}")
        since = read_counts(state, dict.fromkeys(_SINCE, 0))
        super().load_state_dict(state)
        self._start_window(*recent)
        if all(name in state for name in _SINCE):
            self._inserts_at_sample, self._samples_at_insert, self._last_asked = since

    def _start_window(self, inserts: float, samples: float) -> None:
        self._since_s = self._clock()
        self._recent_inserts, self._recent_samples = float(inserts), float(samples)
        self._inserts_at_sample, self._samples_at_insert = self.inserts, self.samples

    def _decay(self) -> None:
        now_s = self._clock()
        factor = 0.01 ** ((now_s - self._since_s) / self._window_s)
        self._since_s = now_s
        self._recent_inserts *= factor
        self._recent_samples *= factor


def _read_bound(cfg: Mapping[str, Any], key: str) -> float:
    value = cfg.get(key, PushSampleRateLimiter.config[key])
    path = f"limiter.{key}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigTypeError(
            f"{path} must be a number >= 0, found {value!r} ({type(value).__name__})",
            path=path,
            expected="a number >= 0",
            found=type(value).__name__,
        )
    if not value >= 0:
        raise ConfigError(f"{path} must be a number >= 0, found {value}", path=path)
    return float(value)
