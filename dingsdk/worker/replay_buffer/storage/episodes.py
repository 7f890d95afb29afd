"""Storage of episodes of any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dingsdk.data import SampleBatch
from dingsdk.data.columns import mismatch
from dingsdk.worker.replay_buffer.storage import Storage, Where, suits_arrays


class EpisodeStorage(Storage):
    """Stores each episode as one object of an object storage.

    An episode is pushed as a SampleBatch or a list of rows. It is returned as a SampleBatch, or as
    a list if its rows are not dicts of numbers and arrays.
    """

    holds_objects = True

    def __init__(self, objects: Storage, capacity: int) -> None:
        super().__init__({}, capacity, objects.deepcopy)
        self._objects = objects

    def accept(self, rows: SampleBatch | Sequence[Any]) -> Any:
        for index, row in enumerate(rows):
            if not (isinstance(row, (SampleBatch, list, tuple)) and len(row) > 0):
                hint = "an episode has a row at least; push one as push([episode], envstep)"
                found = f"{type(row).__name__} {' '.join(repr(row).split()):.60}"
                raise mismatch(f"episode {index}", "", "a list of rows", found, hint, row=index)
        return self._objects.accept(list(map(_as_object, rows)))

    def put(self, where: Where, rows: Any) -> None:
        self._objects.put(where, rows)

    def take(self, where: Where) -> list[Any]:
        episodes = self._objects.take(where)
        # The dict is a copy already, but its arrays are not.
        return [SampleBatch(e).copy() if isinstance(e, dict) else e for e in episodes]

    def clear(self) -> None:
        self._objects.clear()

    def close(self) -> None:
        self._objects.close()


def _as_object(episode: Any) -> Any:
    # A batch becomes a dict, because an object storage copies and compresses the values of dicts.
    if isinstance(episode, SampleBatch):
        return episode.copy().columns
    return SampleBatch.from_rows(episode).columns if suits_arrays(episode) else list(episode)
