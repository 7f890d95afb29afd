"""The environment, the policy and the metric of the example ``metric-supervised``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.examples import digits
from dingsdk.examples.digits import Accuracy, DigitReader, Digits, draw, held_out


def test_digits_are_drawn_at_every_position_of_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "NOISE", 0.0)
    images, labels = draw(np.random.default_rng(0), 2000)
    assert (images.dtype, images.shape, labels.shape) == (np.float32, (2000, 64), (2000,))
    assert set(labels.tolist()) == set(range(10))
    assert set(images.ravel().tolist()) == {0.0, 1.0}
    pixels = [12, 8, 11, 11, 9, 11, 12, 7, 13, 12]  # of each digit of the font
    assert images.sum(1).tolist() == [pixels[label] for label in labels]

    eights = images[labels == 8].reshape(-1, 8, 8)
    places = set()
    for image in eights:
        rows, columns = np.nonzero(image)
        assert (np.ptp(rows), np.ptp(columns)) == (4, 2)
        places.add((int(rows.min()), int(columns.min())))
    assert places == {(top, left) for top in range(4) for left in range(6)}


def test_noise_has_a_standard_deviation_of_015() -> None:
    images, _ = draw(np.random.default_rng(0), 500)
    noise = images - images.round()
    assert abs(noise.mean()) < 0.01
    assert noise.std() == pytest.approx(0.15, rel=0.05)


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


def test_first_optimizer_step_is_as_large_as_the_learning_rate() -> None:
    images, labels = (torch.from_numpy(each) for each in draw(np.random.default_rng(0), 64))
    policy = reader("learn")
    before = [each.detach().clone() for each in policy.state()["model"].parameters()]
    policy.learn({"image": images, "label": labels})
    after = [each.detach() for each in policy.state()["model"].parameters()]
    moved = max(float((new - old).abs().max()) for new, old in zip(after, before, strict=True))
    assert moved == pytest.approx(1e-3, rel=0.01)  # the first step of Adam
    assert DigitReader.default_config().collect.n_sample == 256


def test_reader_without_learn_mode_has_no_optimizer() -> None:
    assert reader("eval").state().keys() == {"model"}


def test_samples_contain_the_observed_labels() -> None:
    columns = {"obs": {"image": np.zeros((2, 64), np.float32), "label": np.array([1, 2])}}
    found = reader("collect").samples(columns, np.array([2]))
    assert found.columns["label"].tolist() == [1, 2]


def test_accuracy_is_the_fraction_of_right_labels() -> None:
    metric = Accuracy()
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    assert metric.eval(scores, torch.tensor([1, 0, 1, 0])) == 0.75
    assert metric.reduce_mean([0.5, 1.0, 0.75]) == 0.75
    assert [metric.gt(0.5, other) for other in (None, 0.4, 0.5, 0.6)] == [True, True, True, False]


def test_held_out_set_has_1000_digits_and_is_the_same_each_time() -> None:
    data, metric = held_out()
    first, again = list(data), list(data)
    assert isinstance(metric, Accuracy)
    assert [(images.shape, labels.shape) for images, labels in first] == [((250, 64), (250,))] * 4
    for one, other in zip(first, again, strict=True):
        assert np.array_equal(one[0], other[0])
    assert not np.array_equal(first[0][0], first[1][0])
