"""Wrappers of single envs, of kind ``env_wrappers``; gymnasium's are named by their classes."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.wrappers.utils import RunningMeanStd
from numpy.typing import NDArray

from dingsdk.errors import ConfigError

_videos = itertools.count()


class EpisodeStatistics(gym.Wrapper[Any, Any, Any, Any]):
    """Type ``episode_statistics``: puts length and return of an episode into ``episode_info``.

    Evaluations show them as ``episode_length`` and ``episode_return``, with their means. Wrap it
    around the wrappers whose rewards are to count, or inside of them for the raw rewards.
    """

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self._length, self._return = 0, 0.0
        return super().reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        self._length += 1
        self._return += float(reward)
        if terminated or truncated:
            own = {"episode_length": self._length, "episode_return": self._return}
            info = {**info, "episode_info": {**info.get("episode_info", {}), **own}}
        return obs, reward, terminated, truncated, info


class NormalizeObservation(gym.ObservationWrapper[Any, Any, Any]):
    """Type ``normalize_obs``: subtracts a mean and divides by a deviation, both from a file.

    The statistics are fixed, so that collectors, evaluators and a policy in use see the same
    scale. ``measure_observations`` writes such a file. gymnasium's ``NormalizeObservation``
    measures while it runs, separately for each env.

    Args:
        env: An env whose observations are a Box.
        statistics: Path of an ``.npz`` file with ``mean`` and ``var`` of the observation's shape.
        clip: Largest magnitude of the new observations.

    Raises:
        ConfigError: the file cannot be read, is for observations of another shape, or holds
            numbers that are no mean and variance; or ``clip`` is not above 0.
    """

    def __init__(self, env: gym.Env[Any, Any], statistics: str, clip: float = 10.0) -> None:
        super().__init__(env)
        space = env.observation_space
        try:
            with np.load(statistics, allow_pickle=False) as saved:
                mean, var = saved["mean"], saved["var"]
        except (OSError, KeyError, ValueError) as error:
            raise ConfigError(
                f"env.wrappers: normalize_obs cannot read mean and var from {statistics}: {error}; "
                "write the file with dingsdk.envs.measure_observations",
                path="env.wrappers",
            ) from error
        is_fitting = mean.shape == var.shape == space.shape
        if not (is_fitting and np.isfinite([mean, var]).all() and (var >= 0).all() and clip > 0):
            raise ConfigError(
                f"env.wrappers: normalize_obs needs finite numbers and variances >= 0 for {space}, "
                f"and clip > 0; found mean {mean} and var {var} in {statistics}, and clip {clip}",
                path="env.wrappers",
            )
        # In float32 the difference of two large numbers would be rounded.
        self._mean = mean.astype(np.float64)
        self._scale = 1 / np.sqrt(var.astype(np.float64) + 1e-8)
        self._clip = clip
        self.observation_space = gym.spaces.Box(-clip, clip, mean.shape, np.float32)

    def observation(self, observation: Any) -> NDArray[np.float32]:
        """Return the observation on the scale of the statistics."""
        scaled = (observation - self._mean) * self._scale
        made: NDArray[np.float32] = np.clip(scaled, -self._clip, self._clip).astype(np.float32)
        return made


class SelectObservation(gym.ObservationWrapper[Any, Any, Any]):
    """Type ``select_obs``: keeps some entries of a vector, and hides the others.

    Args:
        env: An env whose observations are a Box of one dimension.
        indices: Indices of the entries to keep, in the order of the new observation.

    Raises:
        ConfigError: the observations are of another space, or have no such entry.
    """

    contract_config: ClassVar[Mapping[str, Any]] = {"indices": [0, 2]}

    def __init__(self, env: gym.Env[Any, Any], indices: Sequence[int]) -> None:
        super().__init__(env)
        space: Any = env.observation_space
        is_vector = isinstance(space, gym.spaces.Box) and len(space.shape) == 1
        known = range(space.shape[0]) if is_vector else ()
        if not indices or not all(type(each) is int and each in known for each in indices):
            raise ConfigError(
                f"env.wrappers: select_obs keeps the entries {list(indices)} of a Box of one "
                f"dimension, found {space}",
                path="env.wrappers",
                expected="indices of entries",
                found=list(indices),
            )
        self._indices = list(indices)
        low, high = space.low[self._indices], space.high[self._indices]
        self.observation_space = gym.spaces.Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: Any) -> Any:
        """Return the entries that are kept."""
        return observation[self._indices]


def measure_observations(
    env_fn: Callable[[], gym.Env[Any, Any]], path: str | Path, steps: int = 10_000, seed: int = 0
) -> None:
    """Write the mean and variance of an env's observations, under random actions.

    Args:
        env_fn: Makes the env, such as an ``EnvFn``; its observations are a Box.
        path: Where to write, an ``.npz`` file.
        steps: Env steps to take.
        seed: Seed of the env and of the actions.
    """
    env = env_fn()
    env.action_space.seed(seed)
    statistics = RunningMeanStd(0, env.observation_space.shape or ())  # type: ignore[no-untyped-call]
    obs, _ = env.reset(seed=seed)
    for _ in range(steps):
        statistics.update(obs[None])  # type: ignore[no-untyped-call]
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            obs, _ = env.reset()
    env.close()
    np.savez(path, mean=statistics.mean, var=statistics.var)


def record_video(
    env: gym.Env[Any, Any], folder: str, every: int = 100, length: int = 0
) -> gym.Env[Any, Any]:
    """Type ``record_video``: writes episodes as mp4 files; ``env.kwargs.render_mode`` is needed.

    Args:
        env: An env made with ``render_mode: rgb_array``.
        folder: Folder of the files; each env uses its own file names.
        every: The first episode is recorded, and each ``every``-th after it.
        length: Frames of a video; 0 for whole episodes.
    """
    with warnings.catch_warnings():
        # gymnasium warns of a folder that exists, as it does for the second env.
        warnings.simplefilter("ignore")
        return gym.wrappers.RecordVideo(
            env,
            str(folder),
            episode_trigger=lambda episode: episode % every == 0,
            video_length=length,
            name_prefix=f"{os.getpid()}-{next(_videos)}",
        )
