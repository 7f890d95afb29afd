"""Typed reads of config values, with errors that name the dotted path."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

from dingsdk.errors import ConfigError, ConfigTypeError


def number(
    cfg: Mapping[str, Any],
    key: str,
    path: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
) -> float:
    """Return ``cfg[key]`` as a finite float in [low, high] and > ``above``.

    Raises:
        ConfigTypeError: absent or no number.
        ConfigError: out of range.
    """
    value = cfg.get(key)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _wrong_type(f"{path}.{key}", "a number", value)
    as_float = float(value)
    if not (math.isfinite(as_float) and low <= as_float <= high and as_float > above):
        raise _out_of_range(f"{path}.{key}", value, low, high, above)
    return as_float


def integer(cfg: Mapping[str, Any], key: str, path: str, *, low: int = 1) -> int:
    """Return ``cfg[key]`` as an int >= ``low``; raises as ``number`` does."""
    value = cfg.get(key)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _wrong_type(f"{path}.{key}", "an integer", value)
    if value < low:
        raise _out_of_range(f"{path}.{key}", value, low, math.inf, -math.inf)
    return int(value)


def flag(cfg: Mapping[str, Any], key: str, path: str) -> bool:
    """Return ``cfg[key]``, true or false; raises ConfigTypeError for anything else."""
    value = cfg.get(key)
    if not isinstance(value, bool):
        raise _wrong_type(f"{path}.{key}", "true or false", value)
    return value


def section(cfg: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
    """Return the section ``cfg[key]``; raises ConfigTypeError where it is none."""
    value = cfg.get(key)
    if not isinstance(value, Mapping):
        raise _wrong_type(f"{path}.{key}", "a section", value)
    return value


def _wrong_type(path: str, expected: str, value: Any) -> ConfigTypeError:
    return ConfigTypeError(
        f"{path} must be {expected}, found {value!r} ({type(value).__name__})",
        path=path,
        expected=expected,
        found=value,
    )


def _out_of_range(path: str, value: Any, low: float, high: float, above: float) -> ConfigError:
    bounds = [
        text
        for bound, text in (
            (above, f"above {above:g}"),
            (low, f"at least {low:g}"),
            (high, f"at most {high:g}"),
        )
        if math.isfinite(bound)
    ]
    expected = " and ".join(bounds) or "finite"
    return ConfigError(
        f"{path} must be {expected}, found {value!r}", path=path, expected=expected, found=value
    )
