from __future__ import annotations

import numpy as np
import pytest
import torch

from dingsdk.errors import ConfigError
from dingsdk.worker.evaluator.monitor import VectorEvalMonitor


def test_quota_is_spread_over_the_envs() -> None:
    assert VectorEvalMonitor(3, 7).quota.tolist() == [3, 2, 2]
    with pytest.raises(ConfigError):
        VectorEvalMonitor(3, 2)


def test_episodes_beyond_the_quota_are_ignored() -> None:
    monitor = VectorEvalMonitor(2, 3)
    for value in (1.0, 2.0, 3.0):
        monitor.update_reward(0, value)
        monitor.update_info(0, {"score": value})
    assert not monitor.is_finished()
    monitor.update_reward(1, torch.tensor([9.0]))
    monitor.update_info(1, {"score": 9.0})

    assert monitor.is_finished()
    assert monitor.get_episode_return() == [1.0, 2.0, 9.0]
    assert monitor.get_latest_reward(0) == 2.0
    assert monitor.get_current_episode() == 3
    assert monitor.get_episode_info() == {"score": [1.0, 2.0, 9.0], "score_mean": 4.0}


def test_only_statistics_that_are_always_numbers_have_a_mean() -> None:
    monitor = VectorEvalMonitor(1, 2)
    assert monitor.get_episode_info() is None
    monitor.update_info(0, {"map": "desert", "hits": torch.tensor([1, 2]), "won": True, "at": 3})
    monitor.update_info(0, {"at": "none"})
    assert monitor.get_episode_info() == {
        "map": ["desert"],
        "hits": [[1, 2]],
        "won": [True],
        "won_mean": 1.0,
        "at": [3, "none"],
    }


@pytest.mark.parametrize(
    ("episodes", "picked"), [(1, [0]), (3, [0, 1, 2]), (5, [0, 2, 3, 4]), (6, [0, 2, 3, 5])]
)
def test_video_shows_worst_median_and_best(episodes: int, picked: list[int]) -> None:
    monitor = VectorEvalMonitor(1, episodes)
    assert monitor.get_video().shape == (0,)
    for episode in reversed(range(episodes)):
        for frame in range(episode + 1):
            monitor.update_video({0: np.full((2, 3, 1), 10 * episode + frame, np.uint8)})
        monitor.update_reward(0, float(episode))
    monitor.update_video({0: np.zeros((2, 3, 1), np.uint8)})

    video = monitor.get_video()

    assert video.shape == (len(picked), picked[-1] + 1, 1, 2, 3)
    assert video[:, 0, 0, 0, 0].tolist() == [10 * episode for episode in picked]
    assert video[0, -1, 0, 0, 0] == 0  # padded with its last frame
