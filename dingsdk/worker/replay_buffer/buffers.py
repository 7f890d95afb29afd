"""The buffers without priorities, each a subclass of :class:`Table`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from itertools import compress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Count, Part, Schedule, preset, read_section
from dingsdk.config.plain import join_key
from dingsdk.data import SampleBatch
from dingsdk.data.columns import leaves, map_columns
from dingsdk.errors import CheckpointCorruptError, ConfigError
from dingsdk.worker.replay_buffer.config import BufferSection, class_of_part
from dingsdk.worker.replay_buffer.interface import MASK, Drawn
from dingsdk.worker.replay_buffer.sampler import RowSampler, Sampler, check_ranks
from dingsdk.worker.replay_buffer.storage import Rows, Storage
from dingsdk.worker.replay_buffer.storage.episodes import EpisodeStorage
from dingsdk.worker.replay_buffer.table import Table, check_range, checked_size

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.row_metadata import RowMetadata

_log = logging.getLogger(__name__)


class NaiveReplayBuffer(Table):
    """A ring of rows, sampled uniformly (type ``naive``).

    Source: DI-engine's ``NaiveReplayBuffer``. Differences: rows are copied when they are pushed
    and sampled; ``sample_range`` counts by age; a state holds copies and the random state.

    Example:
        >>> buffer = NaiveReplayBuffer({"replay_buffer_size": 100, "seed": 0})
        >>> buffer.push([{"obs": np.zeros(4, np.float32), "reward": 1.0}], 1)
        >>> len(buffer.sample(1, 0))
        1
        >>> buffer.sample(2, 0) is None
        True
    """

    class Config(BufferSection, frozen=True, kw_only=True):
        """Section ``policy.other.replay_buffer`` of type ``naive``."""

        type: str = "naive"

    ignores_priorities = True

    _warned_of_update = False

    @classmethod
    def sampler_family(cls) -> type[Sampler]:
        return RowSampler

    def sample(
        self,
        size: int,
        cur_learner_iter: int,
        sample_range: slice | None = None,
        replace: bool = False,
        timeout_s: float | None = None,
    ) -> SampleBatch | list[Any] | None:
        """Return ``size`` rows drawn uniformly, as the caller's own copies.

        Args:
            size: Rows to draw, >= 0.
            cur_learner_iter: Unused here.
            sample_range: Draw only among these, by age: ``slice(-10, None)`` are the 10 newest.
            replace: Whether a row may be drawn more than once.
            timeout_s: Seconds to wait until the sample is possible; None: do not wait.

        Returns:
            A SampleBatch, or a list from object storage; ``[]`` for size 0; None if there
            are too few rows, or the limiter does not admit the sample (yet).

        Raises:
            ConfigError: the size is negative, the step of the range is 0, or the timeout is NaN
                (also a ValueError).
            ConfigTypeError: an argument is of the wrong type.
            BufferClosedError: the buffer is closed, or was closed during the wait.
        """
        size = checked_size(size)
        check_range(sample_range)
        return self._serve(size, timeout_s, self._draw, size, sample_range, replace)

    def _draw(self, size: int, sample_range: slice | None, replace: bool) -> Rows | None:
        ages, contents = self._ages(sample_range), self._contents
        population = contents.remover.count if ages is None else len(ages)
        if population < size and not (replace and population):
            return None
        ranks = cast(RowSampler, contents.sampler).draw(population, size, replace)
        if contents.checks_draws:
            check_ranks(ranks, population, size, contents.sampler)
        if ages is None:
            where = contents.remover.positions(ranks)
        else:
            where = contents.remover.by_age(ages.start + ages.step * ranks)
        self._sample_monitor.skip -= 1
        if self._sample_monitor.skip == 0:
            self._record_ages(where)
        return cast(Storage, contents.storage).take(where)

    def _record_ages(self, where: NDArray[np.int64]) -> None:
        newer = self._contents.remover.newer(where)
        self._sample_monitor.record({} if newer is None else {"age": newer})

    def _ages(self, sample_range: slice | None) -> range | None:
        """Return the ages of the rows to draw from, None for all."""
        return (
            None
            if sample_range is None
            else range(*sample_range.indices(self._contents.remover.count))
        )

    def update(self, info: Any) -> None:
        """Ignore priorities, which uniform sampling does not use; log one warning."""
        if not self._warned_of_update:
            self._warned_of_update = True
            _log.warning(
                "%s samples uniformly and ignores update(); use another buffer type for priorities",
                self.instance_name,
            )


class ElasticReplayBuffer(NaiveReplayBuffer):
    """Samples uniformly from the newest rows; a schedule sets how many (type ``elastic``).

    These rows are the *window*. All rows up to the capacity are kept, so a window that grows again
    includes older rows. A ``sample_range`` is refused, because the window already limits the rows.
    Source: DI-engine's ``ElasticReplayBuffer``. Differences: a config file can hold the schedule;
    :meth:`push` updates the window as :meth:`update` does.
    """

    class Config(NaiveReplayBuffer.Config, frozen=True, kw_only=True):
        """Section ``policy.other.replay_buffer`` of type ``elastic``.

        Attributes:
            set_buffer_size: Number of newest rows to sample from (the window): a number, a function
                of the env steps, or a schedule such as ``{start: 1000, end: 5000, env_steps:
                100000}``. None, or a number above the capacity, means the capacity.
        """

        type: str = "elastic"
        set_buffer_size: Any = None

    ignores_priorities = True

    def __init__(self, cfg: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        self._schedule = _schedule(self._cfg.set_buffer_size)
        self._envstep = 0
        self._size = self._size_at(0)

    @classmethod
    def check_config(cls, section: Mapping[str, Any], path: str) -> None:
        """Check the parts and the schedule of the window.

        Raises:
            ConfigError: a part does not fit, or the setting is not a valid schedule.
        """
        super().check_config(section, path)
        _schedule(section["set_buffer_size"], join_key(path, "set_buffer_size"))

    @property
    def window(self) -> int:
        """The most rows to sample from, counted from the newest."""
        return min(self._size, self._capacity)

    def push(self, data: Any, cur_collector_envstep: int, timeout_s: float | None = None) -> None:
        """Add rows as :class:`NaiveReplayBuffer` does, and update the window to the env steps.

        Raises also as :meth:`update`; then nothing was pushed.
        """
        envstep = checked_size(cur_collector_envstep, "cur_collector_envstep")
        size = self._size_at(max(envstep, self._envstep))  # if this raises, nothing is pushed
        super().push(data, cur_collector_envstep, timeout_s)
        with self._change():
            # Another thread may have pushed with more env steps.
            if envstep > self._envstep:
                self._envstep, self._size = envstep, size

    def update(self, info: Any) -> None:
        """Set the window to the size that the schedule gives for a number of env steps.

        Args:
            info: Env steps collected so far, >= 0. A mapping (of priorities, which other buffers
                use) is ignored.

        Raises:
            ConfigTypeError: ``info`` is neither.
            ConfigError: the schedule gives no size >= 1; the window is unchanged.
            BufferClosedError: the buffer is closed.
        """
        if isinstance(info, Mapping):
            super().update(info)
            return
        envstep = checked_size(info, "the argument of an elastic buffer's update")
        size = self._size_at(envstep)
        with self._change():
            self._envstep, self._size = envstep, size

    def _ages(self, sample_range: slice | None) -> range | None:
        if sample_range is not None:
            raise ConfigError(
                "an elastic buffer takes no sample_range, as its window is one; use type naive",
                path="sample_range",
            )
        count = self._contents.remover.count
        return None if self._size >= count else range(count - self._size, count)

    def _size_at(self, envstep: int) -> int:
        return checked_size(self._schedule(envstep), f"set_buffer_size({envstep})", least=1)

    def _extra_state(self) -> dict[str, Any]:
        return {"envstep": self._envstep}

    def _load_extra_state(
        self, state: Mapping[str, Any], sampler: Sampler, metadata: RowMetadata | None
    ) -> None:
        envstep = state.get("envstep")
        if type(envstep) is not int or envstep < 0:
            raise CheckpointCorruptError(f"envstep is {envstep!r}; expected a number >= 0")
        self._envstep, self._size = envstep, self._size_at(envstep)


def _schedule(setting: Any, path: str = "set_buffer_size") -> Callable[[int], float]:
    """Return the function that a ``set_buffer_size`` setting stands for."""
    if setting is None:
        return lambda envstep: sys.maxsize
    if callable(setting):
        return cast(Callable[[int], float], setting)
    if isinstance(setting, Mapping):
        schedule = read_section(Schedule, setting, path)
        for key, value in schedule.extremes.items():
            checked_size(round(value), f"{path}.{key}", least=1)
        return lambda envstep: round(schedule(envstep))
    size = checked_size(setting, path, least=1)
    return lambda envstep: size


class SequenceReplayBuffer(NaiveReplayBuffer):
    """A ring of rows that returns sequences of consecutive ones (type ``sequence``).

    Everything else is as in :class:`NaiveReplayBuffer`. Push the steps of a trajectory in a row;
    do not interleave the rows of several envs. Source: DI-engine's
    ``SequenceReplayBuffer``. Differences: a sequence never crosses the end of a trajectory; blocks
    of fixed length are used only for rows without ``done``; columns are arrays ``[batch, time]``.

    Example:
        >>> buffer = SequenceReplayBuffer({"replay_buffer_size": 100, "seed": 0})
        >>> buffer.push([{"x": i, "done": i == 9} for i in range(20)], 20)
        >>> buffer.sample(2, 4, 0).columns["x"].shape
        (2, 4)
    """

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"sequences", "parts", "saves"})

    class Config(NaiveReplayBuffer.Config, frozen=True, kw_only=True):
        """Section ``policy.other.replay_buffer`` of type ``sequence``.

        Attributes:
            sequence_length: Rows of a sequence if ``sample`` is called without a length.
        """

        type: str = "sequence"
        sequence_length: Count = 32
        sampler: Annotated[dict[str, Any], Part("samplers")] = preset("sequence")

    needs_fifo: ClassVar[bool] = True
    draws: ClassVar[Drawn] = "sequences"

    @classmethod
    def sampler_family(cls) -> type[Sampler]:
        # Imported here, because importing compiled code is slow and no other buffer needs it.
        from dingsdk.worker.replay_buffer.sampler.sequence import SequenceSampler

        return SequenceSampler

    def sample(  # type: ignore[override]
        self,
        batch: int,
        sequence: int | None = None,
        cur_learner_iter: int = 0,
        sample_range: slice | None = None,
        replace: bool = False,
        timeout_s: float | None = None,
    ) -> SampleBatch | list[Any] | None:
        """Return ``batch`` sequences; every valid start is equally likely, and starts may repeat.

        Args:
            batch: Number of sequences, >= 0.
            sequence: Rows of each sequence, >= 1; None: ``sequence_length`` of the config.
            cur_learner_iter: Unused here.
            sample_range: Not supported.
            replace: Whether to sample even if the buffer holds fewer than ``batch * sequence``
                rows.
            timeout_s: Seconds to wait until the sample is possible; None: do not wait.

        Returns:
            A SampleBatch of columns ``[batch, burn_in + sequence, ...]``, with a column ``mask``
            ``[batch, burn_in + sequence]`` if steps were padded. Object storage gives a list of
            lists, without the padded steps. ``[]`` if ``batch`` is 0. None if there are too few
            rows, no start is valid, or the limiter does not admit the sample, which counts as
            ``batch * sequence`` rows.

        Raises:
            NotImplementedError: a ``sample_range`` is given.
            ConfigError: a number is too small, or the timeout is NaN (also a ValueError).
            ConfigTypeError: an argument is of the wrong type.
            BufferClosedError: the buffer is closed, or was closed during the wait.
        """
        if sample_range is not None:
            raise NotImplementedError("a sequence buffer takes no sample_range")
        batch = checked_size(batch)
        length = self._sequence_length(sequence)
        size = batch * length
        return self._serve(size, timeout_s, self._draw_sequences, batch, length, replace)

    def can_sample(self, n: int) -> bool:
        """Whether there are enough rows for ``n`` sequences of the configured length."""
        return super().can_sample(checked_size(n) * self._sequence_length(None))

    def count_starts(self, sequence: int | None = None) -> int:
        """Return how many sequences of that length could be drawn; reads every row."""
        length = self._sequence_length(sequence)
        with self._lock:
            self._check_open()
            starts: int = self._contents.sampler.count_starts(length)  # type: ignore[attr-defined]
            return starts

    def _sequence_length(self, sequence: int | None) -> int:
        if sequence is None:
            return int(self._cfg.sequence_length)
        return checked_size(sequence, "a sequence", 1)

    def _draw_sequences(
        self, batch: int, length: int, replace: bool
    ) -> SampleBatch | list[Any] | None:
        contents, count = self._contents, self._contents.remover.count
        if count == 0 or (count < batch * length and not replace):
            return None
        windows = contents.sampler.draw(batch, length)  # type: ignore[attr-defined]
        if windows is None:
            return None
        where, mask = windows
        self._sample_monitor.skip -= 1
        if self._sample_monitor.skip == 0:
            self._record_ages(where.reshape(-1))
        rows = cast(Storage, contents.storage).take(where.reshape(-1))
        if isinstance(rows, SampleBatch):
            shape = where.shape
            columns = map_columns(lambda a: a.reshape(*shape, *a.shape[1:]), rows.columns)
            if mask is not None:
                for _, array in leaves(columns):
                    array[~mask] = 0
                columns[MASK] = mask
            return SampleBatch.trusted(columns, batch)
        steps = where.shape[1]
        grid = [rows[start : start + steps] for start in range(0, len(rows), steps)]
        if mask is None:
            return grid
        return [list(compress(*pair)) for pair in zip(grid, mask.tolist(), strict=True)]


class EpisodeReplayBuffer(NaiveReplayBuffer):
    """A ring of whole episodes, sampled uniformly (type ``episode``).

    An episode is a list of rows, or a SampleBatch of them. An episode whose rows are dicts of
    numbers and arrays is returned as a SampleBatch, any other as a list. ``push`` takes a list of
    episodes: push one list of rows as ``push([episode], envstep)``.

    The capacity is in episodes, which may have different columns. Source: DI-engine's
    ``EpisodeReplayBuffer``.

    Example:
        >>> buffer = EpisodeReplayBuffer({"replay_buffer_size": 10})
        >>> buffer.push([[{"x": 0}, {"x": 1}], [{"x": 2}]], 3)
        >>> buffer.episode_len
        [2, 1]
    """

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"episodes", "parts", "saves"})

    class Config(NaiveReplayBuffer.Config, frozen=True, kw_only=True):
        """Section ``policy.other.replay_buffer`` of type ``episode``."""

        type: str = "episode"

    draws: ClassVar[Drawn] = "episodes"

    @property
    def episode_len(self) -> list[int]:
        """Rows of each episode, oldest first."""
        with self._lock:
            self._check_open()
            where = self._contents.remover.oldest_first()
            storage = cast(Storage, self._contents.storage)
            return [len(storage.take(where[i : i + 1])[0]) for i in range(len(where))]

    def push(self, data: Any, cur_collector_envstep: int, timeout_s: float | None = None) -> None:
        """Add a list of episodes, or one episode as a SampleBatch; else as for other buffers.

        Raises:
            SchemaMismatchError: an element is not an episode, or is empty; nothing was pushed.
        """
        super().push(data if type(data) is list else [data], cur_collector_envstep, timeout_s)

    @classmethod
    def check_config(cls, section: Mapping[str, Any], path: str) -> None:
        """Check the parts, and that the storage holds objects, as episodes are.

        Raises:
            ConfigError: a part does not fit.
        """
        super().check_config(section, path)
        storage, kind, key = class_of_part(section, "storage", path)
        if not getattr(storage, "holds_objects", True):
            raise ConfigError(
                f"{key} {kind!r} stores single rows in columns, and this type of buffer stores "
                "episodes; choose object",
                path=key,
            )

    def _new_storage(self, kind: str | None = None) -> Storage:
        kind = None if kind is None else "object"  # also of episodes whose rows suit columns
        return EpisodeStorage(super()._new_storage(kind), self._capacity)
