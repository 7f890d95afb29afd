"""Checks of a policy's output, made before any env is stepped; and random actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dingsdk.data.action_mask import draw_legal
from dingsdk.data.capture import Savable
from dingsdk.errors import NonFiniteError, PolicyOutputError, PolicyOutputTypeError


def check_columns(output: Any, rows: int) -> None:
    """Check a batched output: it has an ``action``, ``rows`` rows per column, and finite floats.

    Raises:
        PolicyOutputError: no ``action``, or a column of the wrong length.
        NonFiniteError: a float column with NaN or infinity.
    """
    # type() first: isinstance of an ABC costs as much as the rest of the check.
    if not (type(output) is dict or isinstance(output, Mapping)) or "action" not in output:
        raise _no_action(output)
    for key, value in output.items():
        if type(value) is not np.ndarray or value.shape[:1] != (rows,):
            if isinstance(value, Mapping):
                continue
            found = value.shape if isinstance(value, np.ndarray) else type(value).__name__
            raise PolicyOutputError(
                f"the policy's {key!r} must be a numpy array of {rows} rows, one for each env; "
                f"found {found}",
                key=key,
                expected=(rows,),
                found=found,
            )
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            bad = np.flatnonzero(~np.isfinite(value).reshape(rows, -1).all(axis=1))
            raise _non_finite(key, bad.tolist())


def check_dicts(outputs: Any, env_ids: list[int]) -> None:
    """Check an output in dict form: an ``action`` for every env in ``env_ids``, finite floats.

    Raises:
        PolicyOutputError: an env or its ``action`` is missing.
        NonFiniteError: NaN or infinity in a float value.
    """
    for env_id in env_ids:
        output = outputs.get(env_id) if isinstance(outputs, Mapping) else None
        if not isinstance(output, Mapping) or "action" not in output:
            raise _no_action(output, f" for env {env_id}")
        for key, value in output.items():
            if not _is_finite(value):
                raise _non_finite(key, [env_id])


def check_samples(samples: Any, method: str) -> list[Any]:
    """Return the samples that a policy made of transitions, as a list.

    Raises:
        PolicyOutputTypeError: the value is not a sequence of samples.
    """
    if isinstance(samples, Iterable) and not isinstance(samples, Mapping | str):
        return list(samples)
    raise PolicyOutputTypeError(
        f"the policy's {method} must return a SampleBatch or a list of samples; it returned a "
        f"{type(samples).__name__}",
        key=method,
        expected="SampleBatch | list",
        found=type(samples).__name__,
    )


class RandomActions(Savable):
    """Draws batches of actions from a gymnasium space.

    Args:
        space: The space of one env's action.
        seed: Seed of the stream; None for fresh entropy.
    """

    saved = ("_rng",)

    def __init__(self, space: Any, seed: int | None) -> None:
        self._space = space
        self._rng = np.random.default_rng(seed)

    def draw(self, count: int, legal: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Draw actions.

        Args:
            count: Number of actions.
            legal: For a Discrete space, bool[count, actions] with the legal actions, at least one
                per row; None: all are legal.

        Returns:
            ``[count, ...]`` with the dtype of the space.
        """
        space = self._space
        if isinstance(space, spaces.Discrete):
            low = int(space.start)
            if legal is not None:
                return (low + draw_legal(legal, self._rng.random(count))).astype(space.dtype)
            return self._rng.integers(low, low + int(space.n), count).astype(space.dtype)
        if isinstance(space, spaces.Box) and space.is_bounded("both"):
            shape = (count, *space.shape)
            if space.dtype.kind == "f":
                return self._rng.uniform(space.low, space.high, shape).astype(space.dtype)
            drawn = self._rng.integers(space.low, space.high, shape, endpoint=True)
            return drawn.astype(space.dtype)
        space.seed(int(self._rng.integers(2**31)))  # so that only this stream is saved
        return np.stack([np.asarray(space.sample()) for _ in range(count)])


def _is_finite(value: Any) -> bool:
    if hasattr(value, "is_floating_point"):
        return not value.is_floating_point() or bool(value.isfinite().all())
    if isinstance(value, (float, np.ndarray, np.floating)):
        array = np.asarray(value)
        return array.dtype.kind != "f" or bool(np.isfinite(array).all())
    return True


def _no_action(output: Any, where: str = "") -> PolicyOutputError:
    found = sorted(map(str, output)) if isinstance(output, Mapping) else type(output).__name__
    return PolicyOutputError(
        f"the policy's forward must answer with an 'action'{where}; found {found}",
        key="action",
        expected="action",
        found=found,
    )


def _non_finite(key: str, where: list[int]) -> NonFiniteError:
    return NonFiniteError(
        f"the policy's {key!r} holds NaN or infinity (envs {where}); the envs were not stepped. "
        "Usual causes: a learning rate that is too high, or non-finite observations",
        key=key,
        rows=where,
    )
