"""Encodes control messages as strict JSON; decoding never executes anything.

All messages between workers are encoded here, for every transport, so that they are the same
within one process and between hosts.

A message contains None, bool, int (64 bits), float, str, list, dict with str keys, numpy scalars
(sent as numbers) and numeric numpy arrays. Two types that JSON lacks are tagged objects:
``{"$array": {"dtype": "<i8", "shape": [3], "data": base64}}`` and ``{"$float": "inf"}``
(or ``"-inf"``, ``"nan"``). Therefore keys that start with ``$`` are reserved. Tuples arrive as
lists. For any other value the sender raises an error that contains the path of the value.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

import msgspec
import numpy as np
from msgspec import Meta

from dingsdk.errors import ProtocolError

MAX_DEPTH = 32
"""Most levels of nested lists and dicts, including the outermost one."""
MAX_DIMENSIONS = 16
"""Most dimensions of an array in a message."""
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_INT_DIGITS = 20
_NUMBERS = "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8"
_DTYPES = {dtype.str: dtype for dtype in map(np.dtype, [f"<{each}" for each in _NUMBERS.split()])}
_DIGITS, _LONG_NUMBER = bytes.maketrans(b"123456789", b"0" * 9), b"0" * 19
"""Mapping all digits to 0 makes the search for a long number four times as fast as a pattern."""
_SPECIAL_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}

_Place = tuple[Any, Any] | None
"""Path of a value: (path of its container, key or index); None for the message itself.
It is converted to text only for an error, because that costs more than the encoding."""


def encode_message(message: Any) -> bytes:
    """Return the message as UTF-8 JSON.

    Raises:
        ProtocolError: a value cannot be sent; ``where`` is its path, such as
            ``$.task.env[3]``.
    """
    try:
        encoded = msgspec.json.encode(message)
        if _is_simple(encoded) and msgspec.json.decode(encoded) == message:
            return encoded  # plain data: this takes a third of the time of the code below
    except (TypeError, ValueError, RecursionError):
        pass  # the code below converts the value, or raises an error with its path
    plain = _plain(message, None, 1)
    try:
        return msgspec.json.encode(plain)
    except (UnicodeEncodeError, ValueError) as error:
        # Lone surrogates are the only str content that has no UTF-8 form.
        raise ProtocolError(f"the message has no UTF-8 form: {error}", where="$") from error


def decode_message(data: bytes | bytearray | memoryview, max_bytes: int = 1 << 20) -> Any:
    """Return the message that the bytes encode.

    Args:
        data: The bytes that arrived.
        max_bytes: The largest message to decode. Arrays are base64 in the message, so they never
            need more memory than that.

    Raises:
        ProtocolError: the bytes are not a valid message. No other exception is raised.
    """
    if len(data) > max_bytes:
        raise ProtocolError(
            f"a message of {len(data)} bytes; at most {max_bytes} are read",
            where="$",
            size_bytes=len(data),
            max_bytes=max_bytes,
        )
    data = bytes(data)
    try:
        if _is_simple(data):
            message = msgspec.json.decode(data)
            if msgspec.json.encode(message) == data:
                return message  # no key occurs twice; this takes a sixth of the time
    except (ValueError, RecursionError):
        pass
    try:
        text = data.decode("utf-8")
        message = _DECODER.decode(text)
    except ProtocolError:
        raise
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the message is not JSON: {error}", where="$") from error
    # The check walks through the message; only messages that could fail it are checked.
    if text.count("[") + text.count("{") > MAX_DEPTH or "\\u" in text:
        _check_tree(message)
    return message


def _is_simple(data: bytes) -> bool:
    """Whether JSON has no tags, no numbers that may be too large, and is not nested too deep."""
    is_flat = data.count(b"[") + data.count(b"{") <= MAX_DEPTH
    return is_flat and b'"$' not in data and _LONG_NUMBER not in data.translate(_DIGITS)


def _plain(value: Any, place: _Place, depth: int) -> Any:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return _checked_int(value, place)
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, Mapping):
        _check_depth(depth, place)
        return {
            _checked_key(key, place): _plain(item, (place, key), depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        _check_depth(depth, place)
        return [_plain(item, (place, i), depth + 1) for i, item in enumerate(value)]
    if isinstance(value, np.ndarray) and value.ndim > 0:
        _check_depth(depth + 2, place)
        return _plain_array(value, place)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        return _plain(value.item() if value.dtype.kind != "f" else float(value), place, depth)
    if isinstance(value, (int, float)):
        return _plain(int(value) if isinstance(value, int) else float(value), place, depth)
    return _refuse(f"{kind.__name__} cannot be sent in a message", _text(place))


def _text(place: _Place) -> str:
    steps: list[str] = []
    while place is not None:
        place, key = place
        steps.append(f".{key}" if isinstance(key, str) else f"[{key}]")
    # Cut, because the path of a value that contains itself is long.
    return "$" + "".join(reversed(steps))[:200]


def _checked_key(key: Any, place: _Place) -> str:
    if not isinstance(key, str):
        _refuse(f"the key {key!r} is not a str", _text(place))
    if key.startswith("$"):
        _refuse(f"the key {key!r} starts with '$', which is reserved", _text(place))
    return str.__str__(key)


def _checked_int(value: int, place: _Place) -> int:
    if not _INT_MIN <= value <= _INT_MAX:
        _refuse("an integer of more than 64 bits", _text(place))
    return value


def _check_depth(depth: int, place: _Place) -> None:
    if depth > MAX_DEPTH:
        _refuse(f"more than {MAX_DEPTH} nested lists and dicts", _text(place))


def _plain_array(array: np.ndarray[Any, Any], place: _Place) -> dict[str, Any]:
    dtype = array.dtype.newbyteorder("<")
    if dtype.str not in _DTYPES or array.ndim > MAX_DIMENSIONS:
        what = f"an array of dtype {array.dtype} and {array.ndim} dimensions"
        _refuse(f"{what} cannot be sent in a message", _text(place))
    raw = np.ascontiguousarray(array, dtype=dtype).tobytes()
    data = base64.b64encode(raw).decode("ascii")
    return {"$array": {"dtype": dtype.str, "shape": list(array.shape), "data": data}}


def _object(pairs: list[tuple[str, Any]]) -> Any:
    obj = dict(pairs)
    if len(obj) != len(pairs):
        keys = [key for key, _ in pairs]
        _refuse(f"the key {next(k for k in keys if keys.count(k) > 1)!r} appears twice", "$")
    if len(obj) == 1:
        ((key, value),) = pairs
        if key == "$array":
            return _array(value)
        if key == "$float":
            if not isinstance(value, str) or value not in _SPECIAL_FLOATS:
                _refuse(f"a special float is one of {sorted(_SPECIAL_FLOATS)}", "$.$float")
            return _SPECIAL_FLOATS[value]
    for key in obj:
        if key.startswith("$"):
            _refuse(f"the tag {key!r} is unknown, or has other keys beside it", "$")
    return obj


class _Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1, max_length=16)]
    data: bytes  # base64


def _array(spec: Any) -> np.ndarray[Any, Any]:
    try:
        found = msgspec.convert(spec, _Array)
        dtype = _DTYPES[found.dtype]
    except (msgspec.ValidationError, KeyError) as error:
        raise ProtocolError(f"no array: {error!r:.200}", where="$.$array") from error
    size = math.prod(found.shape) * dtype.itemsize
    # The dimensions of an empty array must fit numpy, too; others must fit the size of the data.
    extent = math.prod(max(length, 1) for length in found.shape) * dtype.itemsize
    if extent >= 2**62 or len(found.data) != size:
        _refuse(f"{len(found.data)} bytes for an array of {size}", "$.$array.data")
    if dtype.kind == "b" and found.data.strip(b"\x00\x01"):
        _refuse("a bool that is neither 0 nor 1", "$.$array.data")
    # A bytearray makes the array writable.
    return np.frombuffer(bytearray(found.data), dtype=dtype).reshape(found.shape)


def _int(digits: str) -> int:
    if len(digits) > _INT_DIGITS:
        _refuse("an integer of more than 64 bits", "$")
    return _checked_int(int(digits), None)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        _refuse("a number beyond the range of float64", "$")
    return value


def _constant(name: str) -> NoReturn:
    _refuse(f"the literal {name} is not JSON", "$")


def _check_tree(message: Any) -> None:
    pending: list[tuple[Any, int]] = [(message, 1)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, str):
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                text = "a string with half of a surrogate pair"
                raise ProtocolError(text, where="$") from error
        elif isinstance(value, (dict, list)):
            _check_depth(depth, None)
            items = (*value, *value.values()) if isinstance(value, dict) else value
            pending.extend((item, depth + 1) for item in items)


def _refuse(what: str, where: str) -> NoReturn:
    raise ProtocolError(f"{what} (at {where})", where=where)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_int,
    parse_float=_float,
    parse_constant=_constant,
    strict=True,
)
