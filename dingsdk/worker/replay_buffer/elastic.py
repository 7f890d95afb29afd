"""The buffer whose window of sampled rows grows and shrinks while training goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from dingsdk.config import check_known_keys
from dingsdk.data import SampleBatch
from dingsdk.errors import CheckpointCorruptError, ConfigError
from dingsdk.worker.replay_buffer.naive import NaiveReplayBuffer
from dingsdk.worker.replay_buffer.requests import checked_size
from dingsdk.worker.replay_buffer.sampler import Sampler
from dingsdk.worker.replay_buffer.settings import read_count

Schedule = Callable[[int], int]
"""Env steps collected so far -> number of newest rows to sample among."""


class ElasticReplayBuffer(NaiveReplayBuffer):
    """Samples uniformly among a number of newest rows that a schedule says (type ``elastic``).

    All rows up to the capacity are kept, so a window that grows again finds the older ones.

    Config:
        set_buffer_size: What the window is: a function of the env steps, a number of rows, or
            ``{start, end, steps}``, which moves linearly from ``start`` rows to ``end`` within
            ``steps`` env steps. None: the capacity. More than the capacity means the capacity.

    The rest is as in :class:`NaiveReplayBuffer`. Source: DI-engine's ``ElasticReplayBuffer``.
    Differences: numbers and linear schedules, which a config file can hold; :meth:`push` moves
    the window on as :meth:`update` does.
    """

    config: ClassVar[dict[str, Any]] = {"type": "elastic", "set_buffer_size": None}

    def _configure(self, cfg: Mapping[str, Any]) -> Mapping[str, Any]:
        self._schedule = _schedule(cfg.get("set_buffer_size"))
        self._envstep = 0
        return cfg

    def _begin(self) -> None:
        self._window = self._window_at(0)
        super()._begin()

    @property
    def window(self) -> int:
        """How many of the newest rows are sampled among, at most."""
        return self._window

    def push(self, data: Any, cur_collector_envstep: int, timeout_s: float | None = None) -> None:
        """Add rows as the plain buffer does; the window follows the env steps."""
        super().push(data, cur_collector_envstep, timeout_s)
        if cur_collector_envstep > self._envstep:
            self.update(cur_collector_envstep)

    def update(self, info: Any) -> None:
        """Set the window to what the schedule says for an env step.

        Args:
            info: Env steps collected so far, >= 0. A mapping, which carries priorities, is for
                other buffers and changes nothing here.

        Raises:
            ConfigTypeError: it is neither.
            ConfigError: the schedule gives no size >= 1; the window stays.
            BufferClosedError: the buffer is closed.
        """
        if isinstance(info, Mapping):
            super().update(info)
            return
        envstep = checked_size(info, "the argument of an elastic buffer's update")
        window = self._window_at(envstep)
        with self._lock:
            self._check_open()
            self._envstep, self._window = envstep, window
            self._gate.wake()

    def sample(
        self,
        size: int,
        cur_learner_iter: int,
        sample_range: slice | None = None,
        replace: bool = False,
        timeout_s: float | None = None,
    ) -> SampleBatch | list[Any] | None:
        """Return ``size`` rows drawn among the newest; see :meth:`NaiveReplayBuffer.sample`.

        Raises:
            ConfigError: a ``sample_range`` is given: the window is the range.
        """
        if sample_range is not None:
            raise ConfigError(
                "an elastic buffer takes no sample_range, as its window is one; use type naive",
                path="sample_range",
            )
        return super().sample(size, cur_learner_iter, None, replace, timeout_s)

    def _ages(self, sample_range: slice | None) -> range | None:
        count = self._remover.count
        return None if self._window >= count else range(count - self._window, count)

    def _window_at(self, envstep: int) -> int:
        size = checked_size(self._schedule(envstep), f"set_buffer_size({envstep})", least=1)
        return min(size, self._capacity)

    def _extra_state(self) -> dict[str, Any]:
        return {"envstep": self._envstep}

    def _check_extra_state(
        self, state_dict: Mapping[str, Any], sampler: Sampler
    ) -> Callable[[], None]:
        envstep = state_dict.get("envstep")
        if type(envstep) is not int or envstep < 0:
            raise CheckpointCorruptError(f"envstep is {envstep!r}; expected a number >= 0")
        window = self._window_at(envstep)

        def apply() -> None:
            self._envstep, self._window = envstep, window

        return apply


def _schedule(setting: Any) -> Schedule:
    """Return the function that a ``set_buffer_size`` setting stands for."""
    if setting is None:
        return lambda envstep: sys.maxsize
    if callable(setting):
        return cast(Schedule, setting)
    if isinstance(setting, Mapping):
        check_known_keys(setting, {"start": 0, "end": 0, "steps": 0}, path="set_buffer_size")
        start, end, steps = (
            read_count(setting, key, {}, "set_buffer_size") for key in ("start", "end", "steps")
        )
        return lambda envstep: start + (end - start) * min(envstep, steps) // steps
    size = read_count({"set_buffer_size": setting}, "set_buffer_size", {}, "")
    return lambda envstep: size
