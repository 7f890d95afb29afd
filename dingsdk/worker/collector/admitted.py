"""Collecting for an on-policy learner, which decides how many env steps may be taken."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any


class AdmittedCollecting(ABC):
    """Takes only admitted env steps; a payload has steps of only one policy version.

    A collector derives from it and calls ``_is_admitted`` before each round of steps.

    Attributes:
        send_metadata: Reports payloads and progress; may block.
        get_policy_update_info: Returns a policy that is newer than the last one, or None.
        await_admission: Called with the number of steps taken; waits until more are admitted.
            Returns the total number of admitted steps, and the train iteration of the policy that
            must take them; None if the task is over.
    """

    send_metadata: Callable[[dict[str, Any]], None]
    get_policy_update_info: Callable[[str], dict[str, Any] | None]
    await_admission: Callable[[int], tuple[int, int] | None]
    _admitted_steps = 0
    _policy_iter = 0
    """Train iteration of the current policy."""

    @property
    @abstractmethod
    def _is_closed(self) -> bool:
        """Whether the task must end."""

    @abstractmethod
    def _send_all(self) -> None:
        """Cut all trajectories now, and send the collected samples."""

    @abstractmethod
    def _load(self, path: str, update: Mapping[str, Any]) -> None:
        """Load a policy, and act with it from now on."""

    @abstractmethod
    def _update_one(self, path: str, is_needed: Callable[[], bool] = lambda: True) -> None:
        """Wait for a newer policy and load it; stop waiting when ``is_needed`` returns False."""

    @abstractmethod
    def _progress(self) -> dict[str, Any]:
        """Return the progress of the task, as it is reported."""

    def _is_admitted(self, path: str, steps: int) -> bool:
        """Wait until the next round may be taken; return False if the task is over.

        Args:
            path: Path of the policy that is trained.
            steps: Env steps that the task has taken.
        """
        update = self.get_policy_update_info(path)
        if update is None and steps < self._admitted_steps:
            return True
        self._send_all()
        if update is not None:
            self._load(path, update)
        delivered = {"delivered_steps": steps, "policy_iter": self._policy_iter}
        self.send_metadata({**self._progress(), **delivered})
        if steps < self._admitted_steps:
            return True

        def lacks_policy() -> bool:
            # Asked each time, because both values may decrease when the learner restarts.
            admission = self.await_admission(steps)
            if admission is None:
                return False
            self._admitted_steps, policy_iter = admission
            return self._policy_iter < policy_iter

        while not self._is_closed and lacks_policy():
            self._update_one(path, lacks_policy)
        return not self._is_closed and steps < self._admitted_steps
