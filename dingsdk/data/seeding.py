"""Derives all seeds of a run from one: every env, policy and buffer gets a different seed."""

from __future__ import annotations

import hashlib
import operator

import numpy as np

from dingsdk.errors import ConfigError, ConfigTypeError


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
    return int(sequence.generate_state(1, np.uint32)[0]) & 0x7FFF_FFFF


def player_seed(seed: int, player_id: str) -> int:
    """Return the seed that a player of a league uses in place of the run's seed.

    The first player uses the run's seed. With equal seeds, all players would play the same games
    and learn the same.
    """
    return derive_seed(seed, "player", player_id)


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
