"""The encoding of all values that dingsdk stores or sends: JSON, with tags for what JSON lacks.

A value consists of nested dicts, lists and tuples of numbers, text, None, numpy arrays, torch
tensors and :class:`SampleBatch`; the state of a part may also have deques, sets, numpy scalars and
random generators. Each value that JSON does not have is an object with one key, its tag:

* ``$array``, ``$tensor``: what ``Encoder.place`` returns
* ``$batch``: the columns; ``$tuple``, ``$set``, ``$frozenset``: the items
* ``$deque``: the items and ``maxlen``
* ``$items``: the pairs of a dict whose keys are not plain text
* ``$float``: nan, inf or -inf; ``$int``: hexadecimal digits of more than 64 bits
* ``$scalar``: dtype and number of a numpy scalar, or an array of no dimensions
* ``$text``: dtype, shape and bytes of an array of text
* ``$generator``, ``$random_state``, ``$random``: the state of a random generator

No other key begins with ``$``. Decoding executes nothing, and allocates no memory because of a
number in the data.
"""

from __future__ import annotations

import math
import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dingsdk.data.columns import as_columns, common_length, is_tensor, mismatch
from dingsdk.data.pytree import flatten
from dingsdk.data.sample_batch import SampleBatch
from dingsdk.errors import SchemaMismatchError

MAX_DEPTH = 32
"""Most levels of nested lists and dicts in a value."""
MAX_DIMENSIONS = 16
"""Most dimensions of an array."""
_NUMBERS = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
DTYPES = {
    dtype.str: dtype
    for dtype in (np.dtype(order + number) for order in "<>" for number in _NUMBERS)
}
# A type of torch with two bytes per number; numpy does not have it.
_BFLOAT16 = "bfloat16"
DTYPES[_BFLOAT16] = np.dtype("<i2")
FALSE_DATA = ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError
"""What a ``Decoder`` raises for data that no ``Encoder`` wrote."""
Path = tuple[str, ...]

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_TEXT_DTYPE = re.compile(r"[<>|][SU][0-9]{1,9}")
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


def is_fit(shape: tuple[int, ...], itemsize: int) -> bool:
    """Whether an array may have this shape."""
    if len(shape) > MAX_DIMENSIONS or min(shape, default=0) < 0:
        return False
    # The dimensions of an empty array must be in the range of numpy, too.
    return math.prod(max(length, 1) for length in shape) * itemsize < 2**62


def is_generator(value: object) -> bool:
    """Whether a value is a random generator whose state can be stored and restored."""
    if type(value) is np.random.Generator:
        return type(value.bit_generator).__name__ in _BIT_GENERATORS
    if type(value) is np.random.RandomState:  # numpy can restore only this one
        return bool(value.get_state(legacy=False)["bit_generator"] == "MT19937")
    return type(value) is random.Random


def unfit(path: Path, expected: str, found: str) -> SchemaMismatchError:
    """Return the error for a value that cannot be encoded."""
    key = ".".join(path)
    return mismatch(f"{key or 'the value'!r:.80} cannot be written", key, expected, found[:200])


class _Inline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array in JSON, where bytes are base64."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Encoder:
    """Converts values to JSON."""

    is_plain: ClassVar[bool] = False
    """Whether only arrays, dicts and numbers get tags: tuples become lists, numpy scalars numbers,
    and other values are refused."""

    def place(self, array: NDArray[Any], dtype: str, path: Path) -> Any:
        """Return what ``Decoder.place`` converts to the array; here the numbers are in the JSON."""
        return _Inline(dtype, array.shape, array.tobytes())

    def visit(self, node: Any, path: Path = ()) -> Any:
        """Return a value as JSON.

        Args:
            node: The value.
            path: The keys and indices where it is.

        Raises:
            SchemaMismatchError: it cannot be encoded; ``key`` is the dotted path.
        """
        if len(path) > MAX_DEPTH:
            raise unfit(path, f"at most {MAX_DEPTH} levels", "more")
        if isinstance(node, np.generic):
            if not self.is_plain and (node.dtype.str in DTYPES or node.dtype.kind in "SU"):
                if node.dtype.kind in "biuf":
                    return {"$scalar": [node.dtype.str, self.visit(node.item(), path)]}
                return {"$scalar": self.visit(np.asarray(node), path)}
            node = float(node) if node.dtype.kind == "f" else node.item()
        if node is None or isinstance(node, bool):
            return node
        if isinstance(node, str):
            return str.__str__(node)
        if isinstance(node, int):
            number = int(node)
            if not _INT_MIN <= number <= _INT_MAX and self.is_plain:
                raise unfit(path, "integers of 64 bits", "a wider one")
            return number if _INT_MIN <= number <= _INT_MAX else {"$int": f"{number:x}"}
        if isinstance(node, float):
            return float(node) if math.isfinite(node) else {"$float": repr(float(node))}
        if isinstance(node, np.ndarray):
            if node.dtype.kind in "SU" and not self.is_plain:
                content = np.frombuffer(node.tobytes(), np.uint8)
                return {"$text": [node.dtype.str, list(node.shape), self.visit(content, path)]}
            return {"$array": self._place(node, node.dtype.str, path)}
        if isinstance(node, Mapping):
            return self._mapping(node, path)
        if isinstance(node, (list, tuple)):
            items = self._items(node, path)
            return items if self.is_plain or isinstance(node, list) else {"$tuple": items}
        if not self.is_plain and (found := self._typed(node, path)):
            return found
        raise unfit(path, "numbers, text, arrays or nests of them", type(node).__name__)

    def _items(self, node: Iterable[Any], path: Path) -> list[Any]:
        return [self.visit(child, (*path, str(index))) for index, child in enumerate(node)]

    def _mapping(self, node: Mapping[Any, Any], path: Path) -> dict[str, Any]:
        if all(isinstance(key, str) and not key.startswith("$") for key in node):
            pairs = ((str.__str__(key), child) for key, child in node.items())
            return {key: self.visit(child, (*path, key)) for key, child in pairs}
        for key in node:
            is_number = isinstance(key, int) and -(2**63) <= key < 2**63 and not self.is_plain
            if not is_number and not isinstance(key, str):
                expected = "keys of text" if self.is_plain else "keys of text or 64 bit numbers"
                raise unfit(path, expected, type(key).__name__)
        return {
            "$items": [[key, self.visit(child, (*path, str(key)))] for key, child in node.items()]
        }

    def _typed(self, node: Any, path: Path) -> dict[str, Any] | None:
        kind = type(node)
        if is_tensor(node):
            return {"$tensor": self._place(*array_of(node, path), path)}
        if isinstance(node, SampleBatch):
            rows = common_length(as_columns(node.columns, ".".join(path)))
            if rows != len(node):
                raise unfit(path, f"{len(node)} rows", f"{rows}")
            return {"$batch": self._mapping(node.columns, path)}
        if kind is deque:
            return {"$deque": [self._items(node, path), node.maxlen]}
        if kind in (set, frozenset):
            return {f"${kind.__name__}": self._items(node, path)}
        if not is_generator(node):
            return None
        if kind is random.Random:
            return {"$random": self.visit(node.getstate(), path)}
        if kind is np.random.Generator:
            return {"$generator": self.visit(node.bit_generator.state, path)}
        return {"$random_state": self.visit(node.get_state(legacy=False), path)}

    def _place(self, array: NDArray[Any], dtype: str, path: Path) -> Any:
        if dtype not in DTYPES or array.dtype.hasobject:
            raise unfit(path, "bool, integer, float or complex numbers", str(array.dtype))
        if not is_fit(array.shape, array.itemsize):
            expected = f"at most {MAX_DIMENSIONS} dimensions, below 2**62 bytes"
            raise unfit(path, expected, str(list(array.shape)))
        return self.place(array, dtype, path)


class Decoder:
    """Converts what an ``Encoder`` returned to the value again; raises ``FALSE_DATA``."""

    _placed = 0

    def place(self, spec: Any) -> tuple[NDArray[Any], str]:
        """Return the array that ``Encoder.place`` stored, and the name of its dtype."""
        found = msgspec.convert(spec, _Inline)
        dtype = DTYPES[found.dtype]
        size = math.prod(found.shape) * dtype.itemsize
        if not is_fit(found.shape, dtype.itemsize) or len(found.data) != size:
            raise ValueError(f"{len(found.data)} bytes for an array of {size}")
        # A bytearray makes the array writable.
        return np.frombuffer(bytearray(found.data), dtype).reshape(found.shape), found.dtype

    def visit(self, node: Any, depth: int = 0) -> Any:
        """Return the value of a node that is at this depth."""
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels")
        if isinstance(node, list):
            return [self.visit(item, depth + 1) for item in node]
        if not isinstance(node, dict):
            if type(node) is int and not _INT_MIN <= node <= _INT_MAX:
                raise ValueError("an integer of more than 64 bits")
            return node
        tag = next((key for key in node if key.startswith("$")), None)
        if tag is None:
            return {key: self.visit(child, depth + 1) for key, child in node.items()}
        if len(node) > 1:
            raise ValueError(f"the tag {tag!r} has other keys beside it")
        content = node[tag]
        if tag in ("$array", "$tensor"):
            self._placed += 1
            array, dtype = self.place(content)
            if tag == "$tensor":
                return as_tensor(array, dtype)
            if dtype == _BFLOAT16:
                raise ValueError("numpy has no bfloat16")
            return array
        if tag == "$batch":
            before = self._placed
            batch = SampleBatch(self.visit(content, depth))  # raises if it is no nest of columns
            if len(flatten(batch.columns)) != self._placed - before:
                raise ValueError("a batch is a nest of arrays")
            return batch
        make, levels, kinds = _MAKERS.get(tag, (None, 0, ()))
        if make is None or not isinstance(content, kinds):
            raise ValueError(f"the tag {tag!r} is unknown, or what it holds")
        return make(self.visit(content, depth - levels))


def array_of(tensor: Any, path: Path) -> tuple[NDArray[Any], str]:
    """Return a tensor as an array, and the name of its dtype."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise unfit(path, "a dense tensor", f"{tensor.dtype} {tensor.layout}")
    try:
        if tensor.dtype is torch.bfloat16:
            return tensor.detach().view(torch.int16).numpy(force=True), _BFLOAT16
        array: NDArray[Any] = tensor.numpy(force=True)
    except (TypeError, RuntimeError) as error:
        raise unfit(path, "a type that numpy has", str(tensor.dtype)) from error
    return array, array.dtype.str


def as_tensor(array: NDArray[Any], dtype: str) -> Any:
    """Return a tensor that shares the array's memory if the array is writable."""
    import torch

    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(torch.bfloat16) if dtype == _BFLOAT16 else tensor


def _special(text: str) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(f"{text!r:.40} is no special float")
    return float(text)


def _scalar(content: Any) -> Any:
    return content[()] if isinstance(content, np.ndarray) else DTYPES[content[0]].type(content[1])


def _text(content: list[Any]) -> NDArray[Any]:
    name, shape, raw = content
    if not _TEXT_DTYPE.fullmatch(name):
        raise ValueError(f"{name!r:.40} is no dtype of text")
    return np.ndarray(shape, name, raw.tobytes())


def _generator(state: Any) -> np.random.Generator:
    if state["bit_generator"] not in _BIT_GENERATORS:
        raise ValueError(f"there is no generator {state['bit_generator']!r:.40}")
    bits = getattr(np.random, state["bit_generator"])(0)
    bits.state = _checked(state)
    return np.random.Generator(bits)


def _random_state(state: Any) -> np.random.RandomState:
    made = np.random.RandomState(0)
    made.set_state(_checked(state))
    return made


def _checked(state: Any) -> Any:
    # numpy does not check these places in its memory, and would read beyond it.
    if not (0 <= state["state"].get("pos", 0) <= 624 and 0 <= state.get("buffer_pos", 0) <= 4):
        raise ValueError("a place in a random generator that it does not have")
    return state


def _random(state: Any) -> random.Random:
    made = random.Random()
    made.setstate(state)
    return made


_MAKERS: dict[str, tuple[Callable[[Any], Any] | None, int, Any]] = {
    "$float": (_special, 0, str),
    "$int": (lambda digits: int(digits, 16), 0, str),
    "$tuple": (tuple, 0, list),
    "$set": (set, 0, list),
    "$frozenset": (frozenset, 0, list),
    "$deque": (lambda content: deque(*content), 1, list),
    "$items": (dict, 1, list),
    "$scalar": (_scalar, 1, (list, dict)),
    "$text": (_text, 2, list),
    "$generator": (_generator, 0, dict),
    "$random_state": (_random_state, 0, dict),
    "$random": (_random, 0, dict),
}
"""For each tag: what makes the value of its content, the levels of lists in the content that an
encoder does not count, and the types of the content."""
