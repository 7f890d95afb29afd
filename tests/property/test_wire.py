"""The wire encoding: messages arrive unchanged; any bytes are either decoded or refused."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dingsdk.data import decode_message, encode_message
from dingsdk.errors import ProtocolError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KEYS = TEXT | st.just("$array")
ARRAYS = hnp.arrays(
    st.sampled_from(["?", "i1", "<i2", "<i4", "<i8", "u1", "<u8", "<f2", "<f4", "<f8"]),
    hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4),
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | TEXT
    | ARRAYS
)
MESSAGES = st.recursive(
    LEAVES, lambda m: st.lists(m, max_size=4) | st.dictionaries(KEYS, m, max_size=4), max_leaves=12
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(same(left[key], right[key]) for key in left)
        )
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


@given(MESSAGES)
def test_message_arrives_unchanged(message: Any) -> None:
    assert same(message, decode_message(encode_message(message)))


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    try:
        message = decode_message(data)
    except ProtocolError:
        return
    assert same(message, decode_message(encode_message(message)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"NaN",
        b"[Infinity]",
        b'{"$array":1,"$array":1}',
        b'{"$float":"inf","a":1}',
        b'{"$float":{}}',
        b"\xef\xbb\xbf{}",
        b'{"\\udfff":1}',
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"1 2",
        b'"\t"',
        b'{"$array":{"dtype":"<i8","shape":[1099511627776],"data":""}}',
        b'{"$array":{"dtype":"<i8","shape":[1],"data":"AAAAAAAA*AA="}}',
        b'{"$array":{"dtype":"<i8","shape":[1],"data":"AAAAAAAAAAA=","x":1}}',
    ],
    ids=lambda data: data[:40].decode("ascii", "replace"),
)
def test_malformed_messages_are_protocol_errors(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_message(data)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b'{"b":1,"a":1,"a":2}', "'a' appears twice"),
        (b'{"b":1,"$unknown":1}', "'$unknown' has other keys"),
        (b'{"$float":"infinity"}', "'infinity'"),
        (b'{"$array":{"dtype":"<i8"}}', "shape"),
        (b'{"$array":{"dtype":"<i9","shape":[1],"data":""}}', "<i9"),
        (
            b'{"$array":{"dtype":"<i8","shape":[2],"data":"AAAAAAAAAAA="}}',
            "8 bytes for an array of 16",
        ),
        (b'{"$array":{"dtype":"<i8","shape":[0,2305843009213693952],"data":""}}', "0 bytes"),
        (b"[1e999]", "out of range"),
        (b"18446744073709551616", "64 bits"),
        (b"[" * 34 + b"]" * 34, "32 levels"),
        (b'"\xff"', "not JSON"),
    ],
)
def test_error_names_the_mistake(data: bytes, named: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_message(data)
    assert caught.value.where == "$"
    assert named in str(caught.value)


class Ratio(float):
    pass


class Wide(int):
    pass


def test_values_of_subclasses_arrive_as_json_types() -> None:
    found = decode_message(encode_message((np.str_("D"), IntEnum("Side", "LEFT").LEFT, Ratio(0.5))))
    assert found == ["D", 1, 0.5]
    assert list(map(type, found)) == [str, int, float]


def test_message_over_the_size_limit_is_refused_unread() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_message(b"[" * 101, max_bytes=100)
    assert (caught.value.size_bytes, caught.value.max_bytes) == (101, 100)
    assert caught.value.where == "$"
    assert decode_message(b"1" + b" " * 99, max_bytes=100) == 1


def test_nesting_up_to_the_limit_is_allowed_both_ways() -> None:
    message: Any = 1
    for _ in range(32):
        message = [message]
    assert decode_message(encode_message(message)) == message
    with pytest.raises(ProtocolError, match="at most 32 levels") as caught:
        encode_message([message])
    assert caught.value.where == "$" + ".0" * 33


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"task": {"env": [1, {2}]}}, "$.task.env.1"),
        ({"a": {3: 1}}, "$.a"),
        ([b"bytes"], "$.0"),
        ([2**64], "$.0"),
        ({"x": [Wide(2**64)]}, "$.x.0"),
        ([-(2**63) - 1], "$.0"),
        ({"x": np.array(["a"])}, "$.x"),
        ({"x": np.array([None])}, "$.x"),
        ({"x": torch.zeros(1)}, "$.x"),
        ({"x": 1j}, "$.x"),
        ({"x": lambda: None}, "$.x"),
        ({"x" * 900: 1j}, f"$.{'x' * 198}"),
        ("\ud800", "$"),
    ],
)
def test_value_that_cannot_be_sent_is_refused_with_its_place(message: Any, where: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        encode_message(message)
    assert caught.value.where == where


def test_special_floats_numpy_scalars_and_tuples_can_be_sent() -> None:
    from easydict import EasyDict

    message = EasyDict(
        a=float("inf"),
        b=[float("-inf"), float("nan")],
        c=(np.int64(3), np.float32(0.5), np.bool_(True)),
        z=np.array(7),
        e=np.arange(3, dtype=">i4"),
    )
    found = decode_message(encode_message(message))
    assert found["a"] == float("inf")
    assert found["b"][0] == float("-inf")
    assert np.isnan(found["b"][1])
    assert found["c"] == [3, 0.5, True]
    assert [type(value) for value in found["c"]] == [int, float, bool]
    assert found["z"] == 7
    assert found["e"].dtype == np.dtype(">i4")
    assert found["e"].tolist() == [0, 1, 2]
    assert found["e"].flags.writeable
