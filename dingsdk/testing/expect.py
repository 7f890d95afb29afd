"""What rules expect: calls in threads that end in time, and results."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.errors import DingError

_T = TypeVar("_T")
SPREADS = 5.0
"""Allowed deviation of a count, in standard deviations: exceeded once in two million by chance."""
WAIT_S = 0.06
"""How long a call that should wait is watched, and the deadline of waits for nothing."""
_EARLY_S = 0.02
"""A wait may end this much early, because clocks have a coarse resolution."""


class RuleBroken(AssertionError):  # noqa: N818 - a finding, not an error of the kit
    """A part did not do what the rule says."""


class Call(Generic[_T]):
    """A call in its own thread, because it may never return."""

    def __init__(self, function: Callable[[], _T], what: str) -> None:
        self.what = what
        self.error: BaseException | None = None
        self._took_s = 0.0
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
        self._took_s = time.monotonic() - started

    def has_ended(self, timeout_s: float) -> bool:
        """Wait for the call to end; return whether it did."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def expect_waits(self) -> None:
        """Raise RuleBroken if the call ends soon; it should be waiting."""
        expect(not self.has_ended(WAIT_S), f"{self.what} did not wait")

    def value(self, timeout_s: float, least_s: float = 0.0) -> _T:
        """Return the result of the call, or raise its error.

        Raises RuleBroken if it does not end in time, or ended before ``least_s``.
        """
        if not self.has_ended(timeout_s):
            raise RuleBroken(f"{self.what} did not return within {timeout_s:.1f} s")
        is_early = self._took_s < least_s - _EARLY_S
        expect(not is_early, f"{self.what} returned after {self._took_s:.3f} s, not {least_s} s")
        if self.error is not None:
            raise self.error
        return self._value[0]


@contextlib.contextmanager
def raises(what: str, *kinds: type[BaseException]) -> Iterator[list[Any]]:
    """Expect the block to raise one of ``kinds``; the list that it gets has then the error."""
    names = " or ".join(kind.__name__ for kind in kinds)
    caught: list[Any] = []
    try:
        yield caught
    except kinds as error:
        caught.append(error)
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
    expect_shares(counts, dict.fromkeys(counts, 1 / kinds), what)
    expect_equal(len(counts), kinds, f"{what}: how many came at all")


def expect_shares(counts: Counter[Any], shares: Mapping[Any, float], what: str) -> None:
    """Expect each outcome to come about as often as its share of all draws."""
    total = counts.total()
    for drawn, share in shares.items():
        width = SPREADS * (total * share * (1 - share)) ** 0.5
        is_near = abs(counts[drawn] - total * share) <= width
        expect(is_near, f"{what}: {drawn} came {counts[drawn]} times of {total}, share {share:.3f}")


def expect_same(found: Any, expected: Any, where: str) -> None:
    """Raise RuleBroken at the first difference in type, shape, dtype or value."""
    if isinstance(expected, SampleBatch):
        expect_same(dict(found.columns), dict(expected.columns), where)
    elif isinstance(expected, Mapping):
        if not isinstance(found, Mapping) or found.keys() != expected.keys():
            raise RuleBroken(f"{where}: found {found!r:.200}, expected keys {sorted(expected)}")
        for key, value in expected.items():
            expect_same(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list | tuple):
        if type(found) is not type(expected) or len(found) != len(expected):
            raise RuleBroken(f"{where}: found {found!r:.200}, expected {expected!r:.200}")
        for index, value in enumerate(expected):
            expect_same(found[index], value, f"{where}[{index}]")
    elif not _is_same_leaf(found, expected):
        raise RuleBroken(
            f"{where}: found {type(found).__name__} {found!r:.200}, "
            f"expected {type(expected).__name__} {expected!r:.200}"
        )


def _is_same_leaf(found: Any, expected: Any) -> bool:
    if hasattr(expected, "dtype") and hasattr(expected, "shape"):
        if getattr(found, "dtype", None) != expected.dtype or found.shape != expected.shape:
            return False
        if hasattr(expected, "detach"):
            return bool(found.equal(expected))
        return np.array_equal(found, expected, equal_nan=found.dtype.kind == "f")
    if type(found) is not type(expected):
        return False
    # repr distinguishes -0.0 from 0.0, and treats NaN as equal to NaN.
    return repr(found) == repr(expected) if isinstance(expected, float) else found == expected
