"""The rows that the kit pushes: each has a number, which every part of it tells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.testing.rule import RuleBroken

WIDTH = 64
"""Of the arrays in a row: as small arrays as these are kept compressed, where any are."""
EPISODE_LENGTHS = 4
"""An episode's length is 1 to this, by its number."""


def make_row(number: int, done: bool = False) -> dict[str, Any]:
    """Return the transition of a number, >= 0: arrays, scalars and a nested dict."""
    return {
        "id": number,
        "obs": _observation(number),
        "next_obs": _observation(number + 1),
        "reward": number / 2,
        "done": done,
    }


def make_episode(number: int) -> SampleBatch:
    """Return the episode of a number: that many equal transitions, by its number."""
    return SampleBatch.from_rows([make_row(number)] * episode_length(number))


def episode_length(number: int) -> int:
    """Return the length of the episode with this number."""
    return 1 + number % EPISODE_LENGTHS


def number_of(row: Any) -> int:
    """Return the number of a transition or episode.

    Raises:
        RuleBroken: its parts tell different ones.
    """
    if isinstance(row, dict) and getattr(row.get("id"), "ndim", 0) == 1:
        row = SampleBatch(row)  # an episode as a state holds it
    if isinstance(row, (SampleBatch, list)):
        numbers = [number_of(each) for each in row]
        if len(set(numbers)) != 1 or len(numbers) != episode_length(numbers[0]):
            raise RuleBroken(f"an episode came back with the transitions of {numbers}")
        return numbers[0]
    try:
        number = int(row["id"])
        expected = make_row(number)
        is_whole = float(row["reward"]) == expected["reward"] and all(
            np.array_equal(row[name]["pos"], expected[name]["pos"])
            and bool(row[name]["even"]) == expected[name]["even"]
            for name in ("obs", "next_obs")
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RuleBroken(f"what came back is no row that was pushed: {row!r:.300}") from error
    if not is_whole:
        raise RuleBroken(f"row {number} came back changed: {row!r:.300}")
    return number


def numbers_of(rows: Iterable[Any] | None) -> list[int]:
    """Return the numbers of all rows of a batch.

    Raises:
        RuleBroken: there is no batch, or a row is not as it was pushed.
    """
    if rows is None:
        raise RuleBroken("a batch was expected, None came")
    return [number_of(row) for row in rows]


def flat(sequences: Any) -> Any:
    """Return the steps of sequences, one sequence after the other; None and ``[]`` as they are."""
    if isinstance(sequences, SampleBatch):
        steps = sequences.columns["id"].size
        columns = sequences.map(lambda column: column.reshape(-1, *column.shape[2:])).columns
        return SampleBatch.trusted(columns, steps)
    return sequences and [step for sequence in sequences for step in sequence]


def spoil(rows: Iterable[Any]) -> None:
    """Overwrite everything that can be written to in rows of the caller."""
    if isinstance(rows, SampleBatch):
        _spoil_columns(rows.columns)
        return
    for row in rows:
        if isinstance(row, (SampleBatch, list)):
            spoil(row)
        else:
            for key in ("id", "reward"):
                row[key] = -1
            row["obs"]["even"] = None


def _spoil_columns(columns: dict[str, Any]) -> None:
    for column in columns.values():
        if isinstance(column, dict):
            _spoil_columns(column)
        else:
            column[...] = 0 if column.dtype == np.bool_ else 77


def _observation(number: int) -> dict[str, Any]:
    return {"pos": np.full(WIDTH, number, np.float32), "even": number % 2 == 0}
