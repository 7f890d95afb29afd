"""What the benches of all kinds of rules share: calls in threads, patience, what is expected."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from dingsdk.data.pytree import different_leaves, flatten
from dingsdk.errors import DingError
from dingsdk.testing.os_calls import open_files
from dingsdk.testing.rule import RuleBroken

_T = TypeVar("_T")
_Make = TypeVar("_Make")
SPREADS = 5.0
"""A count may be off by that many standard deviations: once in two million draws of one."""


class Call(Generic[_T]):
    """A call on a thread of its own, as its outcome may be that it never returns."""

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
        """Wait for the end of the call. Raises RuleBroken when it does not come."""
        if not self.has_ended(timeout_s):
            raise RuleBroken(f"{self.what} did not return within {timeout_s:.1f} s")

    def has_ended(self, timeout_s: float) -> bool:
        """Wait for the end of the call; return whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def value(self, timeout_s: float) -> _T:
        """Return what the call returned, or raise what it raised."""
        self.end(timeout_s)
        if self.error is not None:
            raise self.error
        return self._value[0]


class RuleBench(Generic[_Make]):
    """What the benches share: everything that a rule needs, closed at the end.

    What the rule raised comes before what a close raises.

    Args:
        make: Makes the part that is held to the rule.
        folder: An empty folder.
        capabilities: What the part declares.
        patience_s: How long something that must happen may take.

    Attributes:
        exits: Closed at the end of the rule.
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
        """Return what was made, which is closed at the end if it can be."""
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


def expect_same_leaves(found: Any, expected: Any, what: str) -> None:
    """Expect two nests to be equal, arrays and tensors bit by bit."""
    different = different_leaves(dict(flatten(found)), dict(flatten(expected)))
    expect(not different, f"{what} differs in {', '.join(different[:5])}")


@contextlib.contextmanager
def leaves_nothing(patience_s: float) -> Iterator[None]:
    """Expect the block to leave no thread, which may take a moment, and no open file or socket."""
    threads, files = set(threading.enumerate()), open_files()
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
    """Expect each of ``kinds`` equally likely outcomes about as often as any other."""
    total = counts.total()
    share = total / kinds
    width = SPREADS * (share * (1 - 1 / kinds)) ** 0.5
    for drawn, count in counts.items():
        expect(abs(count - share) <= width, f"{what}: {drawn} came {count} times of {total}")
    expect_equal(len(counts), kinds, f"{what}: how many came at all")
