"""Publishes the policies of a worker; a full disk delays them without an error."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dingsdk.errors import StorageFullError
from dingsdk.worker.comm.worker import CommWorker
from dingsdk.worker.policy_lag import LagCounter

_log = logging.getLogger(__name__)

LAST_POLICY_S = 2.0
"""How long to try to publish the last policy of a task: less than a job may take to stop."""
_PAUSE_S = 0.2
"""Pause between two tries to publish a policy."""


class PolicyPublisher:
    """Publishes versions of a policy; if the disk is full, one is skipped and the next one tried.

    The first version is tried until there is room, as collectors cannot begin without it. A learner
    publishes before its first and after its last iteration, and in between: off-policy every
    ``send_policy_freq`` updates, on-policy after each training, as collectors wait for that
    version. It tries a version that was skipped again while it waits for samples. Use it from one
    thread at a time.

    Args:
        worker: A comm learner, or a comm collector that publishes the policy that it evaluated.
        policy_id: Id of the policy in the policy store.
        send_policy_freq: Train iterations from one version to the next; None if on-policy.

    Attributes:
        version: The version that it was given last; -1 before the first.
        is_behind: Whether the newest one was skipped.
        held_up_by: Why the first version is not published yet; empty otherwise.
        lags: Counts how many versions old the rows are that the learner trains on.
    """

    def __init__(
        self, worker: CommWorker, policy_id: str, send_policy_freq: int | None = None
    ) -> None:
        self.send_policy_freq = send_policy_freq
        self.version = -1
        self.is_behind = False
        self.held_up_by = ""
        self._worker: Any = worker
        self._policy_id = policy_id
        self._has_any = False
        self._versions: list[int] = []  # on-policy
        self._read_version = -1  # that was last checked to be readable
        self.lags = LagCounter(self._versions, every=1)
        if send_policy_freq is not None:
            self.lags = LagCounter(send_policy_freq)

    def publish(self, model: Mapping[str, Any], version: int, *, is_last: bool = False) -> bool:
        """Publish a version; return whether there was room for it.

        Args:
            model: Tensors by name.
            version: Number of updates that the weights have seen.
            is_last: Whether no other version follows; it is then tried for ``LAST_POLICY_S``.
        """
        if self.send_policy_freq is None and version > self.version:
            self._versions.append(version)
        store, self.version = self._worker.policy_store, version
        if is_last and store.newest(self._policy_id, version) is not None:
            # Newer weights were lost with another learner; the last evaluation must not use them.
            store.discard(self._policy_id)
        tries_left = int(LAST_POLICY_S / _PAUSE_S) if is_last else 0
        while not self._try(model, version):
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

    def _try(self, model: Mapping[str, Any], version: int) -> bool:
        store, policy_id, was_behind = self._worker.policy_store, self._policy_id, self.is_behind
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

    def publish_newest(self, learner: Any) -> None:
        """Publish the weights that the learner has now, through ``send_policy``."""
        model = learner.policy.state_dict()["model"]
        self._worker.send_policy({"model": model, "iter": learner.train_iter})

    def before_wait(self, learner: Any) -> None:
        """On-policy, publish the version of the training that has just ended.

        It comes before the report of the training, as collectors need the new version by then.
        """
        if self.send_policy_freq is None and learner.train_iter != self.version:
            self.publish_newest(learner)

    def while_waiting(self, learner: Any) -> None:
        """Publish again what the store lacks; called regularly while the learner waits."""
        if self.is_behind:
            self.publish_newest(learner)
        elif self.send_policy_freq is None and self._read_version != self.version:
            # Collectors wait for this version, and cannot load it if it is damaged.
            self._read_version = self.version
            if self._worker.policy_store.newest(self._policy_id, self.version - 1) is None:
                self.publish_newest(learner)
