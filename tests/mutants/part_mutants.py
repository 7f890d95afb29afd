"""Parts of a replay buffer with one defect each."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dingsdk.errors import CheckpointCorruptError
from dingsdk.worker.replay_buffer.limiter import (
    MinSizeLimiter,
    SamplesPerInsertLimiter,
)
from dingsdk.worker.replay_buffer.remover import FifoRemover
from dingsdk.worker.replay_buffer.sampler.priority import ProportionalSampler
from dingsdk.worker.replay_buffer.sampler.sequence import SequenceSampler
from dingsdk.worker.replay_buffer.sampler.uniform import UniformSampler
from dingsdk.worker.replay_buffer.storage.arrays import ArrayStorage
from dingsdk.worker.replay_buffer.storage.objects import ObjectStorage

from ..contracts.random_remover import RandomRemover
from .mutant_list import MutantList


class Mutant:
    """Mixin for the class of a part: its kind, and the capabilities it is tested with."""

    kind: ClassVar[str]
    capabilities: ClassVar[frozenset[str]]
    cfg: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def make(cls, capacity: int, seed: int, folder: Path, **settings: Any) -> Any:
        args = {"storage": (capacity,), "limiter": (seed,)}.get(cls.kind, (capacity, seed))
        return cls({**cls.cfg, **settings}, *args)  # type: ignore[call-arg]


MUTANTS = MutantList()
mutant = MUTANTS.mutant


class Arrays(Mutant, ArrayStorage):
    kind = "storage"
    capabilities = frozenset({"columns", "any_order"})


class Objects(Mutant, ObjectStorage):
    kind = "storage"
    capabilities = frozenset({"objects", "any_order"})


@mutant(15)
class KeepsPushedRows(Objects):
    def accept(self, rows: Any) -> Any:
        super().accept(rows)
        return list(rows)


@mutant(9)
class FillsFrom0(Objects):
    def put(self, where: Any, rows: Any) -> None:
        if isinstance(where, slice):
            self._items[where] = rows
        else:
            super().put(where, rows)


@mutant(13)
class RelinksSharedRows(Arrays):
    cfg: ClassVar = {"next_of": "obs"}


class Rows(Mutant, UniformSampler):
    kind = "sampler"
    capabilities = frozenset({"rows", "distinct"})


class Priorities(Mutant, ProportionalSampler):
    kind = "sampler"
    capabilities = frozenset({"priorities", "proportional"})


class Sequences(Mutant, SequenceSampler):
    kind = "sampler"
    capabilities = frozenset({"sequences"})


@mutant(15)
class TakesAnyState(Rows):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with contextlib.suppress(CheckpointCorruptError):
            super().load_state_dict(state)


@mutant(15)
class KeepsRowsThatWereCleared(Sequences):
    def clear(self) -> None:
        if not hasattr(self, "_count"):
            super().clear()


@mutant(6)
class MistakesRankForAge(Rows):
    """Treats the highest ranks as the newest rows, and prefers them."""

    capabilities = frozenset({"rows"})

    def draw(self, population: int, size: int, replace: bool = False) -> Any:
        ages = np.arange(population) + 2.0
        return self._rng.choice(population, size, replace, p=ages / ages.sum())


@mutant(15)
class DrawsRowsThatLeft(Priorities):
    def on_remove(self, where: Any) -> None:
        self.assign(where, 1e-3)


class Ring(Mutant, FifoRemover):
    kind = "remover"
    capabilities = frozenset({"fifo", "ages"})


class Random(Mutant, RandomRemover):
    kind = "remover"
    capabilities = frozenset({"random"})


@mutant(11)
class TellsRowsThatLeaveYoungestFirst(Ring):
    def allot(self, n: int) -> Any:
        where, leaving = super().allot(n)
        if leaving is None:
            return where, None
        return where, np.arange(self.capacity)[leaving][::-1]


@mutant(9)
class CountsItselfAmongTheNewer(Ring):
    def newer(self, where: Any) -> Any:
        return super().newer(where) + 1


@mutant(10)
class HasOneSeed(Random):
    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int) -> None:
        super().__init__(cfg, capacity, 0)


class MinSize(Mutant, MinSizeLimiter):
    kind = "limiter"
    capabilities = frozenset({"min_size"})
    cfg: ClassVar = {"min_size": 10}


class Ratio(Mutant, SamplesPerInsertLimiter):
    kind = "limiter"
    capabilities = frozenset({"min_size", "bounded"})
    cfg: ClassVar = {"samples_per_insert": 1.5, "min_size": 10}


@mutant(1, 5)
class CountsPushes(MinSize):
    def on_insert(self, n: int) -> None:
        super().on_insert(n)
        self.inserts += 1 - n


@mutant(2, 7)
class RefusesTheFirstRows(MinSize):
    def can_insert(self, n: int) -> bool:
        return n <= 100 and self.size + n >= 4


@mutant(4)
class TakesAQuestionForASample(Ratio):
    cfg: ClassVar = {**Ratio.cfg, "error_buffer": 30.0}

    def can_sample(self, n: int) -> bool:
        admitted = super().can_sample(n)
        if admitted and self.samples < 50:
            self.samples += n
        return admitted


@mutant(5)
class ForgetsSamples(Ratio):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.samples = 0


@mutant(5)
class TakesAnyCounts(MinSize):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with contextlib.suppress(CheckpointCorruptError):
            super().load_state_dict(state)


@mutant(7)
class ForgetsRowsThatLeft(MinSize):
    def can_sample(self, n: int) -> bool:
        return self.inserts >= self.min_size


@mutant(8, 7)
class AdmitsEveryPush(Ratio):
    def can_insert(self, n: int) -> bool:
        return True


@mutant(4)
class AsksToTryAtOnce(MinSize):
    def retry_after_s(self) -> float | None:
        return 0.0


@mutant(10, 7)
class NeverAdmitsASample(MinSize):
    def can_sample(self, n: int) -> bool:
        return False
