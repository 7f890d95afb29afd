"""The columns that collectors add to samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.sample_batch import SampleBatch

COLLECTED = ("collect_iter", "seed", "env_id", "episode_return")
"""Columns that collectors add: version of the policy, seed of the level, env id, episode return."""
DISCOUNTED_RETURN = "discounted_return"
"""Column of ``R[t] = gamma * R[t - 1] + reward[t]``, which begins at 0 in each episode.

Collectors record it with each step for ``policy.normalize.reward``. It is not stored.
"""

NO_VERSION = -1
"""The ``collect_iter`` of samples that no version of the policy collected: demonstrations."""


def with_collected(
    samples: SampleBatch, columns: Mapping[str, NDArray[Any]], ends: NDArray[np.int64]
) -> SampleBatch:
    """Add columns of steps to the samples that were made of these steps.

    Args:
        samples: One sample for each step, or one for each piece, which gets the values of its
            first step, or other samples. Samples of the last kind get the lowest ``collect_iter``
            of all steps, and no other column. Columns that the samples have are kept.
        columns: Columns ``[n]`` of the steps, pieces laid end to end.
        ends: int64[k], exclusive end offset of each piece.
    """
    rows = len(samples)
    added: dict[str, NDArray[Any]] = {}  # not ``dict[...]()``: NDArray takes 10 us to subscript
    for name, column in columns.items():
        if name in samples.columns:
            continue
        if len(column) == rows:
            added[name] = column
        elif len(ends) == rows:
            added[name] = column[np.concatenate(([0], ends[:-1]))]
        elif name == "collect_iter":
            added[name] = np.full(rows, column.min())
    return SampleBatch.trusted({**samples.columns, **added}, rows) if added else samples


def without_returns(samples: Any) -> Any:
    """Return samples of any form without the column ``discounted_return``, if they have it.

    Args:
        samples: A SampleBatch, a list of samples, or a list of episodes that are either.
    """
    if isinstance(samples, SampleBatch):
        columns = samples.columns
        if DISCOUNTED_RETURN not in columns:
            return samples
        rest = {name: column for name, column in columns.items() if name != DISCOUNTED_RETURN}
        return SampleBatch.trusted(rest, len(samples))
    if not isinstance(samples, list) or not samples:
        return samples
    if isinstance(samples[0], SampleBatch | list):
        return [without_returns(each) for each in samples]
    if not isinstance(samples[0], Mapping) or DISCOUNTED_RETURN not in samples[0]:
        return samples
    return [{name: row[name] for name in row if name != DISCOUNTED_RETURN} for row in samples]


def versions_of(samples: Any) -> NDArray[np.int64] | None:
    """Return int64[n], the version of the policy that collected each sample, None if unknown.

    A sample of several steps has the version of its oldest step.

    Args:
        samples: A SampleBatch of n samples, one sample that is a dict, or a list of such. A list
            of lists, such as of episodes, has the versions of all their rows.
    """
    if isinstance(samples, list):
        found = [each for each in map(versions_of, samples) if each is not None]
        return np.concatenate(found) if found else None
    if isinstance(samples, SampleBatch):
        column, count = samples.columns.get("collect_iter"), len(samples)
    elif isinstance(samples, Mapping):
        column, count = np.asarray(samples.get("collect_iter")), 1
    else:
        return None
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "iu" or not column.size:
        return None
    least: NDArray[np.int64] = column.reshape(count, -1).min(axis=1).astype(np.int64)
    return least


def counted(versions: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return (version, number of samples) of int64[n], ascending."""
    found, counts = np.unique(versions, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))
