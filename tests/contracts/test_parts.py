"""Every part of a replay buffer passes the contract of its kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest

from dingsdk.plugins import default_manager
from dingsdk.testing import (
    ContractError,
    LimiterContract,
    RemoverContract,
    SamplerContract,
    StorageContract,
    check_part,
)
from dingsdk.worker.replay_buffer import PrioritySampler, RowSampler
from dingsdk.worker.replay_buffer.sampler.uniform import COMPILED_FROM, UniformSampler
from dingsdk.worker.replay_buffer.storage.memmap import MemmapStorage

from .random_remover import RandomRemover

COLUMNS = frozenset({"columns"})


class TestArrays(StorageContract):
    capabilities: ClassVar[Collection[str]] = COLUMNS | {"any_order"}
    cfg: ClassVar[Mapping[str, Any]] = {"type": "array"}

    def make_part(self, capacity: int, seed: int, folder: Path) -> Any:
        return default_manager().create("storages", self.cfg, capacity)


@pytest.mark.slow
class TestLinkedArrays(TestArrays):
    capabilities = COLUMNS
    cfg: ClassVar = {"type": "array", "next_of": "obs"}


class TestObjects(TestArrays):
    capabilities = frozenset({"objects", "any_order"})
    cfg: ClassVar = {"type": "object"}


@pytest.mark.slow
class TestCompressedObjects(TestObjects):
    cfg: ClassVar = {"type": "object", "compress": "lz4"}


@pytest.mark.slow
class TestMaps(StorageContract):
    capabilities = COLUMNS | {"durable"}
    cfg: ClassVar[Mapping[str, Any]] = {}

    def make_part(self, capacity: int, seed: int, folder: Path) -> Any:
        return MemmapStorage({**self.cfg, "path": str(folder), "reopen": True}, capacity)


@pytest.mark.slow
class TestLinkedMaps(TestMaps):
    cfg: ClassVar = {"next_of": "obs"}


class Sampler(SamplerContract):
    """A sampler of the type ``kind``."""

    kind: ClassVar[str]

    def make_part(self, capacity: int, seed: int, folder: Path) -> Any:
        return default_manager().create("samplers", {"type": self.kind}, capacity, seed)


class TestUniform(Sampler):
    kind = "uniform"
    capabilities: ClassVar[Collection[str]] = {"rows", "distinct"}


class TestCompiledUniform(SamplerContract):
    capabilities: ClassVar[Collection[str]] = {"rows", "distinct"}

    def make_part(self, capacity: int, seed: int, folder: Path) -> Any:
        return UniformSampler({}, COMPILED_FROM, seed)


class TestProportional(SamplerContract):
    capabilities: ClassVar[Collection[str]] = {"priorities", "proportional"}

    def make_part(self, capacity: int, seed: int, folder: Path, alpha: Any = None) -> Any:
        cfg = {"type": "proportional", "alpha": alpha}
        return default_manager().create("samplers", cfg, capacity, seed)


class TestSequence(Sampler):
    kind = "sequence"
    capabilities: ClassVar[Collection[str]] = {"sequences"}


class RecentSampler(RowSampler):
    """Prefers recent rows: the chance of a row falls with its age. It reads a column."""

    config: ClassVar[dict[str, Any]] = {"type": "recent"}
    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"rows", "own_law"})
    needs_columns: ClassVar[tuple[str, ...]] = ("q_value",)
    _newest = -1

    def on_insert(self, where: Any, rows: Any, priorities: Any = None) -> None:
        assert all(float(row["q_value"]) >= 0 for row in rows)
        self._newest = int(np.arange(self.capacity)[where][-1])

    def draw(self, population: int, size: int, replace: bool = False) -> Any:
        """Return the ranks of rows; with ``fifo`` they are positions."""
        weights = np.arange(population, 0, -1.0)
        ages = self._rng.choice(population, size, replace, weights / weights.sum())
        return (self._newest - ages) % population

    @classmethod
    def made(cls, capacity: int, seed: int, folder: Path) -> Self:
        return cls({}, capacity, seed)


@pytest.mark.slow
class TestRecent(SamplerContract):
    capabilities = RecentSampler.contract_capabilities

    def make_part(self, capacity: int, seed: int, folder: Path) -> RecentSampler:
        return RecentSampler.made(capacity, seed, folder)


def test_sampler_with_a_law_of_its_own_breaks_only_the_rule_of_equal_chances() -> None:
    with pytest.raises(ContractError) as caught:
        check_part("sampler", RecentSampler.made, capabilities={"rows"})
    assert caught.value.broken == (6,)


class LogSampler(PrioritySampler):
    """Draws rows in proportion to the logarithm of 1 + priority."""

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"priorities"})

    def assign(self, where: Any, priorities: Any) -> None:
        positions = np.arange(self.capacity)[where]
        self._priorities[positions] = priorities
        self.max_priority = max(self.max_priority, float(np.max(priorities)))
        self._tree.assign(positions, np.log1p(self._priorities[positions]))


@pytest.mark.slow
class TestLog(SamplerContract):
    capabilities = LogSampler.contract_capabilities

    def make_part(
        self, capacity: int, seed: int, folder: Path, alpha: float | None = None
    ) -> LogSampler:
        return LogSampler({"alpha": alpha}, capacity, seed)


def test_weights_of_an_own_sampler_by_priority_are_the_chances_of_its_rows() -> None:
    sampler = LogSampler({}, capacity=4, seed=0)
    sampler.on_insert(np.arange(3), [], np.array([np.e - 1, np.e**3 - 1, np.e**4 - 1]))

    counts = np.bincount(sampler.draw(8000), minlength=4)

    assert counts.tolist() == [1000, 3000, 4000, 0]
    assert sampler.importance(np.arange(3), 1.0).tolist() == pytest.approx([1, 1 / 3, 1 / 4])


class TestFifo(RemoverContract):
    capabilities: ClassVar[Collection[str]] = {"fifo", "ages"}

    def make_part(self, capacity: int, seed: int, folder: Path) -> Any:
        return default_manager().create("removers", {"type": "fifo"}, capacity, seed)


class TestRandom(RemoverContract):
    capabilities: ClassVar[Collection[str]] = {"random"}

    def make_part(self, capacity: int, seed: int, folder: Path) -> Any:
        return RandomRemover({}, capacity, seed)


class Limiter(LimiterContract):
    """A limiter with the settings in ``cfg``."""

    cfg: ClassVar[Mapping[str, Any]]

    def make_part(self, capacity: int, seed: int, folder: Path) -> Any:
        return default_manager().create("limiters", self.cfg, seed)


class TestMinSize(Limiter):
    capabilities: ClassVar[Collection[str]] = {"min_size"}
    cfg: ClassVar = {"type": "min_size", "min_size": 10}


class TestSamplesPerInsert(Limiter):
    capabilities: ClassVar[Collection[str]] = {"min_size", "bounded"}
    cfg: ClassVar = {"type": "samples_per_insert", "samples_per_insert": 1.5, "min_size": 10}


class TestBoundedSamplesPerInsert(TestSamplesPerInsert):
    cfg: ClassVar = {**TestSamplesPerInsert.cfg, "error_buffer": 20.0}


class TestPushSampleRate(Limiter):
    capabilities: ClassVar[Collection[str]] = {"bounded", "timed"}
    cfg: ClassVar = {"type": "push_sample_rate", "max": 2.0, "min": 0.5}
