"""Spaces as plain data, for configs, so that a saved policy has them without its env."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from dingsdk.errors import ConfigError

_MOST_BOUNDS = 4096
"""Largest number of entries of a Box whose bounds differ; a larger one has no description."""


def describe_space(space: Any) -> dict[str, Any] | None:
    """Return a space as plain data, for ``make_space``.

    Args:
        space: A gymnasium space.

    Returns:
        ``{"type": ..., ...}``; None unless it is a Box, Discrete, MultiDiscrete, MultiBinary, or
        a Dict of these.
    """
    if isinstance(space, spaces.Dict):
        children = {str(name): describe_space(child) for name, child in space.spaces.items()}
        if None in children.values():
            return None
        return {"type": "dict", "spaces": children}
    if isinstance(space, spaces.Box):
        bounds = {"low": _bound(space.low), "high": _bound(space.high)}
        if None in bounds.values():
            return None
        return {"type": "box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    dtype = {"dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return {"type": "discrete", "n": int(space.n), "start": int(space.start), **dtype}
    if isinstance(space, spaces.MultiDiscrete):
        start = space.start.tolist()
        return {"type": "multi_discrete", "nvec": space.nvec.tolist(), "start": start, **dtype}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "multi_binary", "shape": list(space.shape)}
    return None


def make_space(description: Mapping[str, Any], path: str) -> Any:
    """Return the space that ``describe_space`` described.

    Args:
        description: Result of ``describe_space``, perhaps read from a file.
        path: Path of the description in the config, for the message.

    Raises:
        ConfigError: ``description`` describes no space.
    """
    try:
        return _make(description, path)
    except (KeyError, TypeError, ValueError, AssertionError, MemoryError) as error:
        raise ConfigError(
            f"{path} describes no space: {type(error).__name__}: {error}; leave the key out to "
            "have it read from the env",
            path=path,
            found=description,
        ) from error


def _make(description: Mapping[str, Any], path: str) -> Any:
    given = dict(description)
    kind = given.pop("type")
    if kind == "dict":
        children = given["spaces"].items()
        return spaces.Dict({name: make_space(each, f"{path}.{name}") for name, each in children})
    if kind == "multi_binary":
        return spaces.MultiBinary(given["shape"])
    dtype = np.dtype(given.pop("dtype")).type
    if kind == "box":
        shape = tuple(given["shape"])
        low, high = (np.full(shape, given[key], dtype) for key in ("low", "high"))
        return spaces.Box(low, high, shape, dtype)
    if kind == "discrete":
        return spaces.Discrete(given["n"], start=given["start"], dtype=dtype)
    if kind == "multi_discrete":
        nvec, start = (np.array(given[key]) for key in ("nvec", "start"))
        return spaces.MultiDiscrete(nvec, dtype=dtype, start=start)
    raise ValueError(f"there is no type {kind!r}")


def _bound(values: Any) -> Any:
    """Return a bound as one number where all entries are equal, as a list, or None if too long."""
    if values.size and (values == values.flat[0]).all():
        return values.flat[0].item()
    return values.tolist() if values.size <= _MOST_BOUNDS else None
