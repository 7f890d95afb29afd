"""Telling what was left behind from what somebody is still busy with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable


class OrphanWatch:
    """Remembers since when a file has had no owner, by our own monotonic clock.

    Times in the file system are another host's, and wall clocks jump; a file that was announced
    a moment too late must not be deleted for that.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[tuple[str, str], float] = {}

    def ripe(self, place: str, names: Iterable[str], grace_s: float) -> list[str]:
        """Return those of a place's ownerless files that were so at a look ``grace_s`` ago.

        Args:
            place: Of the files; each call tells all that there are.
            names: Files without an owner now.
            grace_s: How long a file may be without; 0 returns all at once.
        """
        now = self._clock()
        found = {(place, name) for name in names}
        for key in [key for key in self._since if key[0] == place and key not in found]:
            del self._since[key]
        return sorted(
            name for _, name in found if now - self._since.setdefault((place, name), now) >= grace_s
        )
