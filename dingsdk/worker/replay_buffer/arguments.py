"""Checks of the arguments of a buffer's methods."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from dingsdk.errors import ConfigError, wrong_type


def checked_size(
    size: Any, what: str = "a sample size", least: int = 0, most: int = sys.maxsize
) -> int:
    """Return an integer that is at least ``least`` and at most ``most``.

    Raises:
        ConfigTypeError: it is not an integer.
        ConfigError: it is outside of these bounds (also a ValueError).
    """
    if type(size) is int and least <= size <= most:
        return size
    is_integer = isinstance(size, int | np.integer) and not isinstance(size, bool)
    if is_integer and least <= size <= most:
        return int(size)
    error = wrong_type(what, f"an integer from {least} to {most}", size)
    if is_integer:
        raise ConfigError(error.message, **error.facts)
    raise error


def check_range(sample_range: Any) -> None:
    """Raise ConfigTypeError if ``sample_range`` is neither None nor a slice of integers.

    A slice with a step of 0 raises ConfigError.
    """
    if sample_range is None:
        return
    try:
        sample_range.indices(0)
    except (AttributeError, TypeError) as error:
        raise wrong_type("sample_range", "a slice of integers (ages)", sample_range) from error
    except ValueError as error:
        raise ConfigError(f"sample_range: {error}", path="sample_range") from error
