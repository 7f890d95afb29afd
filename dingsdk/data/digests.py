"""Digests of what is written, streamed over the parts it is written from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import xxhash

from dingsdk.errors import ConfigError

DEFAULT_ALGORITHM = "xxh3-128"
"""Runs at memory speed and finds damage; it is no defence against who may write the file."""


class Hasher(Protocol):
    """What hashlib and xxhash have in common."""

    def update(self, data: Any, /) -> None: ...
    def hexdigest(self) -> str: ...


_ALGORITHMS: dict[str, tuple[Callable[[], Hasher], int]] = {
    "xxh3-128": (xxhash.xxh3_128, 32),
    "sha256": (hashlib.sha256, 64),
}
_FORM = re.compile(r"xxh3-128:[0-9a-f]{32}|sha256:[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Whether the text is ``algorithm:hex`` of an algorithm known here."""
    return _FORM.fullmatch(text) is not None


def digest_length(algorithm: str) -> int:
    """Return the number of characters of every digest ``algorithm:hex``.

    Raises:
        ConfigError: no such algorithm.
    """
    return len(algorithm) + 1 + _algorithm(algorithm)[1]


def digest_of(parts: Iterable[Any], algorithm: str = DEFAULT_ALGORITHM) -> str:
    """Return ``algorithm:hex`` over contiguous buffers, as if they were one.

    Raises:
        ConfigError: no such algorithm.
    """
    hasher = _algorithm(algorithm)[0]()
    for part in parts:
        hasher.update(part)
    return f"{algorithm}:{hasher.hexdigest()}"


def _algorithm(name: str) -> tuple[Callable[[], Hasher], int]:
    try:
        return _ALGORITHMS[name]
    except KeyError:
        raise ConfigError(
            f"no digest {name!r}; known are {', '.join(sorted(_ALGORITHMS))}", path="digest"
        ) from None
