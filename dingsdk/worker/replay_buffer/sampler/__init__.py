"""Samplers: which rows of a buffer a batch is made of.

Three families, by what they draw: a :class:`RowSampler` draws single rows that are all alike, a
``PrioritySampler`` (module ``priority``) single rows by their priority, a ``SequenceSampler``
(module ``sequence``) runs of consecutive rows. Each kind of buffer needs one of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Configurable, PartSection, Section
from dingsdk.errors import CheckpointCorruptError, SchemaMismatchError
from dingsdk.worker.replay_buffer.interface import Needs
from dingsdk.worker.replay_buffer.storage import Rows, Where

__all__ = ["RowSampler", "Sampler", "check_ranks"]


class Sampler(Needs, Configurable, ABC):
    """What all samplers share; called under the buffer's lock.

    Args:
        cfg: The ``sampler`` section of the buffer's config.
        capacity: Positions of the storage, >= 1.
        seed: Of the random stream, >= 0; None takes one from the operating system.
    """

    Config: ClassVar[type[Section]] = PartSection

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        self.capacity = capacity
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def columns_needed(self) -> tuple[str, ...]:
        """Return ``needs_columns``, and the columns that its section names."""
        return self.needs_columns

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
            where: Their positions, oldest first; the rows that were there have left.
            rows: The rows as they were pushed; not to be kept.
            priorities: float64[n] of a buffer with priorities, NaN for a row that came without;
                None where all did.
        """

    def on_restore(self, where: Where, rows: Rows) -> None:
        """Called instead of :meth:`on_insert` for the rows of a state, after it was loaded.

        Overridden by samplers whose state holds what they know of rows.
        """
        self.on_insert(where, rows)

    def on_remove(self, where: Where) -> None:
        """Called when rows at positions leave and no other takes their place."""

    def facts(self, state: Mapping[str, Any], where: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return what a state says of the rows at positions, as arrays of one value a row."""
        return {}

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return views of those arrays of the state that have an entry for each position.

        Only what is called with positions changes them, or ``rewrites`` counts.
        """
        return {}

    @property
    def rewrites(self) -> int:
        """How often the columns of all positions have changed at once."""
        return 0

    def clear(self) -> None:
        """Forget all rows."""

    def state_dict(self, columns: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Any]:
        """Return the random state, and what :meth:`on_restore` cannot build from rows.

        Plain numbers, text and arrays. A sampler with :meth:`columns` is given copies of these for
        the state to have, or None to make its own.
        """
        state = self._rng.bit_generator.state
        # The generator's words have 128 bits, more than messages and checkpoints can hold.
        return {**state, **{key: hex(word) for key, word in state["state"].items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore such a state; changes nothing when it is wrong.

        Raises:
            CheckpointCorruptError: it is no state of this sampler.
        """
        bits = np.random.PCG64(0)
        try:
            words = {key: int(state[key], 16) for key in ("state", "inc")}
            bits.state = cast(Any, {**state, "state": words})
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointCorruptError(f"the random state is wrong: {error}") from error
        self._rng = np.random.Generator(bits)


class RowSampler(Sampler):
    """Draws single rows that are all alike."""

    @abstractmethod
    def draw(self, population: int, size: int, replace: bool = False) -> NDArray[np.int64]:
        """Draw ``size`` of the ranks ``0..population-1``: int64[size], in any order.

        A rank tells nothing about the age of a row. Both numbers are >= 1, and ``size`` is at most
        ``population`` unless a rank may come more than once (``replace``).
        """


def check_ranks(ranks: Any, population: int, size: int, sampler: Sampler) -> None:
    """Check what a sampler of a plugin drew: a gather would take a row that was never written.

    Raises:
        SchemaMismatchError: it is no int64[size] of ``0..population - 1``.
    """
    is_fine = (
        isinstance(ranks, np.ndarray)
        and ranks.shape == (size,)
        and ranks.dtype == np.int64
        and (size == 0 or (ranks.min() >= 0 and ranks.max() < population))
    )
    if not is_fine:
        expected = f"int64[{size}] of 0..{population - 1}"
        drew = np.asarray(ranks)
        shape = ", ".join(map(str, drew.shape))
        found = f"{drew.dtype}[{shape}]"
        if drew.size and drew.dtype.kind in "iuf":
            found += f" from {drew.min()} to {drew.max()}"
        raise SchemaMismatchError(
            f"the sampler {type(sampler).__qualname__} drew {found}, expected {expected}",
            key="",
            expected=expected,
            found=found,
        )
