"""Every part except policies follows each rule of its kind, with each setting that changes it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport
from dingsdk_in_memory.transport import InMemoryTransport
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dingsdk.envs import BaseVectorEnvManager, create_env_manager
from dingsdk.plugins import PluginManager, default_manager, use_manager
from dingsdk.testing import (
    BufferContract,
    CollectorContract,
    CommanderContract,
    ContractError,
    EnvManagerContract,
    EvaluatorContract,
    LimiterContract,
    RemoverContract,
    Rule,
    SamplerContract,
    StorageContract,
    TransportContract,
    check_part,
)
from dingsdk.worker import (
    BattleEpisodeSerialCollector,
    BattleSampleSerialCollector,
    EpisodeSerialCollector,
    InteractionSerialEvaluator,
    SampleSerialCollector,
    SoloCommander,
)
from dingsdk.worker.commander.naive import NaiveCommander
from dingsdk.worker.commander.one_vs_one import OneVsOneCommander
from dingsdk.worker.replay_buffer import PrioritySampler, RowSampler
from dingsdk.worker.replay_buffer.advanced import QueueReplayBuffer
from dingsdk.worker.replay_buffer.sampler.uniform import COMPILED_FROM, UniformSampler

from .cases import Case, each_rule
from .random_remover import RandomRemover

BASE = frozenset({"fifo", "parts", "saves"})
ROWS = BASE | {"distinct", "ages"}
PRIORITIZED = BASE | {"ages", "priorities"}
GUARDED = frozenset({"per_env_seed", "per_env_reset", "guarded", "saves"})
FULL = GUARDED | {"partial_step", "players"}


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("DINGSDK_SECRET", raising=False)
    monkeypatch.delenv("DINGSDK_SECRET_FILE", raising=False)
    with use_manager(PluginManager()) as manager:
        manager.registry("removers").register("random", RandomRemover)
        yield


def buffer(kind: str, capabilities: Collection[str], slow: bool = False, **parts: Any) -> Case:
    def made_in(folder: Path) -> Any:
        def make(cfg: Mapping[str, Any]) -> Any:
            is_mapped = parts.get("storage", {}).get("type") == "memmap"
            own = {"storage": {**parts["storage"], "path": str(folder)}} if is_mapped else {}
            return default_manager().create("buffers", {"type": kind, **parts, **own, **cfg})

        return make

    return Case(BufferContract, made_in, capabilities, slow)


def storage(kind: str, *capabilities: str, slow: bool = False, **cfg: Any) -> Case:
    def make(capacity: int, seed: int, folder: Path) -> Any:
        place = {"path": str(folder)} if kind == "memmap" else {}
        return default_manager().create("storages", {"type": kind, **cfg, **place}, capacity)

    return Case(StorageContract, lambda _: make, capabilities, slow)


def sampler(kind: str, *capabilities: str) -> Case:
    def make(capacity: int, seed: int, folder: Path, **options: Any) -> Any:
        return default_manager().create("samplers", {"type": kind, **options}, capacity, seed)

    return Case(SamplerContract, lambda _: make, capabilities)


def remover(kind: str, *capabilities: str) -> Case:
    def make(capacity: int, seed: int, folder: Path) -> Any:
        return default_manager().create("removers", {"type": kind}, capacity, seed)

    return Case(RemoverContract, lambda _: make, capabilities)


def limiter(kind: str, *capabilities: str, **cfg: Any) -> Case:
    def make(capacity: int, seed: int, folder: Path) -> Any:
        return default_manager().create("limiters", {"type": kind, **cfg}, seed)

    return Case(LimiterContract, lambda _: make, capabilities)


def envs(kind: str, capabilities: Collection[str], patience_s: float = 0.0, **cfg: Any) -> Case:
    def make(given: Mapping[str, Any], env_fns: Any) -> Any:
        return create_env_manager({"type": kind, **cfg, **given}, env_fns)

    # One rule starts up to a dozen processes.
    slow = {"is_slow": True, "patience_s": patience_s} if patience_s else {}
    return Case(EnvManagerContract, lambda _: make, capabilities, **slow)


class Vectorized(BaseVectorEnvManager):
    """The envs as one of gymnasium's vector envs."""

    mode = AutoresetMode.SAME_STEP

    def make_vector_env(self) -> Any:
        return SyncVectorEnv(self._env_fns, autoreset_mode=self.mode)


def vectorized(mode: AutoresetMode) -> Case:
    made = type("Made", (Vectorized,), {"mode": mode})
    return Case(EnvManagerContract, lambda _: made, {"saves"})


def transport(cls: Any, *capabilities: str, **cfg: Any) -> Case:
    return Case(TransportContract, lambda _: lambda run_dir: cls(cfg, run_dir), capabilities)


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


class LogSampler(PrioritySampler):
    """Draws rows in proportion to the logarithm of 1 + priority."""

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"priorities"})

    def assign(self, where: Any, priorities: Any) -> None:
        positions = np.arange(self.capacity)[where]
        self._priorities[positions] = priorities
        self.max_priority = max(self.max_priority, float(np.max(priorities)))
        self._tree.assign(positions, np.log1p(self._priorities[positions]))

    @classmethod
    def made(cls, capacity: int, seed: int, folder: Path, alpha: float | None = None) -> Self:
        return cls({"alpha": alpha}, capacity, seed)


ARRAY, OBJECT, MEMMAP = ({"type": kind} for kind in ("array", "object", "memmap"))
LINKED = {"next_of": "obs"}
RATIO = {"samples_per_insert": 1.5, "min_size": 10}
PROPORTIONAL = PRIORITIZED | {"columns", "proportional"}
RANDOM = {"type": "random"}
CASES: Mapping[str, Case] = {
    "naive_arrays": buffer("naive", ROWS | {"columns"}, storage=ARRAY),
    "naive_objects": buffer("naive", ROWS | {"objects"}, storage=OBJECT),
    "naive_random": buffer("naive", (ROWS | {"columns", "objects"}) - {"fifo"}, remover=RANDOM),
    "advanced_random": buffer("advanced", PROPORTIONAL - {"fifo"}, True, remover=RANDOM),
    "elastic": buffer("elastic", BASE | {"columns", "distinct", "elastic"}, storage=ARRAY),
    "sequence_arrays": buffer("sequence", BASE | {"columns", "sequences"}, storage=ARRAY),
    "sequence_objects": buffer("sequence", BASE | {"objects", "sequences"}, True, storage=OBJECT),
    "sequence_linked_maps": buffer(
        "sequence", BASE | {"columns", "sequences"}, True, storage=MEMMAP | LINKED
    ),
    "episodes": buffer("episode", ROWS | {"episodes"}),
    "episodes_objects": buffer("episode", ROWS | {"episodes"}, True, storage=OBJECT),
    "advanced_arrays": buffer("advanced", PROPORTIONAL, storage=ARRAY),
    "advanced_objects": buffer("advanced", PRIORITIZED | {"proportional"}, True, storage=OBJECT),
    "advanced_rank": buffer(
        "advanced", PRIORITIZED | {"columns"}, True, sampler={"type": "rank", "sort_after": 0.01}
    ),
    "advanced_maps": buffer("advanced", PROPORTIONAL, True, storage=MEMMAP | LINKED),
    "queue": buffer(
        "queue", QueueReplayBuffer.contract_capabilities, **QueueReplayBuffer.contract_config
    ),
    "arrays": storage("array", "columns", "any_order"),
    "linked_arrays": storage("array", "columns", slow=True, **LINKED),
    "objects": storage("object", "objects", "any_order"),
    "compressed_objects": storage("object", "objects", "any_order", slow=True, compress="lz4"),
    "maps": storage("memmap", "columns", "any_order", slow=True),
    "linked_maps": storage("memmap", "columns", slow=True, **LINKED),
    "uniform": sampler("uniform", "rows", "distinct"),
    "compiled_uniform": Case(
        SamplerContract,
        lambda _: lambda capacity, seed, folder: UniformSampler({}, COMPILED_FROM, seed),
        {"rows", "distinct"},
        True,
    ),
    "proportional": sampler("proportional", "priorities", "proportional"),
    "sequence": sampler("sequence", "sequences"),
    "own_law": Case(
        SamplerContract, lambda _: RecentSampler.made, RecentSampler.contract_capabilities, True
    ),
    "own_weights": Case(
        SamplerContract, lambda _: LogSampler.made, LogSampler.contract_capabilities, True
    ),
    "fifo": remover("fifo", "fifo", "ages"),
    "random": remover("random", "random"),
    "min_size": limiter("min_size", "min_size", min_size=10),
    "ratio": limiter("samples_per_insert", "min_size", "bounded", **RATIO),
    "bounded_ratio": limiter(
        "samples_per_insert", "min_size", "bounded", **RATIO, error_buffer=20.0
    ),
    "rate": limiter("push_sample_rate", "bounded", "timed", max=2.0, min=0.5),
    "solo": Case(CommanderContract, lambda _: SoloCommander, {"evaluates", "waits"}),
    "one_vs_one": Case(
        CommanderContract, lambda _: OneVsOneCommander, {"evaluates", "waits", "plays"}
    ),
    "naive": Case(CommanderContract, lambda _: NaiveCommander),
    "sample": Case(CollectorContract, lambda _: SampleSerialCollector, {"samples", "random"}),
    "episode": Case(CollectorContract, lambda _: EpisodeSerialCollector, {"episodes"}),
    "battle_sample": Case(
        CollectorContract, lambda _: BattleSampleSerialCollector, {"samples", "players"}
    ),
    "battle_episode": Case(
        CollectorContract, lambda _: BattleEpisodeSerialCollector, {"episodes", "players"}
    ),
    "interaction": Case(EvaluatorContract, lambda _: InteractionSerialEvaluator, {"waits"}),
    "in_process": envs("in_process", FULL),
    "threads": envs("in_process", FULL, threads=2),
    "subprocess": envs("subprocess", FULL, 14.0, envs_per_process=2),
    "async_subprocess": envs("async_subprocess", FULL | {"asynchronous"}, 14.0),
    **{f"vector_{mode.name.lower()}": vectorized(mode) for mode in AutoresetMode},
    "in_memory_threads": transport(InMemoryTransport, concurrency="threads", check_wire=True),
    "in_memory_turns": transport(InMemoryTransport, concurrency="greenlets", check_wire=True),
    # A silent worker must count as lost before the kit stops waiting.
    "flask_fs": transport(
        FlaskFSTransport, "many_processes", "survives_faults", threads=12, lost_after_s=3.0
    ),
}


@each_rule(CASES)
def test_part_follows_the_rule(
    case: Case, rule: Rule, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case.check(rule, tmp_path, tmp_path_factory.mktemp("parts"))


@pytest.mark.slow
def test_sampler_with_a_law_of_its_own_breaks_only_the_rule_of_equal_chances() -> None:
    with pytest.raises(ContractError) as caught:
        check_part("sampler", RecentSampler.made, capabilities={"rows"})
    assert caught.value.broken == (6,)


def test_weights_of_an_own_sampler_by_priority_are_the_chances_of_its_rows() -> None:
    sampler = LogSampler({}, capacity=4, seed=0)
    sampler.on_insert(np.arange(3), [], np.array([np.e - 1, np.e**3 - 1, np.e**4 - 1]))

    counts = np.bincount(sampler.draw(8000), minlength=4)

    assert counts.tolist() == [1000, 3000, 4000, 0]
    assert sampler.importance(np.arange(3), 1.0).tolist() == pytest.approx([1, 1 / 3, 1 / 4])
