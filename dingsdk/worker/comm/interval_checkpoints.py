"""Checkpoints that a comm learner saves at intervals."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from dingsdk.errors import StorageFullError
from dingsdk.worker.learner.checkpoint import save_pause

_log = logging.getLogger(__name__)


class IntervalCheckpoints:
    """Saves a checkpoint of a learner at intervals, in addition to those of its hooks.

    A run continues from it if the learner is killed. A checkpoint is left out if there is no room
    for it, while the other files of the learner wait for room.

    Args:
        every_s: Seconds from one checkpoint to the next, or more if saving would take over 2 % of
            the time; None for no checkpoints at intervals.
        clock: Returns the time in seconds.
        patience: How the learner writes its other files.
    """

    def __init__(
        self,
        every_s: float | None,
        clock: Callable[[], float],
        patience: Callable[[Callable[[], object]], object],
    ) -> None:
        self._every_s = math.inf if every_s is None else every_s
        self._clock = clock
        self._saved_iter = 0
        self._is_saving = False
        self._save_at = clock() + self._every_s
        self._patience = patience

    def patience(self, write: Callable[[], object]) -> object:
        """Write a file of the learner, which waits for room unless it is of such a checkpoint."""
        return write() if self._is_saving else self._patience(write)

    def save_if_due(self, learner: Any) -> None:
        """Save a checkpoint if it is time for one and the learner has trained since the last."""
        began, train_iter = self._clock(), learner.train_iter
        if began < self._save_at:
            return
        if train_iter != self._saved_iter:
            self._saved_iter, self._is_saving = train_iter, True
            try:
                learner.save_checkpoint()
            except StorageFullError as error:
                text = "no checkpoint of iteration %d, training continues: %s"
                _log.warning(text, train_iter, error)
            finally:
                self._is_saving = False
        now = self._clock()
        self._save_at = now + save_pause(self._every_s, now - began)
