"""Checking what ``sample`` is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from dingsdk.errors import ConfigError, ConfigTypeError


def checked_size(size: Any, what: str = "a sample size", least: int = 0) -> int:
    """Return an integer that is at least ``least``.

    Raises:
        ConfigTypeError: it is no integer.
        ConfigError: it is less (also a ValueError).
    """
    if type(size) is int and size >= least:
        return size
    if isinstance(size, (bool, np.bool_)) or not isinstance(size, (int, np.integer)):
        raise ConfigTypeError(
            f"{what} is an integer >= {least}, found {size!r}",
            path="size",
            expected="int",
            found=type(size).__name__,
        )
    if size < least:
        raise ConfigError(f"{what} is an integer >= {least}, found {size}", path="size")
    return int(size)


def check_range(sample_range: Any) -> None:
    """Refuse a ``sample_range`` that is neither None nor a slice.

    Raises:
        ConfigTypeError: it is something else.
    """
    if sample_range is not None and not isinstance(sample_range, slice):
        raise ConfigTypeError(
            f"sample_range must be a slice over ages, found {sample_range!r}",
            path="sample_range",
            expected="slice",
            found=type(sample_range).__name__,
        )
