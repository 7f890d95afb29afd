"""Per-env caches and trajectory buffers of the dict form."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dingsdk.data.pytree import to_tensor


class CachePool:
    """What was last stored for each env, until it is reset.

    Args:
        name: What is cached, for error messages and ``repr``.
        env_num: Number of envs; valid indices are ``0 .. env_num - 1``.
        deepcopy: Store copies, for envs that reuse the memory of their observations.
    """

    def __init__(self, name: str, env_num: int, deepcopy: bool = False) -> None:
        self._name = name
        self._deepcopy = deepcopy
        self._items: list[Any] = [None] * env_num

    def update(self, data: Mapping[int, Any] | Sequence[Mapping[int, Any]]) -> None:
        """Store one item for each env, or for a sequence of mappings a list of items.

        A sequence stores a list even when it has one element, so that the number of
        players can be read back from what was stored (the reference stores the bare item).
        """
        if isinstance(data, Mapping):
            for index, item in data.items():
                self._items[index] = copy.deepcopy(item) if self._deepcopy else item
            return
        for index in data[0]:
            items = [each[index] for each in data]
            self._items[index] = copy.deepcopy(items) if self._deepcopy else items

    def __getitem__(self, index: int) -> Any:
        return self._items[index]

    def reset(self, index: int) -> None:
        """Forget what was stored for one env."""
        self._items[index] = None

    def __repr__(self) -> str:
        filled = sum(item is not None for item in self._items)
        return f"CachePool({self._name!r}, {filled} of {len(self._items)} filled)"


class TrajBuffer(list[Any]):
    """A list of transitions that keeps the newest ``maxlen`` of them.

    Args:
        maxlen: Bound on the length; None or infinity for none.
        *args: As for ``list``.
        deepcopy: Append copies.
    """

    def __init__(self, maxlen: float | None, *args: Any, deepcopy: bool = False) -> None:
        super().__init__(*args)
        self._maxlen = None if maxlen is None or math.isinf(maxlen) else int(maxlen)
        self._deepcopy = deepcopy
        self._evict()

    def append(self, item: Any) -> None:
        """Append ``item``; evict from the front what exceeds ``maxlen``."""
        super().append(copy.deepcopy(item) if self._deepcopy else item)
        self._evict()

    def _evict(self) -> None:
        if self._maxlen is not None and len(self) > self._maxlen:
            del self[: len(self) - self._maxlen]


def to_tensor_transitions(
    data: Sequence[dict[str, Any]], shallow_copy_next_obs: bool = True
) -> list[dict[str, Any]]:
    """Convert the transitions of one trajectory to tensors; scalars such as ``done`` stay.

    Args:
        data: Transitions of one contiguous trajectory, oldest first.
        shallow_copy_next_obs: Let ``next_obs`` of each transition be the ``obs`` object of
            the one that follows, which halves the memory. Ignored without ``next_obs``.

    Returns:
        New dicts, one for each transition; empty for empty ``data``.
    """
    if not data:
        return []
    if not shallow_copy_next_obs or "next_obs" not in data[0]:
        return [to_tensor(each, transform_scalar=False) for each in data]
    last = len(data) - 1
    converted: list[dict[str, Any]] = []
    for position, each in enumerate(data):
        keep = {k: v for k, v in each.items() if k != "next_obs" or position == last}
        converted.append(to_tensor(keep, transform_scalar=False))
    for current, following in itertools.pairwise(converted):
        current["next_obs"] = following["obs"]
    return converted
