"""Making the operating system fail on purpose, one call at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def failing_calls(
    names: Collection[str], at: int, number: int, persistent: bool = False
) -> Iterator[Callable[[], int]]:
    """Let the N-th call of some functions of ``os`` fail, in this whole process.

    Run it for N = 1, 2, ... until fewer calls are made: each place where storing can fail was
    then tried.

    Args:
        names: The functions, such as ``("open", "write", "rename")``.
        at: Which of their calls fails, from 1.
        number: With which error, such as ``errno.ENOSPC``.
        persistent: Whether all later ones fail too, but for closing and unlinking.

    Yields:
        A function that returns how many calls were made.
    """
    count = 0
    real = {name: getattr(os, name) for name in names}

    def shim(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == at or (persistent and count > at and name not in {"close", "unlink"}):
                if name == "close":  # a failed close has closed all the same
                    real[name](*args, **kwargs)
                raise OSError(number, os.strerror(number))
            return real[name](*args, **kwargs)

        return call

    for name in names:
        setattr(os, name, shim(name))
    try:
        yield lambda: count
    finally:
        for name, function in real.items():
            setattr(os, name, function)
