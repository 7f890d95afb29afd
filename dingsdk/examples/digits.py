"""Drawn digits, a policy that learns to read them, and how well it does: supervised learning.

Used by the example ``metric-supervised``. An env gives the images and their labels, a collector and
a replay buffer carry them, and the evaluator ``metric`` measures the accuracy on other images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows
from numpy.typing import NDArray
from torch import nn

from dingsdk.config import Positive, Scheduled
from dingsdk.data import SampleBatch
from dingsdk.envs import factory
from dingsdk.plugins import hookimpl
from dingsdk.policy import BasePolicy, CollectSection, EvalMode, LearnSection, PolicySection
from dingsdk.policy.adam import Adam
from dingsdk.policy.weights import Stateful
from dingsdk.worker import IMetric

_FONT = (
    "###" "#.#" "#.#" "#.#" "###",
    ".#." "##." ".#." ".#." "###",
    "###" "..#" "###" "#.." "###",
    "###" "..#" "###" "..#" "###",
    "#.#" "#.#" "###" "..#" "..#",
    "###" "#.." "###" "..#" "###",
    "###" "#.." "###" "#.#" "###",
    "###" "..#" "..#" ".#." ".#.",
    "###" "#.#" "###" "#.#" "###",
    "###" "#.#" "###" "..#" "###",
)  # fmt: skip
_GLYPHS = np.array([[char == "#" for char in glyph] for glyph in _FONT]).reshape(10, 5, 3)
SIZE = 8
NOISE = 0.15


def draw(rng: np.random.Generator, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return ``count`` digits at random places under noise.

    Returns:
        Images float32[count, 64], rows of 8 pixels, and labels int64[count] in [0, 9].
    """
    labels = rng.integers(10, size=count)
    images = rng.normal(0.0, NOISE, (count, SIZE, SIZE)).astype(np.float32)
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = rng.integers(SIZE - 5 + 1), rng.integers(SIZE - 3 + 1)
        image[top : top + 5, left : left + 3] += _GLYPHS[label]
    return images.reshape(count, -1), labels


class Digits(gym.Env[Any, Any]):
    """Shows 32 digits and their labels; the reward is 1 for the label as the action."""

    observation_space = gym.spaces.Dict(
        {
            "image": gym.spaces.Box(-np.inf, np.inf, (SIZE * SIZE,), np.float32),
            "label": gym.spaces.Discrete(10),
        }
    )
    action_space = gym.spaces.Discrete(10)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._images, self._labels = draw(self.np_random, 33)
        self._shown = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self._labels[self._shown])
        self._shown += 1
        return self._observe(), reward, False, self._shown == 32, {}

    def _observe(self) -> dict[str, Any]:
        return {"image": self._images[self._shown], "label": self._labels[self._shown]}


class ReaderLearn(LearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of the reader.

    Attributes:
        learning_rate: Step size of Adam.
    """

    learning_rate: Scheduled[Positive] = 1e-3


class ReaderCollect(CollectSection, frozen=True, kw_only=True):
    """Section ``policy.collect`` of the reader."""

    n_sample: int | None = 256


class ReaderSection(PolicySection, frozen=True, kw_only=True):
    """Section ``policy`` of the reader."""

    type: str = "digit_reader"
    learn: ReaderLearn = ReaderLearn()
    collect: ReaderCollect = ReaderCollect()


class DigitReader(BasePolicy):
    """Learns the labels of images by cross-entropy, type key ``digit_reader``.

    Its ``eval_mode.forward`` takes images float32[n, 64], and returns scores [n, 10].
    """

    Config = ReaderSection

    def build(self) -> None:
        self._network = nn.Sequential(
            nn.Linear(SIZE * SIZE, 128), nn.ReLU(), nn.Linear(128, 10)
        ).to(self.device)
        if self.learns:
            rate = self.section.learn.learning_rate
            self._optimizer = Adam(self._network, rate)

    def state(self) -> Mapping[str, Stateful]:
        found: dict[str, Stateful] = {"model": self._network}
        return {**found, "optimizer": self._optimizer} if self.learns else found

    @property
    def eval_mode(self) -> EvalMode:
        """What an evaluator may call; ``forward`` is that of a classifier."""
        return super().eval_mode._replace(forward=self._scores)

    def act(
        self, obs: Any, env_ids: Sequence[int] | None = None, *, explore: bool, **setting: Any
    ) -> dict[str, NDArray[Any]]:
        return {"action": self.array(self._scores(self.tensor(obs["image"])).argmax(1))}

    def samples(self, columns: dict[str, Any], ends: NDArray[np.int64]) -> SampleBatch:
        return SampleBatch(columns["obs"])

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        loss = F.cross_entropy(self._network(batch["image"]), batch["label"])
        norm = self._optimizer.minimize(loss)
        return {"total_loss": float(loss.detach()), "grad_norm": norm}

    def _scores(self, images: torch.Tensor, **_: Any) -> Any:
        with torch.no_grad():
            return self._network(images)


class Accuracy(IMetric):
    """The share of labels that have the highest score."""

    def eval(self, inputs: Any, label: Any) -> float:
        """Return the share of one batch; ``inputs`` are scores [n, labels]."""
        return float((inputs.argmax(1) == label).float().mean())

    def reduce_mean(self, inputs: list[float]) -> float:
        """Return the mean over batches."""
        return sum(inputs) / len(inputs)

    def gt(self, metric1: float, metric2: float | None) -> bool:
        """Whether ``metric1`` is as good as ``metric2``."""
        return metric2 is None or metric1 >= metric2


class _Batches:
    """1,000 digits that no env shows, in batches of 250."""

    def __iter__(self) -> Iterator[Any]:
        rng = np.random.default_rng(2**40)  # seeds of envs are smaller
        return (draw(rng, 250) for _ in range(4))


@factory
def held_out() -> tuple[_Batches, Accuracy]:
    """Return the data and the metric of an evaluation."""
    return _Batches(), Accuracy()


@hookimpl
def dingsdk_register_policies(registry: Any) -> None:
    """Register the policy."""
    registry.register("digit_reader", DigitReader)
