"""Sequence, episode and elastic buffers that break the rules of their kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dingsdk.data import SampleBatch
from dingsdk.worker.replay_buffer import (
    ElasticReplayBuffer,
    EpisodeReplayBuffer,
    SequenceReplayBuffer,
)

from .buffer_mutant import BASE, Mutant, mutant


class Sequences(Mutant, SequenceReplayBuffer):
    capabilities = BASE | {"columns", "sequences"}


class Episodes(Mutant, EpisodeReplayBuffer):
    capabilities = BASE | {"distinct", "ages", "episodes"}
    storage = "object"


class Elastic(Mutant, ElasticReplayBuffer):
    capabilities = BASE | {"distinct", "columns", "elastic"}


@mutant(41, 42)
class CrossesEnds(Sequences):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__({**cfg, "sampler": {"type": "sequence", "end": "no such column"}})


@mutant(41)
class IgnoresEndTrajectory(Sequences):
    def end_trajectory(self) -> None:
        pass


@mutant(42)
class PrefersLateStarts(Sequences):
    def sample(self, *args: Any, **options: Any) -> Any:
        draw = type(self._sampler).draw.__get__(self._sampler)  # type: ignore[attr-defined]

        def prefer(size: int, length: int) -> Any:
            drawn = [draw(size, length) for _ in range(8)]
            return None if None in drawn else max(drawn, key=lambda each: each[0].sum())

        self._sampler.draw = prefer  # type: ignore[attr-defined]
        return super().sample(*args, **options)


@mutant(44)
class DropsWhatIsNoEpisode(Episodes):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        if type(data) is list:
            data = [each for each in data if not each or isinstance(each, (list, SampleBatch))]
        super().push(data, *args, **options)


@mutant(45)
class HasTheOldestInItsWindow(Elastic):
    def _ages(self, sample_range: slice | None) -> range | None:
        count = self._remover.count
        return None if self._size >= count else range(self._size)
