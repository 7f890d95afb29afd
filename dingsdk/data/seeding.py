"""Derives all seeds of a run from one: every env, policy and buffer gets a different seed."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from dingsdk.errors import ConfigError, ConfigTypeError

_recorded: ContextVar[dict[str, int] | None] = ContextVar("recorded_seeds", default=None)


def derive_seed(seed: int, *path: str | int) -> int:
    """Return the seed for the part of a run that ``path`` names.

    The same arguments give the same seed on every machine; different paths give
    independent random streams (``numpy.random.SeedSequence`` with the path as spawn key).

    Args:
        seed: The run's seed, >= 0.
        *path: Names and numbers from the root, e.g. ``"collector", 1, "env", 7``.

    Returns:
        An int in ``0 <= x < 2**31``, which every library accepts as a seed.

    Raises:
        ConfigTypeError: the seed is not an integer, or a path element is not a str or int.
        ConfigError: the seed is negative.

    Example:
        >>> derive_seed(0, "collector", 1) != derive_seed(0, "collector", 2)
        True
    """
    root = _as_int(seed, "seed")
    if root < 0:
        raise ConfigError(f"seed must be >= 0, found {root}", path="seed")
    digest = hashlib.sha256()
    for element in path:
        if isinstance(element, str):
            text = f"s{len(element)}:{element}"
        else:
            text = f"i{_as_int(element, 'path')};"
        digest.update(text.encode("utf-8", "surrogatepass"))
    words = np.frombuffer(digest.digest(), dtype="<u4")
    sequence = np.random.SeedSequence(entropy=root, spawn_key=tuple(int(word) for word in words))
    seed = int(sequence.generate_state(1, np.uint32)[0]) & 0x7FFF_FFFF
    if (found := _recorded.get()) is not None:
        above = next((name for name, known in found.items() if known == root), str(root))
        found["/".join([above, *map(str, path)])] = seed
    return seed


def player_seed(seed: int, player_id: str) -> int:
    """Return the seed that a player of a league uses in place of the run's seed.

    The first player uses the run's seed. With equal seeds, all players would play the same games
    and learn the same.
    """
    return derive_seed(seed, "player", player_id)


@contextmanager
def seeds_recorded(root: int) -> Iterator[dict[str, int]]:
    """Record the seeds that this thread derives, as ``{"seed/collector/env/0": 1234, ...}``.

    Args:
        root: The run's seed; it is recorded as ``seed``.
    """
    token = _recorded.set(found := {"seed": root})
    try:
        yield found
    finally:
        _recorded.reset(token)


def _as_int(value: object, what: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError("a bool is no number here")
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigTypeError(
            f"{what} must be an integer, found {value!r}",
            path=what,
            expected="int",
            found=type(value).__name__,
        ) from error
