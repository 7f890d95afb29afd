"""What a test does to, and learns from, the calls of the operating system."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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


@dataclass
class WriteLog:
    """Which files this process renamed, and what it waited for the disk to have.

    Attributes:
        calls: ``("sync", path)`` and ``("rename", old path, new path)``, in order.
    """

    calls: list[tuple[str, ...]] = field(default_factory=list)

    def is_durable(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a file survives a power cut under its name.

        Its content was synced before it got the name, and its folder afterwards.
        """
        name = str(Path(path).absolute())
        named = [i for i, call in enumerate(self.calls) if call[0] == "rename" and call[2] == name]
        if not named:
            return False
        before, after = self.calls[: named[-1]], self.calls[named[-1] :]
        return ("sync", after[0][1]) in before and ("sync", str(Path(name).parent)) in after


@contextmanager
def recorded_writes() -> Iterator[WriteLog]:
    """Record every ``os.fsync``, ``os.rename`` and ``os.replace`` of this process.

    Example:
        >>> with recorded_writes() as log:
        ...     save(path)
        >>> assert log.is_durable(path)
    """
    log = WriteLog()
    real = {name: getattr(os, name) for name in ("fsync", "rename", "replace")}

    def call(name: str) -> Callable[..., None]:
        def recorded(*args: Any, **folders: Any) -> None:
            real[name](*args, **folders)
            if name == "fsync":
                log.calls.append(("sync", _path_of(args[0])))
            else:
                old, new = (folders.get(f"{each}_dir_fd") for each in ("src", "dst"))
                log.calls.append(("rename", _join(old, args[0]), _join(new, args[1])))

        return recorded

    for name in real:
        setattr(os, name, call(name))
    try:
        yield log
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def open_files(*, collect: bool = False) -> int:
    """Return how many files and sockets this process has open; 0 where that is not to be known.

    Args:
        collect: Whether to drop garbage first: for the count before a test, as what others left
            may have some open. For the one after it, it would hide what is not closed in time.
    """
    if collect:
        gc.collect()
    folder = Path("/proc/self/fd")
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0


def _path_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _join(folder: int | None, path: Any) -> str:
    return str(Path(_path_of(folder) if folder is not None else Path.cwd()) / path)
