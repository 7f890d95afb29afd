"""Reading priorities, and numbers about them, as collectors, training and configs give them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.columns import torch_to_numpy
from dingsdk.errors import (
    InvalidPriorityError,
    SchemaMismatchError,
)
from dingsdk.worker.replay_buffer.prioritized.fact_kernels import first_wrong

LEAST_PRIORITY = 1e-5
"""What is added to every updated priority, and the least that a pushed one counts for.

A row of priority 0 would never be drawn again, and one that is nearly 0 would push the
importance weights of all others to 0, which are relative to the rarest row.
"""


def read_priorities(values: Any) -> NDArray[np.float64]:
    """Return priorities as float64[n].

    Args:
        values: A sequence, an array or a tensor of n numbers >= 0.

    Raises:
        InvalidPriorityError: it is something else, or one is negative, infinite or NaN.
    """
    array = _numbers("priority", values, "fiu")
    priorities = _plain(array, np.float64)
    wrong = first_wrong(priorities)
    if wrong >= 0:
        _refuse("priority", priorities[wrong], wrong)
    return priorities


def read_numbers(info: Mapping[str, Any], key: str, n: int) -> NDArray[np.int64]:
    """Return the ids or positions of an update as int64[n].

    Raises:
        InvalidPriorityError: they are missing, no integers, or not ``n``.
    """
    array = _numbers(key, info.get(key), "iu")
    if len(array) != n:
        raise InvalidPriorityError(
            f"an update of {n} priorities has {len(array)} of {key!r}; each priority needs one",
            key=key,
            found=len(array),
            expected=n,
        )
    return _plain(array, np.int64)


def pushed_priorities(values: Sequence[Any]) -> NDArray[np.float64] | None:
    """Return the priorities of pushed rows: float64[n], NaN where there is none.

    Args:
        values: For each row a number >= 0, or None.

    Returns:
        None where no row has one.

    Raises:
        InvalidPriorityError: a value is neither.
    """
    given = [index for index, value in enumerate(values) if value is not None]
    if not given:
        return None
    priorities = np.full(len(values), math.nan)
    for index in given:
        priorities[index] = _one("priority", values[index], index)
    return priorities


def pushed_iters(values: Sequence[Any]) -> list[int | None]:
    """Return in which learner iteration the policy was that collected each row.

    Args:
        values: For each row an integer, or a sequence of them (of which the least counts: a
            sequence is as old as its oldest step), or None.

    Raises:
        SchemaMismatchError: a value is none of these.
    """
    return [None if value is None else _iter(value, index) for index, value in enumerate(values)]


def _iter(value: Any, index: int) -> int:
    if type(value) is int:
        return value
    try:
        array = np.asarray(torch_to_numpy(value))
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.dtype.kind not in "iu" or array.size == 0:
        raise SchemaMismatchError(
            f"collect_iter of row {index} is {value!r:.80}; it is an integer or several",
            key="collect_iter",
            row=index,
            expected="int",
            found=type(value).__name__,
        )
    return int(array.min())


def _one(key: str, value: Any, index: int) -> float:
    found = torch_to_numpy(value)
    if isinstance(found, np.ndarray) and found.ndim == 0:
        found = found[()]
    number = math.nan
    if isinstance(found, (int, float, np.integer, np.floating)) and not isinstance(found, bool):
        with contextlib.suppress(OverflowError):
            number = float(found)
    if not 0 <= number < math.inf:
        _refuse(key, value, index)
    return number


def _numbers(key: str, values: Any, kinds: str) -> NDArray[Any]:
    if not isinstance(values, (np.ndarray, list)):
        values = torch_to_numpy(values)
    if isinstance(values, np.ndarray):
        array = values
    elif isinstance(values, (list, tuple)):
        # numpy takes True among numbers for 1.
        types = list(map(type, values))
        if bool in types:
            _refuse(key, "a bool", types.index(bool))
        try:
            array = np.asarray(values) if values else np.empty(0, np.int64)
        except (TypeError, ValueError) as error:
            raise InvalidPriorityError(
                f"{key} of an update makes no array of numbers: {error}", key=key, found="list"
            ) from error
    else:
        array = np.empty((0, 0))
    if array.ndim != 1 or array.dtype.kind not in kinds:
        what = "numbers" if "f" in kinds else "integers"
        found = f"{array.dtype}{list(array.shape)}" if array.ndim == 1 or array.size else values
        raise InvalidPriorityError(
            f"{key} of an update is a list, array or tensor of {what}, found {found!r:.80}",
            key=key,
            found=str(found)[:80],
        )
    return array


def _plain(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    # Compiled code takes no frozen arrays, even to read.
    plain = np.ascontiguousarray(array, dtype)
    return plain if plain.flags.writeable else plain.copy()


def _refuse(key: str, value: Any, index: int) -> None:
    raise InvalidPriorityError(
        f"{key} of row {index} is {value!r:.80}; it must be a finite number >= 0",
        key=key,
        found=f"{value!r:.80}",
        index=index,
    )
