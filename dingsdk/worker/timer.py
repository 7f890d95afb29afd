"""A stopwatch for ``with`` blocks."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType
from typing import Self


class EasyTimer:
    """Measures the wall time of a ``with`` block; may be used again and nested.

    Every instance keeps its own start times (in the reference all timers of a process share
    one slot). An instance belongs to one thread.

    Args:
        cuda: Wait for queued GPU work before reading the clock. Has no effect on a machine
            where torch sees no GPU.

    Example:
        >>> timer = EasyTimer()
        >>> with timer:
        ...     total = sum(range(10))
        >>> timer.value >= 0.0
        True
    """

    __slots__ = ("_starts", "_synchronize", "value")

    def __init__(self, cuda: bool = False) -> None:
        self.value = 0.0
        """Seconds of the block that ended last; 0 before the first."""
        self._starts: list[float] = []
        self._synchronize = None
        if cuda:
            import torch

            if torch.cuda.is_available():
                self._synchronize = torch.cuda.synchronize

    def __enter__(self) -> Self:
        if self._synchronize is not None:
            self._synchronize()
        self._starts.append(perf_counter())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._synchronize is not None and exc_type is None:
            self._synchronize()
        self.value = perf_counter() - self._starts.pop()
