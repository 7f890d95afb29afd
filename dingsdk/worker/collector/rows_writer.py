"""Turns single transitions into train samples, trajectory by trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.policy.base import CollectMode
from dingsdk.worker.collector.trajectory import TrajBuffer, to_tensor_transitions


class RowsWriter:
    """Keeps a buffer of transitions per env and converts those that end or are full.

    Args:
        env_num: Number of envs.
        traj_len: A trajectory is cut when it holds this many transitions; None for only
            at its end.
        policy: Its ``get_train_sample`` makes samples of a trajectory.
        deepcopy: Keep copies of the transitions, and let no two of them share an
            observation.
    """

    def __init__(
        self, env_num: int, traj_len: int | None, policy: CollectMode, deepcopy: bool = False
    ) -> None:
        self._traj_len = traj_len
        self._policy = policy
        self._deepcopy = deepcopy
        self._env_num = env_num
        self.level_seeds: Sequence[int] | Mapping[int, int] | None = None
        self.clear()

    def clear(self) -> None:
        """Forget all that was recorded."""
        self._trajectories = [
            TrajBuffer(self._traj_len, deepcopy=self._deepcopy) for _ in range(self._env_num)
        ]
        self._samples: list[Any] = []

    @property
    def pending_rows(self) -> int:
        """Samples that wait for ``flush``."""
        return len(self._samples)

    def record(
        self, env_id: int, transition: dict[str, Any], train_iter: int, is_done: bool
    ) -> None:
        """Append one transition of one env."""
        transition["collect_iter"] = train_iter
        if self.level_seeds is not None:
            transition["seed"] = self.level_seeds[env_id]
        trajectory = self._trajectories[env_id]
        trajectory.append(transition)
        if is_done or len(trajectory) == self._traj_len:
            self._convert(trajectory)

    def cut_unfinished(self) -> None:
        """Cut all trajectories here, as if full; without a ``traj_len`` they are left alone."""
        if self._traj_len is None:
            return
        for trajectory in self._trajectories:
            if trajectory:
                self._convert(trajectory)

    def drop(self, env_ids: NDArray[np.int64]) -> None:
        """Forget the unfinished trajectories of these envs."""
        for env_id in env_ids.tolist():
            self._trajectories[env_id].clear()

    def retire(self, env_ids: NDArray[np.int64]) -> None:
        """Record nothing more of these envs."""
        self.drop(env_ids)

    def flush(self) -> list[Any] | None:
        """Hand out the samples that wait; None when there are none."""
        if not self._samples:
            return None
        samples, self._samples = self._samples, []
        return samples

    def _convert(self, trajectory: TrajBuffer) -> None:
        converted = to_tensor_transitions(trajectory, not self._deepcopy)
        self._samples.extend(self._policy.get_train_sample(converted))
        trajectory.clear()
