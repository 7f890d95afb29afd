"""A replay buffer beside a table of demonstrations, which gives a fixed share of each batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.data.container import decode_frame, encode_frame
from dingsdk.errors import SchemaMismatchError
from dingsdk.runtime.files import Folder
from dingsdk.worker.replay_buffer.config import demonstrations_in
from dingsdk.worker.replay_buffer.persistence import reading
from dingsdk.worker.replay_buffer.state import rows_of
from dingsdk.worker.replay_buffer.table import Table

STATE_NAME = "demonstrations.bin"
"""File in the folder of a saved buffer: the state of the demonstrations, without their rows."""

_KIND = "demonstrations"
_MAX_BYTES = 16 << 30
"""Largest saved state of demonstrations."""


class TableWithDemonstrations:
    """Draws a fixed share of each batch from demonstrations, and the rest from an online table.

    The first rows of a batch are drawn from the online table, the last
    ``demonstrations_in(share, size)`` rows from the demonstrations. Both draws follow the sampler
    of the config. Demonstrations never leave. Everything that is not defined here is that of the
    online table, such as ``push``, ``count`` and the limiter, which counts only its rows.

    In a prioritized sample, ``replay_unique_id`` of a demonstration is below 0, so that an update
    finds its row, and its ``staleness`` is -1. The importance weights correct each draw to a
    uniform one from its own table, and are relative to the largest one of that table; they do not
    change the share.

    Args:
        online: The table of collected rows.
        demonstrations: A table of the same type that holds all demonstrations.
        share: Share of the demonstrations in a batch, in (0, 1).
        source: Where the demonstrations come from, for messages.
    """

    def __init__(self, online: Table, demonstrations: Table, share: float, source: str) -> None:
        self.online: Any = online
        self.demonstrations: Any = demonstrations
        self.share = share
        self.source = source
        self._has_ids = False

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["online"], name)

    def can_sample(self, n: int) -> bool:
        """Whether a batch of ``n`` rows, demonstrations included, could be sampled now."""
        can_sample: bool = self.online.can_sample(n - demonstrations_in(self.share, n))
        return can_sample

    def sample(
        self, size: int, cur_learner_iter: int, **options: Any
    ) -> SampleBatch | list[Any] | None:
        """Return ``size`` rows as the caller's own copies, or None as the online table does.

        Args:
            size: Rows to draw, demonstrations included, >= 0.
            cur_learner_iter: Iteration of the learner, >= 0.
            options: Further arguments of the online table's ``sample``, for its draw only.

        Raises:
            SchemaMismatchError: the demonstrations have other columns than the collected rows.
            ConfigError, ConfigTypeError, BufferClosedError: as the online table.
        """
        shown = demonstrations_in(self.share, size)
        collected = self.online.sample(size - shown, cur_learner_iter, **options)
        if not collected or not shown:
            return collected  # type: ignore[no-any-return]
        drawn = self.demonstrations.sample(shown, cur_learner_iter)
        self._has_ids = "replay_unique_id" in drawn.columns
        if self._has_ids:
            np.invert(drawn.columns["replay_unique_id"], out=drawn.columns["replay_unique_id"])
            drawn.columns["staleness"].fill(-1)
        try:
            batch = SampleBatch.concat([collected, drawn])
        except SchemaMismatchError as error:
            raise SchemaMismatchError(
                f"the demonstrations of {self.source} (batch 1) do not have the columns of the "
                f"collected samples: {error}",
                **error.facts,
            ) from error
        return batch

    def update(self, info: Any) -> None:
        """Set the priorities of sampled rows, each in its table; else as the online table.

        Raises:
            InvalidPriorityError: as the prioritized buffer; no priority was changed.
        """
        if not self._has_ids or info.get("priority") is None:
            self.online.update(info)
            return
        from dingsdk.worker.replay_buffer.row_metadata import read_update

        priorities, ids, where = read_update(info)
        is_shown = ids < 0
        for table, chosen, own in (
            (self.online, ~is_shown, ids),
            (self.demonstrations, is_shown, ~ids),
        ):
            table.update(
                {
                    "priority": priorities[chosen],
                    "replay_unique_id": own[chosen],
                    "replay_buffer_idx": where[chosen],
                }
            )

    def save_data(self, file: str) -> None:
        """Write the online table as it does, and the state of the demonstrations beside it.

        The rows of the demonstrations are not written.

        Raises:
            RunFolderError, StorageFullError, SchemaMismatchError: as the online table.
        """
        self.online.save_data(file)
        with self.demonstrations.snapshot() as now:
            frame, _ = encode_frame(_KIND, now.state(None))
        with Folder(file) as folder:
            folder.write_atomic(STATE_NAME, frame, durable=True)

    def resume_data(self, file: str) -> None:
        """Replace the rows and the states of both tables by those that :meth:`save_data` wrote.

        The demonstrations have to be those of the save.

        Raises:
            CheckpointMissingError, CheckpointCorruptError, CheckpointVersionError: as the online
                table.
        """
        state = _read_state(file)
        self.online.resume_data(file)
        rows = rows_of(self.demonstrations.state_dict()["data"])
        self.demonstrations.restore(state, len(rows), lambda: [rows])

    def close(self) -> None:
        """Close both tables."""
        try:
            self.online.close()
        finally:
            self.demonstrations.close()


def _read_state(file: str) -> Any:
    with reading(Path(file, STATE_NAME)), Folder(file, create=False) as folder:
        content = folder.read(STATE_NAME, _MAX_BYTES)
        return decode_frame(_KIND, content, len(content))
