"""The prioritized buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, cast

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from dingsdk.config import Count, Finite, NotNegative, Part, Positive, Section, Share, Whole, preset
from dingsdk.data import SampleBatch
from dingsdk.data.columns import join_key
from dingsdk.errors import CheckpointCorruptError, ConfigError, InvalidPriorityError
from dingsdk.worker.replay_buffer.config import BufferSection, bounds_rates
from dingsdk.worker.replay_buffer.metrics import SampleMonitor
from dingsdk.worker.replay_buffer.row_metadata import RowMetadata, read_update
from dingsdk.worker.replay_buffer.sampler import Sampler
from dingsdk.worker.replay_buffer.sampler.priority import LEAST_PRIORITY, PrioritySampler
from dingsdk.worker.replay_buffer.storage import Storage
from dingsdk.worker.replay_buffer.table import Table, check_range, checked_size


class RateLimitSection(Section, frozen=True, kw_only=True):
    """Section ``thruput_controller.push_sample_rate_limit``.

    Attributes:
        max: Most rows pushed per row sampled; infinity for no limit.
        min: Fewest rows pushed per row sampled.
    """

    max: NotNegative = math.inf
    min: NotNegative = 0.0


class ThruputControllerSection(Section, frozen=True, kw_only=True):
    """Section ``thruput_controller``.

    Attributes:
        push_sample_rate_limit: Limits on the rows pushed per row sampled in the window.
        window_seconds: Length of the window: seconds in which a count decays to 1 %.
        sample_min_limit_ratio: Rows that the buffer must hold for each row of a sample.
    """

    push_sample_rate_limit: RateLimitSection = RateLimitSection()
    window_seconds: Finite = 30.0
    sample_min_limit_ratio: Annotated[float, Meta(ge=1)] = 1.0


class SampledDataSection(Section, frozen=True, kw_only=True):
    """Section ``monitor.sampled_data_attr``.

    Attributes:
        average_range: Number of samples whose rows are averaged for one log.
        print_freq: Samples between two logs of the statistics of sampled rows.
    """

    average_range: Count = 5
    print_freq: Count = 200


class PeriodicThruputSection(Section, frozen=True, kw_only=True):
    """Section ``monitor.periodic_thruput``.

    Attributes:
        seconds: Seconds between two logs of the throughput. A value other than the default
            overrides ``periodic_thruput_seconds``.
    """

    seconds: Positive = 60.0


class MonitorSection(Section, frozen=True, kw_only=True):
    """Section ``monitor``.

    Attributes:
        sampled_data_attr: Statistics of sampled rows.
        periodic_thruput: Statistics of the throughput.
    """

    sampled_data_attr: SampledDataSection = SampledDataSection()
    periodic_thruput: PeriodicThruputSection = PeriodicThruputSection()


class AdvancedReplayBuffer(Table):
    """A ring of dicts, sampled by priority (type ``advanced``, also ``deque``).

    A row leaves when it is overwritten, was sampled ``max_use`` times, or is ``max_staleness``
    learner iterations old. :meth:`count` counts the rows that have not left. Rows that
    :meth:`load_data` pushes keep their saved priority and uses. :meth:`clear` resets the largest
    priority to 1, but not ``push_count`` and the next id.

    Source: Schaul et al. 2016, "Prioritized Experience Replay"; DI-engine's
    ``AdvancedReplayBuffer``, which has the same config keys. Differences:

    * pushed dicts are copied and never written to; pushing anything but dicts is an error;
    * ids are numbers; a push that the limiter refuses raises or waits, and no row is dropped;
    * ``sample_range`` counts by age, among the rows that have not left;
    * all stale rows leave, not only those older than the first fresh row.

    Example:
        >>> buffer = AdvancedReplayBuffer({"replay_buffer_size": 100, "seed": 0})
        >>> buffer.push(SampleBatch({"obs": np.zeros((8, 4), np.float32)}), 8)
        >>> batch = buffer.sample(4, 0)
        >>> info = {key: batch.columns[key] for key in ("replay_unique_id", "replay_buffer_idx")}
        >>> buffer.update({**info, "priority": [0.5, 2.0, 0.0, 1.0]})
        >>> buffer.sample(2, 1).columns["IS"].dtype
        dtype('float32')
    """

    class Config(BufferSection, frozen=True, kw_only=True):
        """Section ``policy.other.replay_buffer`` of type ``advanced``.

        Attributes:
            max_use: Times that a row is sampled before it leaves. The last batch may contain the
                row more often.
            max_staleness: Age at which a row leaves. The age is the ``cur_learner_iter`` given to
                ``sample`` minus the row's ``collect_iter`` (or ``policy_iter``).
            alpha: Priority exponent, used if the ``sampler`` section does not set ``alpha``.
            beta: Exponent of the importance weights at the start; see ``anneal_step``.
            anneal_step: Number of samples over which beta rises to 1; 0 keeps beta constant.
            sampler: Draws rows by their priority, or by the rank of their priority.
            thruput_controller: Limits on pushes per sample, and the rows needed to sample.
            monitor: How often statistics are logged.
        """

        type: str = "advanced"
        replay_buffer_size: Count = 4096
        max_use: Annotated[float, Meta(ge=1)] = math.inf
        max_staleness: Annotated[float, Meta(ge=1)] = math.inf
        alpha: Share = 0.6
        beta: Share = 0.4
        anneal_step: Whole = 100_000
        sampler: Annotated[dict[str, Any], Part("samplers")] = preset("proportional")
        thruput_controller: ThruputControllerSection = ThruputControllerSection()
        monitor: MonitorSection = MonitorSection()

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.max_use != math.inf and not self.max_use.is_integer():
                raise ValueError(f"max_use is {self.max_use}; it counts samples, so it is whole")

    clear_resets_push_count: ClassVar[bool] = False

    def __init__(self, cfg: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        self._beta: float = self._cfg.beta
        self._beta_step = (1 - self._beta) / self._cfg.anneal_step if self._cfg.anneal_step else 0.0
        # Every sample reads these; looking them up in the config sections would take longer.
        self._rows_per_sampled: float = self._cfg.thruput_controller.sample_min_limit_ratio
        self._has_stale_rows = self._cfg.max_staleness < math.inf
        self._max_use: float = self._cfg.max_use

    @classmethod
    def sampler_family(cls) -> type[Sampler]:
        return PrioritySampler

    @classmethod
    def _configured(cls, full: dict[str, Any]) -> dict[str, Any]:
        sampler, controller = full["sampler"], full["thruput_controller"]
        if "alpha" in sampler and sampler["alpha"] is None:
            full["sampler"] = {**sampler, "alpha": full["alpha"]}
        if bounds_rates(full):
            window = {key: controller[key] for key in ("window_seconds", "sample_min_limit_ratio")}
            limits = controller["push_sample_rate_limit"]
            full["limiter"] = {"type": "push_sample_rate", **limits, **window}
        seconds = full["monitor"]["periodic_thruput"]["seconds"]
        if seconds != PeriodicThruputSection().seconds:
            full["periodic_thruput_seconds"] = seconds
        return full

    @classmethod
    def check_config(cls, section: Mapping[str, Any], path: str) -> None:
        """Check the parts, and that not both ``limiter`` and ``thruput_controller`` limit a rate.

        Raises:
            ConfigError: a part does not fit, or both do.
        """
        super().check_config(section, path)
        kind = section["limiter"]["type"]
        if bounds_rates(section) and kind not in ("min_size", "push_sample_rate"):
            key = join_key(path, "thruput_controller.push_sample_rate_limit")
            raise ConfigError(
                f"{key} bounds pushes per sample, and limiter.type is {kind!r}: a buffer has one "
                "limiter; remove one of them",
                path=key,
            )

    def _new_metadata(self) -> RowMetadata:
        return RowMetadata(self._capacity, self._cfg.max_use, self._cfg.max_staleness)

    def _new_sample_monitor(self, tb_logger: Any) -> SampleMonitor:
        attr = self._cfg.monitor.sampled_data_attr
        return SampleMonitor(self.instance_name, attr.average_range, attr.print_freq, tb_logger)

    @property
    def alpha(self) -> float:
        """The exponent of priorities."""
        return float(getattr(self._contents.sampler, "alpha", self._cfg.alpha))

    @property
    def beta(self) -> float:
        """The exponent of the importance weights of the next sample; settable."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        if not (isinstance(value, int | float | np.number) and 0 <= value <= 1):
            raise ConfigError(f"beta must be in [0, 1], found {value!r:.80}", path="beta")
        self._beta = float(value)

    def update(self, info: Mapping[str, Any]) -> None:
        """Set the priorities of sampled rows.

        Args:
            info: ``priority`` (numbers >= 0), and ``replay_unique_id`` and ``replay_buffer_idx``
                from the sample: lists, arrays or tensors of equal length. Without ``priority``
                nothing happens. Rows that have left are skipped. If a row has several priorities,
                the last one is used. 1e-5 is added to each.

        Raises:
            InvalidPriorityError: one of the entries is malformed; no priority was changed.
            BufferClosedError: the buffer is closed.
        """
        if not isinstance(info, (dict, Mapping)):
            raise InvalidPriorityError(
                f"an update is a mapping of lists, found {type(info).__name__}",
                key="",
                found=type(info).__name__,
            )
        if info.get("priority") is None:
            return
        priorities, ids, where = read_update(info)
        with self._lock:
            if self._closed:
                self._check_open()
            contents = self._contents
            metadata = cast(RowMetadata, contents.metadata)
            where, priorities = metadata.find(where, ids, priorities, LEAST_PRIORITY)
            if len(where):
                cast(PrioritySampler, contents.sampler).assign(where, priorities)
                for copied in contents.copies:
                    copied.note(where)

    def sample(
        self,
        size: int,
        cur_learner_iter: int,
        sample_range: slice | None = None,
        timeout_s: float | None = None,
    ) -> SampleBatch | list[Any] | None:
        """Return ``size`` rows drawn by priority, as the caller's own copies.

        Each row has the extra keys ``replay_unique_id``, ``replay_buffer_idx``, ``IS`` (its
        importance weight, in (0, 1]), ``priority``, ``use`` (times sampled, including this time)
        and ``staleness`` (iterations; -1 if unknown). A row may be drawn more than once.

        Args:
            size: Rows to draw, >= 0.
            cur_learner_iter: Iteration of the learner, >= 0, to compute the staleness.
            sample_range: Draw only among these, by age: ``slice(-10, None)`` are the 10 newest.
            timeout_s: Seconds to wait until the sample is possible; None: do not wait.

        Returns and raises as the ``sample`` of :class:`NaiveReplayBuffer`.
        """
        size = checked_size(size)
        learner_iter = checked_size(cur_learner_iter, "cur_learner_iter")
        check_range(sample_range)
        return self._serve(size, timeout_s, self._draw, size, learner_iter, sample_range)

    def _draw(
        self, size: int, learner_iter: int, sample_range: slice | None
    ) -> SampleBatch | list[Any] | None:
        contents = self._contents
        metadata = cast(RowMetadata, contents.metadata)
        if self._has_stale_rows:
            stale = metadata.take_stale(learner_iter)
            if len(stale):
                contents.remove(stale, "stale")
                if not contents.limiter.can_sample(size):
                    return None  # the limiter was asked before these rows left
        among = None
        if metadata.live < size * self._rows_per_sampled:
            return None
        sampler = cast(PrioritySampler, contents.sampler)
        if sample_range is None and sampler.draws_oldest:
            sample_range = slice(size)
        if sample_range is not None:
            among = self._by_age(sample_range)
            if len(among) == 0:
                return None
        where = sampler.draw(size, among)
        # Read now, while the entries that the draw read are still in the CPU cache.
        priorities = sampler.priorities(where)
        weights = sampler.importance(where, self._beta)
        batch = cast(Storage, contents.storage).take(where)
        ids, uses, staleness = metadata.serve(where, learner_iter)
        for copied in contents.copies:
            copied.note(where)
        added: dict[str, NDArray[Any]] = {
            "replay_unique_id": ids,
            "replay_buffer_idx": where,
            "IS": weights,
            "priority": priorities,
            "use": uses,
            "staleness": staleness,
        }
        self._sample_monitor.skip -= 1
        if self._sample_monitor.skip == 0:
            facts = {key: added[key] for key in ("use", "priority", "staleness")}
            facts["age"] = metadata.next_id - 1 - ids
            self._sample_monitor.record(facts)
        if self._max_use < math.inf and uses.max() >= self._max_use:
            contents.use_up(where)
        self._beta = min(1.0, self._beta + self._beta_step)
        if isinstance(batch, SampleBatch):
            return SampleBatch.trusted({**batch.columns, **added}, size)
        values = zip(*(column.tolist() for column in added.values()), strict=True)
        for row, each in zip(batch, values, strict=True):
            row.update(zip(added, each, strict=True))
        return batch

    def _by_age(self, sample_range: slice) -> NDArray[np.int64]:
        """Return the positions of a range of the rows that have not left."""
        contents, count = self._contents, self._contents.remover.count
        if contents.count < count:
            living = contents.living_at(contents.remover.oldest_first())
            return cast("NDArray[np.int64]", living)[sample_range]
        return contents.remover.by_age(np.arange(*sample_range.indices(count), dtype=np.int64))

    def _extra_state(self) -> dict[str, Any]:
        return {"beta": self._beta}

    def _load_extra_state(
        self, state: Mapping[str, Any], sampler: Sampler, metadata: RowMetadata | None
    ) -> None:
        beta = state.get("beta")
        if not (isinstance(beta, float) and 0 <= beta <= 1):
            raise CheckpointCorruptError(f"beta is {beta!r}; expected a number in [0, 1]")
        positions = np.arange(state["valid_count"], dtype=np.int64)
        living = cast("NDArray[np.int64]", cast(RowMetadata, metadata).living(positions))
        sampler = cast(PrioritySampler, sampler)
        if sampler.drawable != len(living) or not np.all(sampler.priorities(living) > 0):
            raise CheckpointCorruptError("the priorities and the rows of the state do not match")
        self._beta = beta


class QueueReplayBuffer(AdvancedReplayBuffer):
    """A queue: each row is sampled once, in order of arrival (type ``queue``).

    The learner waits for a full batch. With the limiter ``samples_per_insert``, collectors wait
    while about one and a half batches are ready; ``limiter.error_buffer`` sets another number of
    rows. For policies that correct for the age of their samples, such as those with V-trace.

    Example:
        >>> buffer = QueueReplayBuffer({"replay_buffer_size": 100})
        >>> buffer.push(SampleBatch({"obs": np.arange(5)}), 5)
        >>> buffer.sample(3, 0).columns["obs"].tolist()
        [0, 1, 2]
        >>> buffer.sample(3, 0) is None
        True
    """

    # The rules of the kit sample rows again and again, which is left to ``max_use`` here.
    contract_config: ClassVar[Mapping[str, Any]] = {
        "max_use": 1e9,
        "limiter": {"type": "min_size"},
    }
    contract_capabilities: ClassVar[frozenset[str]] = frozenset(
        {"columns", "fifo", "own_law", "parts", "saves"}
    )

    class Config(AdvancedReplayBuffer.Config, frozen=True, kw_only=True):
        """Section ``policy.other.replay_buffer`` of type ``queue``."""

        type: str = "queue"
        max_use: Annotated[float, Meta(ge=1)] = 1
        sampler: Annotated[dict[str, Any], Part("samplers")] = preset("oldest")
        limiter: Annotated[dict[str, Any], Part("limiters")] = preset("samples_per_insert")
