"""The config of the prioritized buffer: its defaults, and what its keys mean for the parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from dingsdk.config import deep_merge_dicts
from dingsdk.errors import ConfigError, ConfigTypeError
from dingsdk.plugins import default_manager
from dingsdk.worker.replay_buffer.settings import read_bounded, read_count, read_positive

DEFAULTS: dict[str, Any] = {
    "type": "advanced",
    "replay_buffer_size": 4096,
    "max_use": math.inf,
    "max_staleness": math.inf,
    "alpha": 0.6,
    "beta": 0.4,
    "anneal_step": 100000,
    "sampler": {"type": "proportional"},
    "thruput_controller": {
        "push_sample_rate_limit": {"max": math.inf, "min": 0.0},
        "window_seconds": 30.0,
        "sample_min_limit_ratio": 1.0,
    },
    "monitor": {
        "sampled_data_attr": {"average_range": 5, "print_freq": 200},
        "periodic_thruput": {"seconds": 60},
    },
}


@dataclass(frozen=True, slots=True)
class AdvancedSettings:
    """What the buffer itself reads of its config; the parts read the rest.

    Attributes:
        alpha, beta: Exponents of priorities and importance weights, in [0, 1].
        beta_step: How much beta grows with each sample, until it is 1.
        max_use: Samples after which a row leaves; infinite: any number.
        max_staleness: Learner iterations of age at which a row leaves; infinite: any age.
        rows_per_sampled: Rows held for each one sampled, >= 1, without which none is.
        monitored: Samples to average over, and samples from one log to the next.
    """

    alpha: float
    beta: float
    beta_step: float
    max_use: float
    max_staleness: float
    rows_per_sampled: float
    monitored: tuple[int, int]

    @property
    def rows_leave_early(self) -> bool:
        """Whether rows leave before they are overwritten."""
        return min(self.max_use, self.max_staleness) < math.inf

    @classmethod
    def of(cls, cfg: Mapping[str, Any]) -> Self:
        """Read a config.

        Raises:
            ConfigError, ConfigTypeError: a value that cannot work.
        """
        alpha, beta = (read_bounded(cfg, key, DEFAULTS, 0, 1) for key in ("alpha", "beta"))
        steps = read_count(cfg, "anneal_step", DEFAULTS, "", least=0)
        max_use = cfg.get("max_use", math.inf)
        controller = _merged(cfg, "thruput_controller")
        monitor = _merged(cfg, "monitor")
        watched, section = monitor["sampled_data_attr"], "monitor.sampled_data_attr"
        # What the parts get is read here too, as their errors name keys of their own.
        limits, path = controller["push_sample_rate_limit"], "thruput_controller"
        for bound in ("max", "min"):
            read_bounded(limits, bound, {}, 0, section=f"{path}.push_sample_rate_limit")
        read_positive(controller, "window_seconds", {}, path)
        read_positive(monitor["periodic_thruput"], "seconds", {}, "monitor.periodic_thruput")
        return cls(
            alpha=alpha,
            beta=beta,
            beta_step=(1 - beta) / steps if steps else 0.0,
            max_use=math.inf if max_use == math.inf else read_count(cfg, "max_use", {}, ""),
            max_staleness=read_bounded(cfg, "max_staleness", DEFAULTS, 1),
            rows_per_sampled=read_bounded(
                controller, "sample_min_limit_ratio", {}, 1, section="thruput_controller"
            ),
            monitored=(
                read_count(watched, "average_range", {}, section),
                read_count(watched, "print_freq", {}, section),
            ),
        )


def bounds_rates(cfg: Mapping[str, Any]) -> bool:
    """Whether ``thruput_controller`` bounds pushes per sample."""
    limits = _merged(cfg, "thruput_controller")["push_sample_rate_limit"]
    return bool(limits["max"] != math.inf or limits["min"] != 0)


def spread(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with the keys of the reference handed on to the parts that serve them.

    ``alpha`` goes to a sampler that has such a key and is not given its own; the bounds of
    ``thruput_controller`` make a limiter ``push_sample_rate``, unless they bound nothing.

    Raises:
        ConfigError: the config names a limiter and bounds of ``thruput_controller`` too.
    """
    full = dict(cfg)
    sampler = {**DEFAULTS["sampler"], **(cfg.get("sampler") or {})}
    kind = default_manager().get(
        "samplers", sampler["type"], sampler.get("import_names") or (), "sampler"
    )
    if "alpha" in getattr(kind, "default_config", dict)():
        full["sampler"] = {"alpha": cfg.get("alpha", DEFAULTS["alpha"]), **sampler}
    controller = _merged(cfg, "thruput_controller")
    limits = controller["push_sample_rate_limit"]
    if bounds_rates(cfg):
        named = (cfg.get("limiter") or {}).get("type", "min_size")
        if named not in ("min_size", "push_sample_rate"):
            raise ConfigError(
                f"thruput_controller bounds pushes per sample and limiter.type is {named!r}: a "
                "buffer has one limiter; remove one of them",
                path="thruput_controller.push_sample_rate_limit",
            )
        window = {key: controller[key] for key in ("window_seconds", "sample_min_limit_ratio")}
        full["limiter"] = {"type": "push_sample_rate", **limits, **window}
    seconds = _merged(cfg, "monitor")["periodic_thruput"]["seconds"]
    if seconds != DEFAULTS["monitor"]["periodic_thruput"]["seconds"]:
        full["periodic_thruput_seconds"] = seconds
    return full


def _merged(cfg: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a section of the config over its defaults.

    Raises:
        ConfigTypeError: it, or a section in it, is no mapping.
    """
    given = cfg.get(key) or {}
    _check_section(given, key)
    full = deep_merge_dicts(DEFAULTS[key], given)
    for name, section in DEFAULTS[key].items():
        if isinstance(section, dict):
            _check_section(full[name], f"{key}.{name}")
    return full


def _check_section(value: Any, path: str) -> None:
    if not isinstance(value, Mapping):
        raise ConfigTypeError(
            f"{path} must be a mapping of keys, found {value!r:.80} ({type(value).__name__})",
            path=path,
            expected="a mapping of keys",
            found=type(value).__name__,
        )
