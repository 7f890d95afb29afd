"""Reading numbers from a buffer's config, with errors that name the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dingsdk.errors import ConfigError, ConfigTypeError


def read_count(
    cfg: Mapping[str, Any],
    key: str,
    defaults: Mapping[str, Any],
    section: str,
    least: int = 1,
) -> int:
    """Return an integer of the config (whole floats such as 1e6 count as integers).

    Raises:
        ConfigTypeError: it is no integer.
        ConfigError: it is below ``least``.
    """
    value = cfg.get(key, defaults.get(key))
    path = f"{section}.{key}" if section else key
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(path, f"an integer >= {least}", value)
    if value < least:
        raise ConfigError(f"{path} must be an integer >= {least}, found {value}", path=path)
    return value


def read_positive(
    cfg: Mapping[str, Any], key: str, defaults: Mapping[str, Any], section: str
) -> float:
    """Return a finite number > 0 of the config.

    Raises:
        ConfigTypeError: it is no number.
        ConfigError: it is not finite, or not above 0.
    """
    value = cfg.get(key, defaults.get(key))
    path = f"{section}.{key}" if section else key
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong_type(path, "a number > 0", value)
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{path} must be a finite number > 0, found {value}", path=path)
    return float(value)


def read_bounded(
    cfg: Mapping[str, Any],
    key: str,
    defaults: Mapping[str, Any],
    least: float,
    most: float = math.inf,
    section: str = "",
) -> float:
    """Return a number of a config, such as an exponent in [0, 1].

    Raises:
        ConfigTypeError: it is no number.
        ConfigError: it is outside ``[least, most]``.
    """
    value = cfg.get(key, defaults.get(key))
    path = f"{section}.{key}" if section else key
    expected = f"a number in [{least}, {most}]"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong_type(path, expected, value)
    if not least <= value <= most:
        raise ConfigError(f"{path} must be {expected}, found {value}", path=path)
    return float(value)


def read_flag(cfg: Mapping[str, Any], key: str) -> bool:
    """Return a bool of the config.

    Raises:
        ConfigTypeError: it is none.
    """
    value = cfg.get(key, False)
    if not isinstance(value, bool):
        raise _wrong_type(key, "true or false", value)
    return value


def read_seed(cfg: Mapping[str, Any]) -> int | None:
    """Return the ``seed`` of the config, None for one from the operating system.

    Raises:
        ConfigTypeError: it is no integer.
        ConfigError: it is negative.
    """
    seed = cfg.get("seed")
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise _wrong_type("seed", "an integer >= 0 or null", seed)
    if seed < 0:
        raise ConfigError(f"seed must be >= 0, found {seed}", path="seed")
    return int(seed)


def _wrong_type(path: str, expected: str, value: Any) -> ConfigTypeError:
    return ConfigTypeError(
        f"{path} must be {expected}, found {value!r} ({type(value).__name__})",
        path=path,
        expected=expected,
        found=type(value).__name__,
    )
