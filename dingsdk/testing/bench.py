"""Helpers for all rules: calls in threads with a time limit, and checks of results."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from dingsdk.errors import DingError
from dingsdk.testing.rule import RuleBroken

_T = TypeVar("_T")
_Make = TypeVar("_Make")
SPREADS = 5.0
"""Allowed deviation of a count, in standard deviations: exceeded once in two million by chance."""


class Call(Generic[_T]):
    """A call in its own thread, because it may never return."""

    def __init__(self, function: Callable[[], _T], what: str) -> None:
        self.what = what
        self.error: BaseException | None = None
        self.took_s = 0.0
        self._value: list[_T] = []
        self._function = function
        self._thread = threading.Thread(target=self._run, name=f"call of {what}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        started = time.monotonic()
        try:
            self._value.append(self._function())
        except BaseException as error:
            self.error = error
        self.took_s = time.monotonic() - started

    def end(self, timeout_s: float) -> None:
        """Wait for the call to end. Raises RuleBroken if it does not end in time."""
        if not self.has_ended(timeout_s):
            raise RuleBroken(f"{self.what} did not return within {timeout_s:.1f} s")

    def has_ended(self, timeout_s: float) -> bool:
        """Wait for the call to end; return whether it did."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def value(self, timeout_s: float) -> _T:
        """Return the result of the call, or raise its error."""
        self.end(timeout_s)
        if self.error is not None:
            raise self.error
        return self._value[0]


class RuleBench(Generic[_Make]):
    """Base class of the benches: makes the objects that a rule needs, and closes them at the end.

    If both the rule and a close raise, the error of the rule is raised.

    Args:
        make: Makes the part to check.
        folder: An empty folder.
        capabilities: The capabilities of the part.
        patience_s: How many seconds to wait for something that must happen.

    Attributes:
        exits: An exit stack, closed at the end of the rule.
    """

    def __init__(
        self, make: _Make, folder: Path, capabilities: Collection[str], patience_s: float
    ) -> None:
        self.exits = contextlib.ExitStack()
        self.folder = folder
        self.patience_s = patience_s
        self._make = make
        self._capabilities = frozenset(capabilities)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.exits.close()
        except Exception:
            if error is None:
                raise

    def keep(self, made: _T) -> _T:
        """Return ``made``, and close it at the end if it has a ``close`` method."""
        self.exits.callback(getattr(made, "close", lambda: None))
        return made

    def has(self, capability: str) -> bool:
        """Whether the part declares a capability."""
        return capability in self._capabilities


@contextlib.contextmanager
def raises(what: str, *kinds: type[BaseException]) -> Iterator[None]:
    """Expect the block to raise one of ``kinds``."""
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        yield
    except kinds:
        return
    except DingError as error:
        raise RuleBroken(f"{what} raised {type(error).__name__}, not {names}: {error}") from error
    raise RuleBroken(f"{what} did not raise {names}")


def expect(condition: bool, what: str) -> None:
    """Raise ``RuleBroken`` unless ``condition`` is true."""
    if not condition:
        raise RuleBroken(what)


def expect_equal(found: Any, expected: Any, what: str) -> None:
    """Raise ``RuleBroken`` unless both are equal."""
    if found != expected:
        raise RuleBroken(f"{what}: found {found!r:.300}, expected {expected!r:.300}")


def open_files(*, collect: bool = False) -> int:
    """Return how many files and sockets this process has open; 0 if the system does not tell.

    Args:
        collect: Whether to collect garbage first. Use it for the count before a test, because
            garbage of earlier tests may have open files. In the count after a test it would hide
            files that were not closed in time.
    """
    if collect:
        gc.collect()
    folder = Path("/proc/self/fd")
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0


@contextlib.contextmanager
def leaves_nothing(patience_s: float) -> Iterator[None]:
    """Expect the block to leave no thread, open file or socket; threads have some time to end."""
    # Garbage is collected first: if files of it were closed in the block, they would hide others.
    threads, files = set(threading.enumerate()), open_files(collect=True)
    yield
    deadline = time.monotonic() + patience_s
    left = [thread for thread in threading.enumerate() if thread not in threads]
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    names = [thread.name for thread in left if thread.is_alive()]
    expect(not names, f"threads left: {names}")
    if open_files() > files:
        left_open = open_files(collect=True) - files
        expect(left_open <= 0, f"{left_open} open files or sockets left")


def expect_alike(counts: Counter[Any], kinds: int, what: str) -> None:
    """Expect ``kinds`` different outcomes, each about equally often."""
    total = counts.total()
    share = total / kinds
    width = SPREADS * (share * (1 - 1 / kinds)) ** 0.5
    for drawn, count in counts.items():
        expect(abs(count - share) <= width, f"{what}: {drawn} came {count} times of {total}")
    expect_equal(len(counts), kinds, f"{what}: how many came at all")
