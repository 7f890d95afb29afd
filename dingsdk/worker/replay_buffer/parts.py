"""From a buffer's config to the parts it is made of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from dingsdk.config import check_known_keys, deep_merge_dicts
from dingsdk.errors import ConfigError
from dingsdk.plugins import default_manager
from dingsdk.worker.replay_buffer.limiter import Limiter
from dingsdk.worker.replay_buffer.remover import Remover
from dingsdk.worker.replay_buffer.sampler import Sampler
from dingsdk.worker.replay_buffer.settings import (
    read_count,
    read_flag,
    read_positive,
    read_seed,
)
from dingsdk.worker.replay_buffer.storage import Storage

_PARTS = ("storage", "sampler", "remover", "limiter")
_PATH = "policy.other.replay_buffer"


class Parts:
    """The checked settings of a buffer, and fresh parts built from them on request.

    Args:
        defaults: The whole default config of the buffer class.
        cfg: What the user gives over it.
        sampler_family: The class that the sampler has to be of.

    Raises:
        UnknownKeyError: a key that nothing reads.
        ConfigError, ConfigTypeError: a value that cannot work.
    """

    def __init__(
        self,
        defaults: Mapping[str, Any],
        cfg: Mapping[str, Any],
        sampler_family: type[Sampler] = Sampler,
    ) -> None:
        self._defaults = defaults
        self._cfg = _complete(defaults, cfg)
        self._sampler_family = sampler_family
        self.capacity = read_count(self._cfg, "replay_buffer_size", {}, "")
        self.deepcopy = read_flag(self._cfg, "deepcopy")
        self.seed = read_seed(self._cfg)
        self.period_s = read_positive(self._cfg, "periodic_thruput_seconds", {}, "")
        self.chooses_storage = self._cfg["storage"]["type"] == "auto"
        self.data_root = _read_data_root(self._cfg)

    @property
    def made_of(self) -> dict[str, str]:
        """The types of the buffer and of those parts that give a saved state its meaning."""
        parts = {part: self._cfg[part]["type"] for part in ("sampler", "remover")}
        return {"buffer": self._defaults.get("type", ""), **parts}

    def remover(self) -> Remover:
        """Create the remover.

        Raises:
            ConfigError: the storage needs one that reuses the oldest positions first.
        """
        remover = cast(Remover, self._create("removers", self._cfg["remover"], self.capacity))
        if self._cfg["storage"].get("next_of") and not remover.reuses_oldest_first:
            raise ConfigError(
                f"storage.next_of needs a remover that lets the oldest rows go first, which "
                f"{self._cfg['remover']['type']!r} does not; choose fifo, or leave next_of out",
                path=f"{_PATH}.remover.type",
            )
        return remover

    def limiter(self, section: Mapping[str, Any] | None = None) -> Limiter:
        """Create the limiter of the config, or of another ``limiter`` section."""
        if section is None:
            section = self._cfg["limiter"]
        else:
            section = _complete(self._defaults, {"limiter": section})["limiter"]
        return cast(Limiter, self._create("limiters", section))

    def sampler(self) -> Sampler:
        """Create the sampler.

        Raises:
            ConfigError: it is none that this kind of buffer can draw with.
        """
        sampler = self._create("samplers", self._cfg["sampler"], self.capacity, self.seed)
        family = self._sampler_family
        if not isinstance(sampler, family):
            raise ConfigError(
                f"sampler.type {self._cfg['sampler']['type']!r} is no {family.__name__}, which "
                "this type of buffer draws with; choose another sampler or buffer type",
                path=f"{_PATH}.sampler.type",
            )
        return sampler

    def storage(self, kind: str | None = None) -> Storage:
        """Create a storage of the type ``kind``, or of the one that the config names."""
        section = self._cfg["storage"] if kind is None else {"type": kind}
        storage = self._create("storages", section, self.capacity, self.deepcopy)
        return cast(Storage, storage)

    def _create(self, kind: str, section: Mapping[str, Any], *args: Any) -> Any:
        path = f"{_PATH}.{kind.removesuffix('s')}"
        return default_manager().create(kind, section, *args, config_path=path)


def _read_data_root(cfg: Mapping[str, Any]) -> str | None:
    """Return the folder of the files that rows name, None where they are not tracked."""
    root = cfg["data_root"]
    if not read_flag(cfg, "enable_track_used_data"):
        return None
    if not isinstance(root, (str, os.PathLike)) or not os.fspath(root):
        raise ConfigError(
            f"enable_track_used_data deletes the files <data_root>/<data_id> of rows that left, so "
            f"it needs data_root: the folder of these files (found {root!r})",
            path="data_root",
        )
    return os.fspath(root)


def _complete(defaults: Mapping[str, Any], cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config over the defaults, refusing keys that nothing reads."""
    given = {key: value for key, value in cfg.items() if not (key in _PARTS and value is None)}
    sections = {part: given[part] for part in _PARTS if isinstance(given.get(part), Mapping)}
    # Which keys a part has is for the class to say that its type names.
    check_known_keys(given, {"import_names": [], **defaults}, open_paths=tuple(sections))
    full = deep_merge_dicts(defaults, given)
    for part, section in sections.items():
        kind = section.get("type", defaults[part]["type"])
        own = defaults[part] if kind == defaults[part]["type"] else {}
        full[part] = _complete_part(part, deep_merge_dicts(own, {**section, "type": kind}))
    return full


def _complete_part(part: str, section: Mapping[str, Any]) -> dict[str, Any]:
    if part == "storage" and section["type"] == "auto":
        check_known_keys(section, {"type": "", "import_names": []}, path=part)
        return {"type": "auto"}
    cls = default_manager().get(
        f"{part}s", section["type"], section.get("import_names") or (), f"{_PATH}.{part}"
    )
    if not hasattr(cls, "default_config"):
        return deep_merge_dicts({}, section)
    defaults = cls.default_config()
    check_known_keys(section, {"import_names": [], **defaults}, path=part)
    return deep_merge_dicts(defaults, section)
