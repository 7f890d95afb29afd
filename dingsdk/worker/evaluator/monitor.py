"""Unbiased episode statistics: the number of episodes of each env is fixed in advance."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.pytree import tensor_to_list
from dingsdk.worker.collector.rollout import EpisodeRecord, episode_quota, return_statistics


def evaluation_statistics(
    returns: Sequence[float], envsteps: int, seconds: float
) -> dict[str, float]:
    """Return the statistics that evaluations log; at least one episode is needed.

    Args:
        returns: Undiscounted return of each episode.
        envsteps: Number of steps of all episodes.
        seconds: Wall time of all episodes.
    """
    count = len(returns)
    return {
        "episode_count": count,
        "envstep_count": envsteps,
        "avg_envstep_per_episode": envsteps / count,
        "evaluate_time": seconds,
        "avg_envstep_per_sec": envsteps / max(seconds, 1e-9),
        "avg_time_per_episode": seconds / count,
        **return_statistics(returns),
    }


def info_of(episode: EpisodeRecord) -> dict[str, Any]:
    """Return an episode's info; its return replaces the env's own ``eval_episode_return``."""
    return _as_lists({**episode.info, "eval_episode_return": episode.episode_return})


def _as_lists(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an info with arrays and tensors as lists; other objects of the env are kept."""
    plain = dict(info)
    for key, value in info.items():
        with contextlib.suppress(TypeError):
            plain[key] = tensor_to_list(value)
    return plain


def merge_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each statistic as a list over episodes, and ``{key}_mean`` of numeric ones.

    If only some episodes report a key, its list is shorter.
    """
    keys = dict.fromkeys(key for info in infos for key in info)
    merged: dict[str, Any] = {k: [i[k] for i in infos if k in i] for k in keys}
    for key in keys:
        if all(isinstance(value, Number) for value in merged[key]):
            merged[f"{key}_mean"] = float(np.mean(merged[key]))
    return merged


class VectorEvalMonitor:
    """Collects the first episodes of each env, up to its quota; the others are ignored.

    Args:
        env_num: Number of envs.
        n_episode: Episodes in all, ``>= env_num``; see ``episode_quota``.

    Attributes:
        quota: int64[env_num], the episodes that each env contributes.

    Raises:
        ConfigError: ``n_episode < env_num``.
    """

    def __init__(self, env_num: int, n_episode: int) -> None:
        self.quota = episode_quota(n_episode, env_num, "n_episode")
        self._returns: list[list[float]] = [[] for _ in range(env_num)]
        self._infos: list[list[Mapping[str, Any]]] = [[] for _ in range(env_num)]
        # Frames of finished episodes and, last, of the one in progress.
        self._videos: list[list[list[NDArray[Any]]]] = [[[]] for _ in range(env_num)]

    def is_finished(self) -> bool:
        """Whether all envs have played their quota."""
        return all(len(r) >= q for r, q in zip(self._returns, self.quota, strict=True))

    def update_reward(self, env_id: int, reward: Any) -> None:
        """Append the return of a finished episode; a scalar, an array or a tensor."""
        if self._has_room(env_id):
            value = reward.detach().cpu().numpy() if hasattr(reward, "detach") else reward
            self._returns[env_id].append(float(np.sum(value)))
            if self._videos[env_id][-1]:
                self._videos[env_id].append([])

    def update_info(self, env_id: int, info: Mapping[str, Any]) -> None:
        """Append the statistics of a finished episode; tensors become lists."""
        if len(self._infos[env_id]) < self.quota[env_id]:
            self._infos[env_id].append(_as_lists(info))

    def update_video(self, imgs: Mapping[int, NDArray[Any]]) -> None:
        """Append a frame ``[H, W, C]`` to the episode in progress of each env in ``imgs``."""
        for env_id, img in imgs.items():
            if self._has_room(env_id):
                self._videos[env_id][-1].append(np.asarray(img))

    def get_episode_return(self) -> list[float]:
        """Return all returns, env after env."""
        return [value for returns in self._returns for value in returns]

    def get_latest_reward(self, env_id: int) -> float:
        """Return the newest return of an env."""
        return self._returns[env_id][-1]

    def get_current_episode(self) -> int:
        """Return how many episodes are recorded."""
        return sum(len(returns) for returns in self._returns)

    def get_episode_info(self) -> dict[str, Any] | None:
        """Return the merged statistics of all episodes, or None; see ``merge_infos``."""
        return merge_infos([info for of_env in self._infos for info in of_env]) or None

    def get_video(self) -> NDArray[Any]:
        """Return ``[N, T, C, H, W]``: worst, medians and best of the recorded episodes.

        N is the number of episodes up to 3, else 4 (worst, two medians, best). Shorter ones
        are filled up with their last frame. Empty ``[0]`` when no frame was recorded.
        """
        scored = [
            (value, frames)
            for returns, videos in zip(self._returns, self._videos, strict=True)
            for value, frames in zip(returns, videos, strict=False)
            if frames
        ]
        if not scored:
            return np.empty(0, np.uint8)
        scored.sort(key=lambda each: each[0])
        count = len(scored)
        picks = range(count)
        if count > 3:
            picks = (0, (count - 1) // 2, (count - 1) // 2 + 1, count - 1)  # type: ignore[assignment]
        chosen = [scored[pick][1] for pick in picks]
        longest = max(len(frames) for frames in chosen)
        padded = [frames + [frames[-1]] * (longest - len(frames)) for frames in chosen]
        return np.moveaxis(np.array(padded), -1, 2)

    def _has_room(self, env_id: int) -> bool:
        return len(self._returns[env_id]) < int(self.quota[env_id])
