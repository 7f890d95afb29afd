"""How a collector of an on-policy learner takes the env steps that this one admits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any


class AdmittedCollecting(ABC):
    """Takes admitted env steps alone, and has the steps of one policy version in a payload.

    A collector derives from it and calls ``_is_admitted`` before each round of steps.

    Attributes:
        send_metadata: Reports payloads and progress; may block.
        get_policy_update_info: Returns a policy newer than the last one, None without any.
        await_admission: Waits until more steps than a number are admitted; returns how many in
            all, and the train iteration of the policy to take them with. None at the end.
    """

    send_metadata: Callable[[dict[str, Any]], None]
    get_policy_update_info: Callable[[str], dict[str, Any] | None]
    await_admission: Callable[[int], tuple[int, int] | None]
    _admitted_steps = 0
    _policy_iter = 0
    """Train iteration of the policy that acts."""

    @property
    @abstractmethod
    def _is_closed(self) -> bool:
        """Whether the task is to end."""

    @abstractmethod
    def _send_all(self) -> None:
        """Cut all trajectories here, and send what was collected."""

    @abstractmethod
    def _load(self, path: str, update: Mapping[str, Any]) -> None:
        """Act with a policy from now on."""

    @abstractmethod
    def _update_one(self, path: str, is_needed: Callable[[], bool] = lambda: True) -> None:
        """Wait for a newer policy and load it; returns without one where it is needed no more."""

    @abstractmethod
    def _progress(self) -> dict[str, Any]:
        """Return how far the task is, as it is reported."""

    def _is_admitted(self, path: str, steps: int) -> bool:
        """Wait until the next round may be taken; False where the task is over.

        Args:
            path: Of the policy whose rows are trained on.
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
            # Asked each time: a learner that was restarted goes back, and so does what is admitted.
            admission = self.await_admission(steps)
            if admission is None:
                return False
            self._admitted_steps, policy_iter = admission
            return self._policy_iter < policy_iter

        while not self._is_closed and lacks_policy():
            self._update_one(path, lacks_policy)
        return not self._is_closed and steps < self._admitted_steps
