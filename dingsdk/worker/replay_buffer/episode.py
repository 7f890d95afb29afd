"""The buffer whose elements are whole episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dingsdk.data import SampleBatch
from dingsdk.data.columns import as_columns, common_length, map_columns
from dingsdk.errors import ConfigError, SchemaMismatchError
from dingsdk.worker.replay_buffer.naive import NaiveReplayBuffer
from dingsdk.worker.replay_buffer.storage import Rows, suits_arrays


class EpisodeReplayBuffer(NaiveReplayBuffer):
    """A ring of whole episodes, sampled uniformly (type ``episode``).

    An episode is a list of rows, or a SampleBatch of them. Rows that are dicts of numbers and
    arrays come back as one SampleBatch an episode, others as a list. As a list that is pushed
    means many elements, one episode is pushed as ``push([episode], envstep)``.

    Config:
        replay_buffer_size: Capacity in episodes.
        storage: ``{type: object}``: episodes differ in length, so no array holds them.

    The rest is as in :class:`NaiveReplayBuffer`, with episodes for rows. Source: DI-engine's
    ``EpisodeReplayBuffer``.

    Example:
        >>> buffer = EpisodeReplayBuffer({"replay_buffer_size": 10})
        >>> buffer.push([[{"x": 0}, {"x": 1}], [{"x": 2}]], 3)
        >>> buffer.episode_len
        [2, 1]
    """

    config: ClassVar[dict[str, Any]] = {"type": "episode", "storage": {"type": "object"}}
    gives_rows: ClassVar[bool] = False

    def _configure(self, cfg: Mapping[str, Any]) -> Mapping[str, Any]:
        storage = {**self.default_config()["storage"], **(cfg.get("storage") or {})}
        if storage["type"] == "auto":
            storage["type"] = "object"
        if storage["type"] in ("array", "memmap"):
            raise ConfigError(
                f"storage.type {storage['type']} holds rows of one shape, and episodes differ in "
                "length; use storage.type object, or a buffer of type sequence",
                path="policy.other.replay_buffer.storage.type",
            )
        return {**cfg, "storage": storage}

    @property
    def episode_len(self) -> list[int]:
        """Rows of each episode, oldest first."""
        with self._lock:
            self._check_open()
            return [len(episode) for episode in self._present(self._contents())]

    def push(self, data: Any, cur_collector_envstep: int, timeout_s: float | None = None) -> None:
        """Add episodes, overwriting the oldest of a full buffer.

        Args:
            data: A list of episodes, or one as a SampleBatch.
            cur_collector_envstep: Env steps collected so far; unused here.
            timeout_s: Seconds to wait for the limiter to admit the episodes; None: not at all.

        Raises:
            SchemaMismatchError: an element is no episode, or an empty one; nothing was pushed.
            BufferFullError: the limiter did not admit the episodes; nothing was pushed.
            BufferClosedError: the buffer is closed, or was while waiting.
        """
        episodes = data if type(data) is list else [data]
        stored = [_stored(index, episode) for index, episode in enumerate(episodes)]
        super().push(stored, cur_collector_envstep, timeout_s)

    def _push_unlimited(self, rows: Rows) -> None:
        # Saved episodes come as they were stored, those of demonstrations as they are pushed.
        super()._push_unlimited(
            [row if _is_columns(row) else _stored(i, row) for i, row in enumerate(rows)]
        )

    def _present(self, rows: Rows) -> Rows:
        return [_given(row) for row in rows]


def _stored(index: int, episode: Any) -> Any:
    """Return an episode as object storage keeps it: its columns, or a list of its rows."""
    if not isinstance(episode, (SampleBatch, list, tuple)) or len(episode) == 0:
        raise SchemaMismatchError(
            f"element {index} is no episode: a list of rows with at least one, or a SampleBatch; "
            "push one episode as push([episode], envstep)",
            key="",
            row=index,
            expected="a list of rows",
            found=f"{type(episode).__name__} {episode!r:.60}",
        )
    if isinstance(episode, SampleBatch):
        return episode.copy().columns
    return SampleBatch.from_rows(episode).columns if suits_arrays(episode) else list(episode)


def _given(stored: Any) -> Any:
    """Return a stored episode as the caller's own."""
    if not isinstance(stored, dict):
        return stored
    columns = map_columns(lambda array: array.copy(), stored)
    return SampleBatch.trusted(columns, common_length(columns))


def _is_columns(row: Any) -> bool:
    return isinstance(row, dict) and bool(as_columns(row))
