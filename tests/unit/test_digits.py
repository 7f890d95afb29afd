"""The environment, the policy and the metric of the example ``metric-supervised``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.examples.digits import Accuracy, DigitReader, Digits, draw


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


def reader(*modes: Any) -> Any:
    cfg = DigitReader.default_config()
    return DigitReader(cfg, enable_field=list(modes), seed=0)


def test_reader_learns_the_labels() -> None:
    images, labels = (torch.from_numpy(each) for each in draw(np.random.default_rng(0), 64))
    policy = reader("learn", "eval")
    assert policy.state().keys() == {"model", "optimizer"}
    found = [policy.learn({"image": images, "label": labels}) for _ in range(150)]
    assert found[0]["total_loss"] == pytest.approx(2.3, abs=0.2)  # ln 10: untrained
    assert found[-1]["total_loss"] < 0.5 * found[0]["total_loss"]
    assert all(each["grad_norm"] > 0 for each in found)

    scores = policy.eval_mode.forward(images)
    assert (scores.shape, scores.requires_grad) == ((64, 10), False)
    right = Accuracy().eval(scores, labels)
    assert right > 0.9
    actions = policy.act({"image": images.numpy()}, explore=False)["action"]
    assert actions.tolist() == scores.argmax(1).tolist()


def test_accuracy_is_the_fraction_of_right_labels() -> None:
    metric = Accuracy()
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    assert metric.eval(scores, torch.tensor([1, 0, 1, 0])) == 0.75
    assert metric.reduce_mean([0.5, 1.0, 0.75]) == 0.75
    assert [metric.gt(0.5, other) for other in (None, 0.4, 0.5, 0.6)] == [True, True, True, False]
