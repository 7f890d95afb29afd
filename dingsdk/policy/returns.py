"""n-step returns over whole trajectory pieces, without a Python loop over steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.pytree import map_leaves


class NStepReturns(NamedTuple):
    """Rewards and discounts with which a one-step target spans up to ``nstep`` steps.

    There is one row per step.

    Attributes:
        reward: float32[n], discounted sum over the steps that the row spans.
        discount: float32[n], factor of the bootstrap value: ``gamma**k`` for ``k`` steps,
            0 where the last of them ended the task.
        last: int64[n], row of the last step spanned; its ``next_obs`` belongs to the sample.
            None if every row spans only its own step.
    """

    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    last: NDArray[np.int64] | None


def nstep_returns(
    reward: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    ends: NDArray[np.int64],
    *,
    gamma: float,
    nstep: int,
) -> NStepReturns:
    """Sum up to ``nstep`` rewards ahead within each trajectory piece.

    Near the end of a piece a row spans the steps that are left, so that none is lost; its
    discount has the matching power of gamma. A piece that was truncated, or merely cut,
    is bootstrapped from its last step.

    Args:
        reward: float32[n], pieces laid end to end.
        terminated: bool[n], true only where the task ended, hence at most at a piece's end.
        ends: int64[k], exclusive end offset of each piece, ascending, the last one ``n``.
        gamma: Discount of one step, in [0, 1].
        nstep: Most steps that a row spans, >= 1.

    Source: Sutton & Barto, 2nd ed., eq. 7.1, with the shorter returns kept at piece ends.
    """
    if nstep == 1 or not len(reward):
        return NStepReturns(reward, ~terminated * np.float32(gamma), None)
    rows = np.arange(len(reward))
    lengths = np.diff(ends, prepend=0)
    last = np.minimum(rows + (nstep - 1), np.repeat(ends, lengths) - 1)
    # With nstep - 1 zeros after each piece, one correlation over all pieces does not mix them.
    spaced = rows + np.repeat(np.arange(len(ends)) * (nstep - 1), lengths)
    padded = np.zeros(len(rows) + len(ends) * (nstep - 1))
    padded[spaced] = reward
    powers = np.power(float(gamma), np.arange(nstep + 1))
    sums = np.correlate(padded, powers[:-1])[spaced]
    discount = powers[last - rows + 1] * ~terminated[last]
    return NStepReturns(sums.astype(np.float32), discount.astype(np.float32), last)


def nstep_samples(
    columns: dict[str, Any], ends: NDArray[np.int64], *, gamma: float, nstep: int
) -> SampleBatch:
    """Return one n-step sample per row of trajectory pieces; arguments as ``nstep_returns``.

    Returns:
        The columns, where ``reward`` is the n-step sum, ``next_obs`` is that of the last step
        spanned, and ``discount`` replaces ``terminated``. ``done`` is that of the row's own step:
        buffers of sequences use it to find the ends of trajectories. Columns that need no change
        are not copied; for ``nstep`` 1 these are all but ``discount``.
    """
    made = dict(columns)
    reward, discount, last = nstep_returns(
        made["reward"], made.pop("terminated"), ends, gamma=gamma, nstep=nstep
    )
    made["reward"], made["discount"] = reward, discount
    if last is not None:
        made["next_obs"] = map_leaves(lambda column: column.take(last, axis=0), made["next_obs"])
    return SampleBatch(made)


def gae(
    reward: NDArray[np.float32],
    value: NDArray[np.float32],
    bootstrap: NDArray[np.float32],
    ends: NDArray[np.int64],
    *,
    gamma: float,
    gae_lambda: float,
) -> NDArray[np.float32]:
    """Return the generalised advantage estimate of every step of whole trajectory pieces.

    Args:
        reward: float32[n], pieces laid end to end.
        value: float32[n], estimated value of the state that each step began in.
        bootstrap: float32[k], value of the state after each piece's last step; 0 where the task
            ended there.
        ends: int64[k], exclusive end offset of each piece, ascending, the last one ``n``.
        gamma: Discount of one step, in [0, 1].
        gae_lambda: Weight of the next step's advantage, in [0, 1].

    Source: Schulman et al. 2016, eq. 16.
    """
    following = np.empty_like(value)
    following[:-1] = value[1:]
    following[ends - 1] = bootstrap
    deltas = (reward + gamma * following - value).tolist()
    decay, advantage = gamma * gae_lambda, 0.0
    last_rows = set((ends - 1).tolist())
    out = [0.0] * len(deltas)
    # Plain floats take 0.2 us a step, and need no compiler (2026-11).
    for row in range(len(deltas) - 1, -1, -1):
        advantage = deltas[row] + (0.0 if row in last_rows else decay * advantage)
        out[row] = advantage
    return np.array(out, dtype=np.float32)
