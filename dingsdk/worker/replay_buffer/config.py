"""The config section of a buffer, and the parts that are made from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from dingsdk.config import Count, Part, PartSection, Positive, Section, Seed, complete, preset
from dingsdk.data.seeding import derive_seed
from dingsdk.errors import ConfigError
from dingsdk.plugins import default_manager

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.limiter import Limiter
    from dingsdk.worker.replay_buffer.remover import Remover
    from dingsdk.worker.replay_buffer.sampler import Sampler
    from dingsdk.worker.replay_buffer.storage import Storage

_PATH = "policy.other.replay_buffer"


class BufferSection(PartSection, frozen=True, kw_only=True):
    """Section ``policy.other.replay_buffer``.

    Attributes:
        replay_buffer_size: Capacity in rows (of an episode buffer: in episodes).
        deepcopy: Whether object storage copies rows in depth.
        enable_track_used_data: Whether the files that rows name by ``data_id`` are deleted
            when the rows have left.
        data_root: Folder of the files that ``enable_track_used_data`` deletes.
        periodic_thruput_seconds: Seconds between two logs of the throughput.
        seed: Seed of random choices; None takes one from the operating system.
        storage: What keeps the rows; with ``auto`` the first push decides.
        sampler: What draws rows.
        remover: What decides which rows leave a full buffer.
        limiter: What decides when rows may be pushed and sampled.
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


class Parts:
    """Makes new parts from the section of a buffer, of type ``section``.

    Attributes:
        full: The config with all defaults, those of the parts included.

    Raises:
        UnknownKeyError, ConfigTypeError, ConfigError: a key or value that cannot work.
        UnknownPluginError: a type that nothing provides.
    """

    def __init__(self, section: type[Section], cfg: Mapping[str, Any]) -> None:
        self._section = section
        self.full = self._complete(cfg)
        self.capacity: int = self.full["replay_buffer_size"]

    def _complete(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        given = {key: value for key, value in cfg.items() if key != "cfg_type"}
        return complete(self._section, given, default_manager().get)

    @property
    def chooses_storage(self) -> bool:
        """Whether the first push decides the type of the storage."""
        return bool(self.full["storage"]["type"] == "auto")

    @property
    def made_of(self) -> dict[str, str]:
        """The types of the buffer and of those parts that give a saved state its meaning."""
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

    def sampler(self, family: type[Sampler]) -> Sampler:
        """Make the sampler; raise ConfigError where it is none of the family."""
        section = self.full["sampler"]
        sampler = self._make("sampler", section, self.capacity, self._seed("sampler"))
        if not isinstance(sampler, family):
            raise ConfigError(
                f"sampler.type {section['type']!r} is no {family.__name__}, which this type of "
                "buffer draws with; choose another sampler or buffer type",
                path=f"{_PATH}.sampler.type",
            )
        return sampler

    def storage(self, kind: str | None = None) -> Storage:
        """Make a storage of the type ``kind``, or the one of the config."""
        section = self.full["storage"] if kind is None else {"type": kind}
        made = self._make("storage", section, self.capacity, self.full["deepcopy"])
        return cast("Storage", made)

    def check_order(self, needs_fifo: bool, remover: Remover, what: str) -> None:
        """Raise ConfigError where ``needs_fifo``, and rows do not leave in the order they came."""
        if needs_fifo and not remover.is_fifo:
            raise ConfigError(
                f"{what} needs rows to leave oldest first, and remover.type "
                f"{self.full['remover']['type']!r} lets them leave in another order; choose fifo",
                path=f"{_PATH}.remover.type",
            )

    def _seed(self, part: str) -> int | None:
        seed = self.full["seed"]
        return None if seed is None else derive_seed(seed, part)

    def _make(self, part: str, section: Mapping[str, Any], *args: Any) -> Any:
        return default_manager().create(f"{part}s", section, *args, config_path=f"{_PATH}.{part}")
