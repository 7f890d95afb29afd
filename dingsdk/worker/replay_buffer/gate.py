"""The one lock of a buffer, and waiting on what happens under it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Hint = Callable[[], float | None]
"""Returns in how many seconds time alone may change the answer; None: it does not."""


class Gate:
    """A lock whose holder can wait until a condition holds, with a deadline.

    Attributes:
        lock: What to hold; the methods are for its holder.
        waiting: How many wait.
    """

    __slots__ = ("_changed", "lock", "waiting")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self.waiting = 0

    def wake(self) -> None:
        """Let all who wait look again."""
        self._changed.notify_all()

    def wait_for(
        self, is_ready: Callable[[], bool], timeout_s: float | None, hint: Hint | None = None
    ) -> bool:
        """Wait, holding the lock only to look, until ready or the time is over.

        Args:
            is_ready: Called under the lock; what it raises ends the wait.
            timeout_s: Seconds; None: do not wait.
            hint: Asked after each look, for conditions that time alone can change.

        Returns:
            Whether it was ready.
        """
        if timeout_s is None:
            return False
        deadline = time.monotonic() + timeout_s
        # Asking may have changed what the other side is admitted to do: let it look again.
        self.wake()
        self.waiting += 1
        try:
            while not is_ready():
                rest_s = deadline - time.monotonic()
                if rest_s <= 0:
                    return False
                soon_s = hint() if hint is not None else None
                self._changed.wait(rest_s if soon_s is None else min(rest_s, max(soon_s, 0.001)))
            return True
        finally:
            self.waiting -= 1
