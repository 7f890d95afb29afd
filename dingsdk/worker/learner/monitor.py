"""Moving averages of a learner's log variables."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from dingsdk.data.capture import Savable
from dingsdk.errors import PolicyOutputTypeError


class LearnerMonitor(Savable):
    """Named values over a sliding window of ticks, one tick an iteration. Not thread-safe.

    Only values of the last ``window`` ticks count, so that a variable that is logged rarely
    disappears.

    Args:
        names: Variables to show, in order; others may be recorded as well.
        window: Length of the window in ticks.

    Difference from DI-engine's logged model: any real number (int, bool, numpy scalar,
    one-element tensor) is accepted and kept as a float.
    """

    saved = ("_tick", "_values")

    def __init__(self, names: Iterable[str] = (), window: int = 10) -> None:
        self.names = tuple(dict.fromkeys(names))
        self.window = window
        self._tick = 0
        self._values: dict[str, deque[tuple[int, float]]] = {}

    def record(self, values: Mapping[str, Any]) -> None:
        """Record one value for each name.

        Raises:
            PolicyOutputTypeError: A value is not one real number. Facts: ``key``.
        """
        oldest = self._tick - self.window
        for name, value in values.items():
            number = value if type(value) is float else as_number(name, value)
            history = self._values.setdefault(name, deque())
            while history and history[0][0] <= oldest:
                history.popleft()
            history.append((self._tick, number))

    def tick(self) -> None:
        """Move the window on by one iteration."""
        self._tick += 1

    def avg(self, name: str) -> float | None:
        """Return the mean over the window, or None when nothing was recorded in it."""
        oldest = self._tick - self.window
        values = [value for tick, value in self._values.get(name, ()) if tick >= oldest]
        return sum(values) / len(values) if values else None

    def averages(self) -> dict[str, float]:
        """Return the mean of every shown variable that has one, in order."""
        shown = ((name, self.avg(name)) for name in self.names)
        return {name: mean for name, mean in shown if mean is not None}


def as_number(name: str, value: Any) -> float:
    """Return ``value`` as a float.

    Raises:
        PolicyOutputTypeError: ``value`` is not one real number.
    """
    try:
        # item() reads one-element arrays and tensors of any shape, and refuses longer ones.
        number = value.item() if hasattr(value, "item") else value
        if not isinstance(number, str | bytes):
            return float(number)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise PolicyOutputTypeError(
        f"the policy logged {name!r} as {type(value).__name__}, which is not one number. Return a "
        "float from forward(), or name the entry '[scalars]...' or '[histogram]...'.",
        key=name,
        expected="a number",
        found=type(value).__name__,
    )
