"""A sampler with a law of its own follows the rules of samplers, except that of equal chances."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest

from dingsdk.testing import ContractError, SamplerContract, check_part
from dingsdk.worker.replay_buffer import RowSampler


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
