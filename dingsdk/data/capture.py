"""Converts the state of objects to plain data, which containers can store, and back.

``capture`` copies a value; random generators, deques and numpy scalars become dicts with one
tagged entry, such as ``{"@deque": ...}``. ``revive`` converts the result back to a value of the
same types.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dingsdk.data.columns import NUMERIC_KINDS, is_tensor
from dingsdk.data.sample_batch import SampleBatch
from dingsdk.errors import CheckpointCorruptError, NotSavableError

_PLAIN = (bool, int, float, str, type(None))
_BIT_GENERATORS = {
    each.__name__: each
    for each in (
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.MT19937,
        np.random.Philox,
        np.random.SFC64,
    )
}


def capture(value: Any, path: str = "") -> Any:
    """Return a copy of a value as plain data: nested dicts, lists, tuples, numbers, text, arrays.

    Args:
        value: Plain data; it may also contain random generators, deques, sets, tensors, batches.
        path: Path of the value, for the message.

    Raises:
        NotSavableError: the value contains something else; ``path`` says where.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        copied = {key: capture(child, f"{path}.{key}") for key, child in value.items()}
        is_tagged = len(value) == 1 and str(next(iter(value))).startswith("@")
        return {"@dict": list(copied.items())} if is_tagged else copied
    if kind in (list, tuple):
        items = [capture(child, f"{path}[{index}]") for index, child in enumerate(value)]
        return items if kind is list else tuple(items)
    if isinstance(value, np.ndarray) and value.dtype.kind in NUMERIC_KINDS:
        return value.copy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
        content = np.frombuffer(value.tobytes(), np.uint8)
        return {"@text": (value.dtype.str, list(value.shape), content)}
    if isinstance(value, np.generic) and value.dtype.kind in NUMERIC_KINDS + "SU":
        return {"@scalar": capture(np.asarray(value), path)}
    if isinstance(value, SampleBatch):
        return value.copy()
    if is_tensor(value):
        return value.detach().clone()
    if kind is deque:
        return {"@deque": (capture(list(value), path), value.maxlen)}
    if kind in (set, frozenset):
        return {f"@{kind.__name__}": capture(list(value), path)}
    if kind is np.random.Generator and type(value.bit_generator).__name__ in _BIT_GENERATORS:
        return {"@generator": capture(value.bit_generator.state, path)}
    if kind is np.random.RandomState:
        state = value.get_state(legacy=False)
        if state["bit_generator"] == "MT19937":  # numpy cannot restore others
            return {"@random_state": capture(state, path)}
    if kind is random.Random:
        return {"@random": value.getstate()}
    raise NotSavableError(
        f"{path or 'the value'} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved "
        "as plain data",
        path=path,
        found=kind.__qualname__,
    )


def revive(value: Any) -> Any:
    """Return the value from which ``capture`` made this data.

    Raises:
        CheckpointCorruptError: the data was not made by ``capture``.
    """
    if type(value) is dict:
        tag, content = next(iter(value.items())) if len(value) == 1 else ("", None)
        if not isinstance(tag, str) or not tag.startswith("@"):
            return {key: revive(child) for key, child in value.items()}
        try:
            return _TAGGED[tag](content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointCorruptError(f"saved state has a wrong entry {tag!r}") from error
    if type(value) in (list, tuple):
        return type(value)(map(revive, value))
    return value


def _generator(state: Any) -> np.random.Generator:
    bits = _BIT_GENERATORS[state["bit_generator"]](0)
    bits.state = revive(state)
    return np.random.Generator(bits)


def _random_state(state: Any) -> np.random.RandomState:
    made = np.random.RandomState()
    made.set_state(revive(state))
    return made


def _random(state: Any) -> random.Random:
    made = random.Random()
    made.setstate(revive(state))
    return made


_TAGGED: dict[str, Any] = {
    "@dict": lambda items: {key: revive(child) for key, child in items},
    "@text": lambda content: np.frombuffer(content[2].tobytes(), content[0]).reshape(content[1]),
    "@scalar": lambda array: revive(array)[()],
    "@deque": lambda content: deque(revive(content[0]), content[1]),
    "@set": lambda items: set(revive(items)),
    "@frozenset": lambda items: frozenset(revive(items)),
    "@generator": _generator,
    "@random_state": _random_state,
    "@random": _random,
}


class Savable:
    """Saves the attributes named in ``saved``; subclasses may extend the two methods."""

    saved: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that make up the object's state; their values are plain data."""

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state for ``load_state_dict``, as plain data.

        Raises:
            NotSavableError: an attribute contains a value that ``capture`` does not support.
        """
        return {name: capture(getattr(self, name), name) for name in self.saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned.

        Raises:
            CheckpointCorruptError: the state does not fit this object, which is not changed.
        """
        if missing := [name for name in self.saved if name not in state]:
            raise CheckpointCorruptError(
                f"the state of {type(self).__name__} has no {', '.join(missing)}"
            )
        for name, value in [(name, revive(state[name])) for name in self.saved]:
            setattr(self, name, value)
