"""Every part of a replay buffer passes the contract of its kind, without a buffer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from dingsdk.plugins import default_manager
from dingsdk.testing import LimiterContract, RemoverContract, SamplerContract, StorageContract
from dingsdk.worker.replay_buffer.sampler.uniform import COMPILED_FROM, UniformSampler

from .random_remover import RandomRemover
from .test_buffers import PackedMaps

COLUMNS = frozenset({"columns", "grids"})


class TestArrays(StorageContract):
    capabilities: ClassVar[Collection[str]] = COLUMNS | {"any_order"}
    cfg: ClassVar[Mapping[str, Any]] = {"type": "array"}

    def make_part(self, capacity: int, seed: int, folder: Path) -> Any:
        return default_manager().create("storages", self.cfg, capacity)


class TestLinkedArrays(TestArrays):
    capabilities = COLUMNS
    cfg: ClassVar = {"type": "array", "next_of": "obs"}


class TestObjects(TestArrays):
    capabilities = frozenset({"objects", "any_order"})
    cfg: ClassVar = {"type": "object"}


class TestCompressedObjects(TestObjects):
    cfg: ClassVar = {"type": "object", "compress": "lz4"}


class TestMaps(StorageContract):
    capabilities = COLUMNS | {"durable"}
    cfg: ClassVar[Mapping[str, Any]] = {}

    def make_part(self, capacity: int, seed: int, folder: Path) -> Any:
        return PackedMaps({**self.cfg, "path": str(folder), "reopen": True}, capacity)


class TestLinkedPackedMaps(TestMaps):
    cfg: ClassVar = {"compress": "lz4", "next_of": "obs"}


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


class TestProportional(Sampler):
    kind = "proportional"
    capabilities: ClassVar[Collection[str]] = {"priorities", "proportional"}


class TestRank(Sampler):
    kind = "rank"
    capabilities: ClassVar[Collection[str]] = {"priorities"}


class TestSequence(Sampler):
    kind = "sequence"
    capabilities: ClassVar[Collection[str]] = {"sequences"}


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
