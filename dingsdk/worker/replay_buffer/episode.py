"""The buffer whose elements are whole episodes."""

from __future__ import annotations

from typing import Any, ClassVar

from dingsdk.data import SampleBatch
from dingsdk.data.columns import as_columns, common_length, map_columns
from dingsdk.errors import ConfigError, SchemaMismatchError
from dingsdk.worker.replay_buffer.naive import NaiveReplayBuffer
from dingsdk.worker.replay_buffer.parts import Parts
from dingsdk.worker.replay_buffer.storage import Rows, Storage, suits_arrays
from dingsdk.worker.replay_buffer.storage.array import ArrayStorage
from dingsdk.worker.replay_buffer.storage.episodes import DurableEpisodes, EpisodeColumns


class EpisodeParts(Parts):
    """Parts whose storages hold episodes for rows."""

    def storage(self, kind: str | None = None) -> Storage:
        """Create a storage; one of columns gets the rows of all episodes."""
        made = super().storage(kind)
        if not isinstance(made, ArrayStorage):
            return made
        from dingsdk.worker.replay_buffer.storage.memmap import MemmapStorage

        if not isinstance(made, MemmapStorage):
            return EpisodeColumns(made, self.capacity)
        if not self.remover().reuses_oldest_first:
            raise ConfigError(
                "storage.type memmap needs a remover that lets the oldest episodes go first; "
                "choose fifo",
                path="policy.other.replay_buffer.remover.type",
            )
        return DurableEpisodes(made, self.capacity)


class EpisodeReplayBuffer(NaiveReplayBuffer):
    """A ring of whole episodes, sampled uniformly (type ``episode``).

    An episode is a list of rows, or a SampleBatch of them. Rows that are dicts of numbers and
    arrays come back as one SampleBatch an episode, others as a list. As a list that is pushed
    means many elements, one episode is pushed as ``push([episode], envstep)``.

    Config:
        replay_buffer_size: Capacity in episodes.
        storage: ``{type: auto | array | object | memmap}``. Columns hold the rows of all
            episodes, which must look alike, and grow with them: there is no limit but memory,
            or the disk. Objects take episodes of anything. With auto the first push decides.

    The rest is as in :class:`NaiveReplayBuffer`, with episodes for rows. Source: DI-engine's
    ``EpisodeReplayBuffer``.

    Example:
        >>> buffer = EpisodeReplayBuffer({"replay_buffer_size": 10})
        >>> buffer.push([[{"x": 0}, {"x": 1}], [{"x": 2}]], 3)
        >>> buffer.episode_len
        [2, 1]
    """

    config: ClassVar[dict[str, Any]] = {"type": "episode"}
    parts_type: ClassVar[type[Parts]] = EpisodeParts
    gives_rows: ClassVar[bool] = False

    @property
    def episode_len(self) -> list[int]:
        """Rows of each episode, oldest first."""
        with self._lock:
            self._check_open()
            where = self._remover.oldest_first()
            if len(where) == 0 or self._storage is None:
                return []
            if isinstance(self._storage, EpisodeColumns):
                return self._storage.lengths(where)
            return [_length(episode) for episode in self._storage.take(where)]

    def push(self, data: Any, cur_collector_envstep: int, timeout_s: float | None = None) -> None:
        """Add episodes, overwriting the oldest of a full buffer.

        Args:
            data: A list of episodes, or one as a SampleBatch.
            cur_collector_envstep: Env steps collected so far; unused here.
            timeout_s: Seconds to wait for the limiter to admit the episodes; None: not at all.

        Raises:
            SchemaMismatchError: an element is no episode, or an empty one, or in columns one
                that does not fit those before; nothing was pushed.
            BufferFullError: the limiter did not admit the episodes; nothing was pushed.
            BufferClosedError: the buffer is closed, or was while waiting.
        """
        episodes = data if type(data) is list else [data]
        for index, episode in enumerate(episodes):
            if not isinstance(episode, (SampleBatch, list, tuple)) or len(episode) == 0:
                raise _no_episode(index, episode)
        super().push(episodes, cur_collector_envstep, timeout_s)

    def _push_unlimited(self, rows: Rows) -> None:
        # Saved episodes come as columns, those of demonstrations as they are pushed.
        for index, row in enumerate(rows):
            whole = isinstance(row, (SampleBatch, list, tuple, dict)) and _length(row) > 0
            if not whole:
                raise _no_episode(index, row)
        super()._push_unlimited(rows)

    def _insert(self, rows: Rows, n: int) -> None:
        storage = self._storage
        kind = self._storage_kind(rows) if storage is None else None
        if kind == "array" or isinstance(storage, EpisodeColumns):
            super()._insert(rows, n)
        else:
            super()._insert([_stored(row) for row in rows], n)

    def _storage_kind(self, rows: Rows) -> str:
        return "array" if all(map(_suits_columns, rows)) else "object"

    def _extra_state(self) -> dict[str, Any]:
        columns = isinstance(self._storage, EpisodeColumns) and self._remover.count
        return {"storage": "array"} if columns else {}

    def _present(self, rows: Rows) -> Rows:
        owned = isinstance(self._storage, EpisodeColumns)
        return [_given(row, owned) for row in rows]


def _suits_columns(episode: Any) -> bool:
    return isinstance(episode, dict) or suits_arrays(episode)


def _length(episode: Any) -> int:
    return common_length(as_columns(episode)) if isinstance(episode, dict) else len(episode)


def _stored(episode: Any) -> Any:
    """Return an episode as object storage keeps it: its columns, or a list of its rows."""
    if isinstance(episode, dict):
        return episode
    if isinstance(episode, SampleBatch):
        return episode.copy().columns
    return SampleBatch.from_rows(episode).columns if suits_arrays(episode) else list(episode)


def _given(stored: Any, owned: bool) -> Any:
    """Return an episode of a storage as the caller's own."""
    if isinstance(stored, dict):
        columns = stored if owned else map_columns(lambda array: array.copy(), stored)
        return SampleBatch.trusted(columns, common_length(columns))
    if isinstance(stored, SampleBatch):
        return stored.copy()
    # What columns hold comes back as columns, also where a longer push overtook it.
    return SampleBatch.from_rows(stored) if owned else stored


def _no_episode(index: int, episode: Any) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"element {index} is no episode: a list of rows with at least one, or a SampleBatch; "
        "push one episode as push([episode], envstep)",
        key="",
        row=index,
        expected="a list of rows",
        found=f"{type(episode).__name__} {episode!r:.60}",
    )
