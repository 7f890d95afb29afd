"""Samplers choose the rows of a batch.

There are three families: a :class:`RowSampler` draws single rows, all equally likely, a
``PrioritySampler`` (module ``priority``) draws single rows by their priority, and a
``SequenceSampler`` (module ``sequence``) draws runs of consecutive rows. Each kind of buffer
requires one of them. A sampler with another law, such as one that prefers recent rows, derives from
the family of its buffer, and declares ``own_law`` to the conformance kit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Configurable, PartSection, Section
from dingsdk.data.columns import mismatch
from dingsdk.errors import CheckpointCorruptError
from dingsdk.worker.replay_buffer.interface import Needs
from dingsdk.worker.replay_buffer.storage import Rows, Where

__all__ = ["RowSampler", "Sampler", "check_ranks"]

ENDS = "ends"
"""Name of the fact that is True for a row after which the trajectory was ended."""


class Sampler(Needs, Configurable, ABC):
    """Base class of all samplers; called under the buffer's lock.

    Args:
        cfg: The ``sampler`` section of the buffer's config.
        capacity: Positions of the storage, >= 1.
        seed: Seed of the random stream, >= 0; None takes one from the operating system.
    """

    Config: ClassVar[type[Section]] = PartSection

    rewrites = 0
    """How often all entries of :meth:`columns` were changed at once."""

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        self.capacity = capacity
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def check(self, rows: Rows) -> None:
        """Refuse rows that this sampler could not serve, before anything is stored.

        Raises:
            SchemaMismatchError: names the key.
        """

    def on_insert(
        self, where: Where, rows: Rows, priorities: NDArray[np.float64] | None = None
    ) -> None:
        """Called after rows were stored.

        Args:
            where: Positions of the rows, oldest first; the earlier rows there have left.
            rows: The pushed rows; keep no reference to them.
            priorities: float64[n], NaN for a row that was pushed without a priority; None if all
                were, or if the buffer has no priorities.
        """

    def on_restore(self, where: Where, rows: Rows) -> None:
        """Called instead of :meth:`on_insert` for the rows of a state that was loaded.

        Overridden by samplers that store facts about rows in their state.
        """
        self.on_insert(where, rows)

    def on_remove(self, where: Where) -> None:
        """Called when rows at positions leave without replacement."""

    def facts(self, state: Mapping[str, Any], where: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the facts that a state holds about rows, as arrays of one value a row."""
        return {}

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return views of the state's arrays that have one entry for each position.

        Methods that are called with positions may change only these entries. A change of all
        entries must increase ``rewrites``.
        """
        return {}

    def end_trajectory(self) -> None:
        """Called when the next row does not continue the trajectory of the newest one."""

    def clear(self) -> None:
        """Forget all rows."""

    def state_dict(self) -> dict[str, Any]:
        """Return the random state, and all data that :meth:`on_restore` cannot build from rows.

        The state is plain numbers, text and arrays that do not change. The buffer adds copies of
        the entries of :meth:`columns` at positions that hold rows.
        """
        state = self._rng.bit_generator.state
        # The generator's words have 128 bits, too many for integers in messages and checkpoints.
        return {**state, **{key: hex(word) for key, word in state["state"].items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; change nothing if it is wrong.

        Raises:
            CheckpointCorruptError: it is not a state of this sampler.
        """
        bits = np.random.PCG64(0)
        try:
            words = {key: int(state[key], 16) for key in ("state", "inc")}
            bits.state = cast(Any, {**state, "state": words})
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointCorruptError(f"the random state is wrong: {error}") from error
        self._rng = np.random.Generator(bits)


class RowSampler(Sampler):
    """Draws single rows without regard to their content."""

    contract_capabilities: ClassVar[frozenset[str] | None] = frozenset({"rows"})

    @abstractmethod
    def draw(self, population: int, size: int, replace: bool = False) -> NDArray[np.int64]:
        """Draw ``size`` of the ranks ``0..population-1``: int64[size], in any order.

        A rank does not depend on the age of a row. Both numbers are >= 1, and ``size`` is at most
        ``population`` unless a rank may be drawn more than once (``replace``).
        """


def check_ranks(ranks: Any, population: int, size: int, sampler: Sampler) -> None:
    """Check the ranks that a plugin's sampler drew; wrong ones could return unwritten rows.

    Raises:
        SchemaMismatchError: the ranks are not int64[size] of ``0..population - 1``.
    """
    is_fine = (
        isinstance(ranks, np.ndarray)
        and ranks.shape == (size,)
        and ranks.dtype == np.int64
        and (size == 0 or (ranks.min() >= 0 and ranks.max() < population))
    )
    if not is_fine:
        expected = f"int64[{size}] of 0..{population - 1}"
        found = " ".join(repr(ranks).split())[:80]
        raise mismatch(f"the draw of {type(sampler).__qualname__}", "", expected, found)
