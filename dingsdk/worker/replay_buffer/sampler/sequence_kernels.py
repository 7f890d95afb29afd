"""The compiled inner loops of drawing sequences; see ``sequence`` for the words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.compiling import compiled


@compiled("int64(int32[::1], int64, int64, int64, int64, int64, float64[::1], int64[::1])")
def accept(
    since: NDArray[np.int32],
    first: int,
    count: int,
    stride: int,
    leading: int,
    span: int,
    uniforms: NDArray[np.float64],
    starts: NDArray[np.int64],
) -> int:
    """Turn draws of rows into valid starts, dropping those that lead to none.

    Args:
        since: int32[capacity], steps since the start of the trajectory, by position in the ring.
        first: Position of the oldest row.
        count: Rows there are, >= 1.
        stride: Starts lie so many steps apart.
        leading: How many rows from a start on lead to it.
        span: Steps from the first to the last row of a stretch; below 0: any start will do.
        uniforms: float64[n] in [0, 1), the draws.
        starts: int64[m], receives the ages of starts, as many as fit.

    Returns:
        How many it received.
    """
    capacity = since.shape[0]
    found = 0
    for i in range(uniforms.shape[0]):
        if found == starts.shape[0]:
            break
        age = np.int64(uniforms[i] * count)
        if stride > 1:
            at = first + age
            step = since[at - capacity if at >= capacity else at] % stride
            if step >= leading or step > age:
                continue
            age -= step
        if span >= 0:
            if age + span >= count:
                continue
            at, end = first + age, first + age + span
            begun = since[at - capacity if at >= capacity else at]
            # Steps count on by one within a trajectory, and begin at 0 anew in the next.
            if since[end - capacity if end >= capacity else end] - begun != span:
                continue
        starts[found] = age
        found += 1
    return found


@compiled("void(int64[::1], int64, int64, int64[:, ::1])")
def follow(starts: NDArray[np.int64], first: int, capacity: int, where: NDArray[np.int64]) -> None:
    """Fill ``where``, int64[n, time], with the positions from each start (an age) on."""
    for i in range(where.shape[0]):
        at = first + starts[i]
        for j in range(where.shape[1]):
            if at >= capacity:
                at -= capacity
            where[i, j] = at
            at += 1
