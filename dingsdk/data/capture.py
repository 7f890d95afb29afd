"""Copies the state of objects, and refuses what cannot be stored."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dingsdk.data.columns import NUMERIC_KINDS, is_tensor
from dingsdk.data.sample_batch import SampleBatch
from dingsdk.data.tagged import is_generator
from dingsdk.errors import CheckpointCorruptError, NotSavableError

_PLAIN = (bool, int, float, str, type(None))
_KINDS = NUMERIC_KINDS + "SU"


def capture(value: Any, path: str = "") -> Any:
    """Return a copy of a value, which containers can store.

    Args:
        value: Nested dicts, lists, tuples, deques and sets of numbers, text, arrays, tensors,
            batches and random generators.
        path: Path of the value, for the message.

    Raises:
        NotSavableError: the value contains something else; ``path`` says where.
    """
    kind = type(value)
    if kind in _PLAIN or (isinstance(value, np.generic) and value.dtype.kind in _KINDS):
        return value
    if kind is dict:
        return {key: capture(child, f"{path}.{key}") for key, child in value.items()}
    if kind in (list, tuple, set, frozenset, deque):
        items = [capture(child, f"{path}[{index}]") for index, child in enumerate(value)]
        return deque(items, value.maxlen) if kind is deque else kind(items)
    if isinstance(value, SampleBatch):
        return value.copy()
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        return value.copy()
    if is_tensor(value):
        return value.detach().clone()
    if is_generator(value):
        return copy.deepcopy(value)
    raise NotSavableError(
        f"{path or 'the value'} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved "
        "as plain data",
        path=path,
        found=kind.__qualname__,
    )


class Savable:
    """Saves the attributes named in ``saved``; subclasses may extend the two methods."""

    saved: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that make up the object's state; see ``capture`` for their values."""

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state for ``load_state_dict``, which containers can store.

        Raises:
            NotSavableError: an attribute contains a value that ``capture`` does not support.
        """
        return {name: capture(getattr(self, name), name) for name in self.saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned, from a copy of it.

        Raises:
            CheckpointCorruptError: the state does not fit this object, which is not changed.
        """
        if missing := [name for name in self.saved if name not in state]:
            raise CheckpointCorruptError(
                f"the state of {type(self).__name__} has no {', '.join(missing)}"
            )
        for name, value in [(name, capture(state[name], name)) for name in self.saved]:
            setattr(self, name, value)
