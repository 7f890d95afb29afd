"""Reads the policy versions of samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.sample_batch import SampleBatch


def versions_of(samples: SampleBatch) -> NDArray[np.int64] | None:
    """Return int64[n], the version of the policy that collected each sample, None if unknown.

    A sample of several steps has the version of its oldest step.
    """
    column = samples.columns.get("collect_iter")
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "iu" or not column.size:
        return None
    least: NDArray[np.int64] = column.reshape(len(samples), -1).min(axis=1).astype(np.int64)
    return least


def counted(versions: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return (version, number of samples) of int64[n], ascending."""
    found, counts = np.unique(versions, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))
