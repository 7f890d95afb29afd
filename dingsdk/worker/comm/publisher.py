"""Publishes a worker's policies; a full disk delays them without an error."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dingsdk.errors import StorageFullError
from dingsdk.worker.comm.worker import CommWorker

_log = logging.getLogger(__name__)

LAST_POLICY_S = 2.0
"""How long to try to publish the last policy of a task: less than a job may take to stop."""
_PAUSE_S = 0.2
"""Pause between two tries to publish a policy."""


class PolicyPublisher:
    """Publishes policies; if the disk is full, a policy is skipped and the next one is tried.

    The first policy is tried until there is room, as collectors cannot begin without it. Use it
    from one thread at a time.

    Attributes:
        is_behind: Whether the newest one was skipped.
        held_up_by: Why the first policy is not published yet; empty otherwise.
    """

    def __init__(self, worker: CommWorker) -> None:
        self._worker = worker
        self._has_any = False
        self.is_behind = False
        self.held_up_by = ""

    def publish(
        self, policy_id: str, model: Mapping[str, Any], version: int, *, is_last: bool = False
    ) -> bool:
        """Publish a version; return whether there was room for it.

        Args:
            version: Number of updates that the weights have seen.
            is_last: Whether no other policy follows; it is then tried for ``LAST_POLICY_S``.
        """
        tries_left = int(LAST_POLICY_S / _PAUSE_S) if is_last else 0
        while not self._try(policy_id, model, version):
            if tries_left:
                tries_left -= 1
                with self._worker.condition:
                    self._worker.condition.wait_for(lambda: False, _PAUSE_S)
            elif self.held_up_by and not (is_last or self._worker.is_stopping):
                self._worker.pause(_PAUSE_S)
            else:
                self.held_up_by = ""
                return False
        return True

    def _try(self, policy_id: str, model: Mapping[str, Any], version: int) -> bool:
        store, was_behind = self._worker.policy_store, self.is_behind
        try:
            store.publish(policy_id, model, version)
        except StorageFullError as error:
            self._has_any = self._has_any or store.newest(policy_id) is not None
            self.held_up_by = "" if self._has_any else str(error)
            self.is_behind = True
            if not was_behind:
                text = "version %d of policy %s is not published, an older one stays, if any: %s"
                _log.warning(text, version, policy_id, error)
            return False
        self._has_any, self.held_up_by, self.is_behind = True, "", False
        if was_behind:
            text = "version %d of policy %s is published: there is room again"
            _log.warning(text, version, policy_id)
        return True
