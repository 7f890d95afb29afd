"""Tensor files: what goes in comes out, every safetensors reader agrees, damage is noticed."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dingsdk.data import decode_tensors, encode_tensors
from dingsdk.data.digests import digest_of
from dingsdk.errors import DataCorruptError, SchemaMismatchError

few = settings(max_examples=60, deadline=None)
DTYPES = ["?", "i1", "i2", ">i4", "i8", "u1", "<u2", "<f2", ">f2", "<f4", ">f8"]
NAMES = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from('",:.\\{}\x00'), max_size=9
)
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
MAX = 1 << 20
states = st.dictionaries(NAMES, ARRAYS, min_size=1, max_size=5)


def file_of(state: dict[str, Any], **metadata: str) -> bytearray:
    return bytearray(b"".join(encode_tensors(state, metadata)[0]))


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@few
@given(states, st.dictionaries(NAMES.filter(lambda n: n not in {"digest", "format"}), NAMES))
def test_a_state_comes_back_as_it_was(state: dict[str, Any], metadata: dict[str, str]) -> None:
    buffers, info = encode_tensors(state, metadata)
    content = bytearray(b"".join(buffers))
    assert len(content) == info.size_bytes
    found, texts = decode_tensors(content, MAX, info.digest)
    assert texts == {"format": "pt", **metadata}
    assert list(found) == list(state)
    others = safetensors.torch.load(bytes(content))
    for name, array in state.items():
        little = array.astype(array.dtype.newbyteorder("<"))
        assert raw(found[name]) == raw(others[name]) == little.tobytes()
        assert found[name].shape == array.shape
        assert found[name].dtype == others[name].dtype


@few
@given(states, st.data())
def test_a_changed_byte_is_noticed(state: dict[str, Any], data: st.DataObject) -> None:
    content = file_of(state, version="1")
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DataCorruptError):
        decode_tensors(content, MAX)


def test_every_truncation_is_noticed() -> None:
    content = file_of({"w": torch.ones(3), "b": torch.ones(2, dtype=torch.bfloat16)})
    for size in range(len(content)):
        with pytest.raises(DataCorruptError):
            decode_tensors(content[:size], MAX)
    with pytest.raises(DataCorruptError):
        decode_tensors(content + b"\0", MAX)
    with pytest.raises(DataCorruptError):
        decode_tensors(content, len(content) - 1)


@few
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    for attempt in (data, struct.pack("<Q", 56) + data, struct.pack("<Q", len(data)) + data):
        with pytest.raises(DataCorruptError):
            decode_tensors(bytearray(attempt), MAX)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
NUMBERS = st.integers(-2, 30) | st.sampled_from([2**31, 2**40, 2**62, 2**63, 2**64, -(2**63)])
FIELDS = {
    "dtype": st.sampled_from(["F32", "F64", "I32", "BOOL", "f32", "C64", "", "U128"]) | JSON,
    "shape": st.lists(NUMBERS, max_size=4) | JSON,
    "data_offsets": st.lists(NUMBERS, min_size=2, max_size=2) | JSON,
}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_lying_header_is_refused(data: st.DataObject) -> None:
    """Whatever one field claims, with a digest that fits: refused, or no lie after all."""
    content = file_of({"a": np.arange(6, dtype="f4").reshape(2, 3), "b": np.ones(2, bool)})
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    field = data.draw(st.sampled_from(sorted(FIELDS)))
    header[data.draw(st.sampled_from("ab"))][field] = data.draw(FIELDS[field])
    forged = forge(header, bytes(content[8 + length :]))
    try:
        found, _ = decode_tensors(forged, MAX)
    except DataCorruptError:
        return
    assert file_of(found) == forged


def forge(header: dict[str, Any], body: bytes) -> bytearray:
    header = {**header, "__metadata__": {"format": "pt"}}
    text = msgspec.json.encode(header)[:-2]
    length = len(text) + len(',"digest":"xxh3-128:"}}') + 32
    blanks = -(8 + length) % 64
    head = struct.pack("<Q", length + blanks) + text
    tail = f',"digest":"{digest_of((head, body))}"}}}}'.encode() + b" " * blanks
    return bytearray(head + tail + body)


def test_the_forger_can_write_a_good_file() -> None:
    content = file_of({"a": torch.ones(2)})
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    assert forge(header, bytes(content[8 + length :])) == content


def test_a_file_of_another_writer_is_refused() -> None:
    content = bytearray(safetensors.torch.save({"w": torch.ones(3)}, {"format": "pt"}))
    with pytest.raises(DataCorruptError):
        decode_tensors(content, MAX)


def test_the_tensors_share_the_buffer() -> None:
    content = file_of({"w": torch.ones(3)})
    found, _ = decode_tensors(content, MAX)
    found["w"].zero_()
    assert content.endswith(bytes(12))


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"w": [1.0, 2.0]},
        {"w": np.array(["text"])},
        {"w": np.array([object()])},
        {"w": torch.ones(2, dtype=torch.complex64)},
        {"w": torch.ones(2, 2).to_sparse()},
        {"__metadata__": torch.ones(2)},
        {"\ud800": torch.ones(2)},
        {7: torch.ones(2)},
        {"w": torch.ones((1,) * 20)},
        {"w" * (1 << 20): torch.ones(1)},
    ],
)
def test_what_is_no_flat_state_of_tensors_is_refused(state: Any) -> None:
    with pytest.raises(SchemaMismatchError):
        encode_tensors(state)
