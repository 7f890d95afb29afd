"""How often an address may fail to prove that it holds the secret."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

BURST = 32
PER_S = 1.0
MAX_ENTRIES = 4096


class Throttle:
    """One allowance of failures for each address and kind of sender. Thread safe.

    A failure takes one of ``burst``, which come back at ``per_s``. While there is none left,
    the server does no work for such a sender. Memory is bounded: the address that was heard of
    longest ago is forgotten.

    Args:
        burst: Failures allowed at once.
        per_s: Failures allowed for ever after.
        max_entries: Addresses and kinds remembered.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        burst: int = BURST,
        per_s: float = PER_S,
        max_entries: int = MAX_ENTRIES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst = burst
        self._per_s = per_s
        self._max_entries = max_entries
        self._clock = clock
        self._lock = threading.Lock()
        self._left: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        """Number of entries remembered."""
        return len(self._left)

    def wait_s(self, address: str, kind: str) -> float:
        """Return how long such a sender has to wait, 0 where it may be listened to now."""
        with self._lock:
            left = self._allowance((network_of(address), kind))
        return 0.0 if left >= 1 else (1 - left) / self._per_s

    def note_failure(self, address: str, kind: str) -> None:
        key = network_of(address), kind
        with self._lock:
            # Requests that were being checked at the same time may overdraw it; not for ever.
            left = max(self._allowance(key) - 1, -1.0)
            self._left[key] = (left, self._clock())
            self._left.move_to_end(key)
            if len(self._left) > self._max_entries:
                self._left.popitem(last=False)

    def _allowance(self, key: tuple[str, str]) -> float:
        left, since = self._left.get(key, (float(self._burst), 0.0))
        return min(float(self._burst), left + (self._clock() - since) * self._per_s)


def network_of(address: str) -> str:
    """Return what one sender cannot vary: an IPv4 address, the /64 of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
