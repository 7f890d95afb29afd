"""The environment, the policy and the metric of the example ``metric-supervised``."""

from __future__ import annotations

import numpy as np
import torch

from dingsdk.examples.digits import Accuracy, Digits, draw


def test_env_shows_32_digits_and_rewards_the_right_label() -> None:
    env = Digits()
    obs, info = env.reset(seed=3)
    images, labels = draw(np.random.Generator(np.random.PCG64(np.random.SeedSequence(3))), 33)
    assert info == {}
    for number in range(32):
        assert env.observation_space.contains(obs)
        assert obs["image"].tolist() == images[number].tolist()
        assert obs["label"] == labels[number]
        is_right = number % 2 == 0
        action = labels[number] if is_right else (labels[number] + 1) % 10
        obs, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated, info) == (float(is_right), False, number == 31, {})
    assert obs["label"] == labels[32]
    again, _ = env.reset()
    assert again["image"].tolist() != images[0].tolist()


def test_accuracy_is_the_fraction_of_right_labels() -> None:
    metric = Accuracy()
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    assert metric.eval(scores, torch.tensor([1, 0, 1, 0])) == 0.75
    assert metric.reduce_mean([0.5, 1.0, 0.75]) == 0.75
    assert [metric.gt(0.5, other) for other in (None, 0.4, 0.5, 0.6)] == [True, True, True, False]
