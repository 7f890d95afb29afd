"""The config section of a buffer, and the parts that are made from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, cast

from dingsdk.config import (
    Count,
    Part,
    PartSection,
    Positive,
    Section,
    Seed,
    complete,
    given_keys,
    preset,
)
from dingsdk.data.columns import join_key
from dingsdk.data.seeding import derive_seed
from dingsdk.errors import ConfigError, PluginLoadError, UnknownPluginError
from dingsdk.plugins import default_manager

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.limiter import Limiter
    from dingsdk.worker.replay_buffer.remover import Remover
    from dingsdk.worker.replay_buffer.sampler import Sampler
    from dingsdk.worker.replay_buffer.storage import Storage

PATH = "policy.other.replay_buffer"


class BufferSection(PartSection, frozen=True, kw_only=True):
    """Section ``policy.other.replay_buffer``.

    Attributes:
        replay_buffer_size: Capacity in rows (of an episode buffer: in episodes).
        deepcopy: Whether object storage deep-copies rows.
        enable_track_used_data: Whether to delete the file that a row names in ``data_id`` after
            the last row with that ``data_id`` has left.
        data_root: Folder of the files that ``enable_track_used_data`` deletes.
        periodic_thruput_seconds: Seconds between two logs of the throughput.
        seed: Seed of random choices; None takes one from the operating system.
        storage: Stores the rows. With ``auto``, the first push decides the type.
        sampler: Draws the rows of a sample.
        remover: Decides which rows leave a full buffer.
        limiter: Decides when rows may be pushed and sampled.
    """

    replay_buffer_size: Count = 10000
    deepcopy: bool = False
    enable_track_used_data: bool = False
    data_root: str | None = None
    periodic_thruput_seconds: Positive = 60.0
    seed: Seed | None = None
    storage: Annotated[dict[str, Any], Part("storages")] = preset("auto")
    sampler: Annotated[dict[str, Any], Part("samplers")] = preset("uniform")
    remover: Annotated[dict[str, Any], Part("removers")] = preset("fifo")
    limiter: Annotated[dict[str, Any], Part("limiters")] = preset("min_size", min_size=1)

    def __post_init__(self) -> None:
        if self.enable_track_used_data and not self.data_root:
            raise ValueError(
                f"data_root is {self.data_root!r}, but enable_track_used_data deletes the files "
                "<data_root>/<data_id> of rows that left: name the folder of these files"
            )


def bounds_rates(cfg: Mapping[str, Any]) -> bool:
    """Whether ``thruput_controller`` bounds pushes per sample."""
    limits = (cfg.get("thruput_controller") or {}).get("push_sample_rate_limit") or {}
    return bool(limits.get("max", math.inf) != math.inf or limits.get("min", 0) != 0)


def is_limited(cfg: Mapping[str, Any]) -> bool:
    """Whether a limiter of the buffer relates pushes to samples."""
    limiter = cfg.get("limiter") or {}
    return bool(limiter.get("type", "min_size") != "min_size" or bounds_rates(cfg))


def demonstrations_in(share: float | None, size: int) -> int:
    """Return how many rows of a batch of ``size`` rows are demonstrations."""
    return round((share or 0.0) * size)


def collected_in_batch(policy_cfg: Mapping[str, Any]) -> int:
    """Return how many samples of a batch come from the replay buffer of a compiled config."""
    share = (policy_cfg["other"].get("demonstrations") or {}).get("share")
    size = int(policy_cfg["learn"]["batch_size"])
    return size - demonstrations_in(share, size)


def class_of_part(section: Mapping[str, Any], part: str, path: str) -> tuple[Any, str, str]:
    """Return the class of a part, or None if it is not installed; its type key and their path."""
    given, kind, cls = section[part], f"{part}s", None
    with suppress(PluginLoadError, UnknownPluginError):
        cls = default_manager().get(kind, given["type"], given.get("import_names", ()))
    return cls, given["type"], join_key(path, f"{part}.type")


class PartFactory:
    """Makes the parts of a buffer from its config section, which has the type ``section``.

    Attributes:
        full: The config with all defaults, including the defaults of the parts.

    Raises:
        UnknownKeyError, ConfigTypeError, ConfigError: a key or value is not valid.
        UnknownPluginError: no plugin provides a type.
    """

    def __init__(self, section: type[Section], cfg: Mapping[str, Any]) -> None:
        self._section = section
        self.full = self._complete(cfg)
        self.capacity: int = self.full["replay_buffer_size"]

    def _complete(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        return complete(self._section, given_keys(cfg), default_manager().get)

    @property
    def chooses_storage(self) -> bool:
        """Whether the first push decides the type of the storage."""
        return bool(self.full["storage"]["type"] == "auto")

    @property
    def made_of(self) -> dict[str, str]:
        """The types of the buffer, its sampler and its remover; a saved state must match them."""
        types = {part: self.full[part]["type"] for part in ("sampler", "remover")}
        return {"buffer": self.full["type"], **types}

    def remover(self) -> Remover:
        """Make the remover."""
        seed = self._seed("remover")
        return cast("Remover", self._make("remover", self.full["remover"], self.capacity, seed))

    def limiter(self, section: Mapping[str, Any] | None = None) -> Limiter:
        """Make the limiter of the config, or of another ``limiter`` section."""
        full = self.full if section is None else self._complete({**self.full, "limiter": section})
        return cast("Limiter", self._make("limiter", full["limiter"], self._seed("limiter")))

    def sampler(self) -> Sampler:
        """Make the sampler."""
        seed = self._seed("sampler")
        return cast("Sampler", self._make("sampler", self.full["sampler"], self.capacity, seed))

    def storage(self, kind: str | None = None) -> Storage:
        """Make a storage of the type ``kind``, or of the type in the config."""
        section = self.full["storage"] if kind is None else {"type": kind}
        made = self._make("storage", section, self.capacity, self.full["deepcopy"])
        return cast("Storage", made)

    def _seed(self, part: str) -> int | None:
        seed = self.full["seed"]
        return None if seed is None else derive_seed(seed, part)

    def _make(self, part: str, section: Mapping[str, Any], *args: Any) -> Any:
        return default_manager().create(f"{part}s", section, *args, config_path=f"{PATH}.{part}")


def check_order(is_fifo: bool, what: str, kind: str, path: str) -> None:
    """Raise ConfigError if a remover is not first in, first out, as ``what`` needs it.

    ``path`` is that of its type key, ``kind``.
    """
    if not is_fifo:
        raise ConfigError(
            f"{what} needs rows to leave oldest first, and {path} {kind!r} lets them leave in "
            "another order; choose fifo",
            path=path,
        )


@contextmanager
def memory_for(capacity: int) -> Iterator[None]:
    """Raise ConfigError if the arrays of a buffer besides its rows do not fit in memory."""
    try:
        yield
    except MemoryError as error:
        path = f"{PATH}.replay_buffer_size"
        raise ConfigError(
            f"{path} is {capacity}: the counters and priorities of that many rows need more "
            f"memory than can be allocated ({error}); choose a smaller one",
            path=path,
            capacity=capacity,
        ) from error
