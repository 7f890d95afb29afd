"""Lets calls of the operating system fail in tests, and records them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock


@contextmanager
def failing_calls(
    names: Collection[str], at: int, number: int, persistent: bool = False
) -> Iterator[Callable[[], int]]:
    """Make the N-th call of some functions of ``os`` fail, in the whole process.

    To test every place where storing can fail, use it for N = 1, 2, ... until fewer than N calls
    are made.

    Args:
        names: The functions, such as ``("open", "write", "rename")``.
        at: The number N of the call that fails, from 1.
        number: The error number, such as ``errno.ENOSPC``.
        persistent: Whether all later calls fail too, except ``close`` and ``unlink``.

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
                if name == "close":  # a close that fails still closes the file
                    real[name](*args, **kwargs)
                raise OSError(number, os.strerror(number))
            return real[name](*args, **kwargs)

        return call

    with ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(os, name, shim(name)))
        yield lambda: count


@dataclass
class WriteLog:
    """The files and folders that this process renamed and synced to disk.

    Attributes:
        calls: ``("sync", path)`` and ``("rename", old path, new path)``, in order.
    """

    calls: list[tuple[str, ...]] = field(default_factory=list)

    def is_durable(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a file and its name survive a power cut.

        This is so if the content was synced before the file got its name, and the folder after.
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

    with ExitStack() as stack:
        for name in real:
            stack.enter_context(mock.patch.object(os, name, call(name)))
        yield log


def _path_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _join(folder: int | None, path: Any) -> str:
    return str(Path(_path_of(folder) if folder is not None else Path.cwd()) / path)
