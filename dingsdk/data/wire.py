"""Encodes control messages as strict JSON; decoding never executes anything.

All messages between workers are encoded here, for every transport, so that they are the same
within one process and between hosts.

A message contains None, bool, int (64 bits), float, str, list, dict with str keys, numpy scalars
(sent as numbers) and numeric numpy arrays, encoded by :mod:`dingsdk.data.tagged`. Tuples arrive as
lists. For any other value the sender raises an error that contains the path of the value.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from dingsdk.data.tagged import FALSE_DATA, MAX_DEPTH, Decoder, Encoder
from dingsdk.errors import ProtocolError, SchemaMismatchError

_DIGITS, _LONG_NUMBER = bytes.maketrans(b"123456789", b"0" * 9), b"0" * 19
"""Mapping all digits to 0 makes the search for a long number four times as fast as a pattern."""


def encode_message(message: Any) -> bytes:
    """Return the message as UTF-8 JSON.

    Raises:
        ProtocolError: a value cannot be sent; ``where`` is its path, such as
            ``$.task.env.3``.
    """
    try:
        encoded = msgspec.json.encode(message)
        if _is_simple(encoded) and msgspec.json.decode(encoded) == message:
            return encoded  # plain data: this takes a third of the time of the code below
    except (TypeError, ValueError, RecursionError):
        pass  # the code below converts the value, or raises an error with its path
    try:
        return msgspec.json.encode(_Encoder().visit(message))
    except SchemaMismatchError as error:
        where = f"$.{error.key}"[:200] if error.key else "$"
        raise ProtocolError(f"the message cannot be sent: {error}", where=where) from error
    except UnicodeEncodeError as error:
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
        tree = msgspec.json.decode(data)
        encoded = msgspec.json.encode(tree)
        if encoded != data:  # other spellings, or a key that occurs twice
            json.loads(data, object_pairs_hook=_once)
        return tree if _is_simple(encoded) else Decoder().visit(tree)
    except FALSE_DATA as error:
        raise ProtocolError(f"the message is not JSON as it is sent: {error}", where="$") from error


def _is_simple(data: bytes) -> bool:
    """Whether JSON has no tags, no numbers that may be too large, and is not nested too deep."""
    is_flat = data.count(b"[") + data.count(b"{") <= MAX_DEPTH
    return is_flat and b'"$' not in data and _LONG_NUMBER not in data.translate(_DIGITS)


class _Encoder(Encoder):
    is_plain = True


def _once(pairs: list[tuple[str, Any]]) -> None:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"the key {max(keys, key=keys.count)!r} appears twice")
