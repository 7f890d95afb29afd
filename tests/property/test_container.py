"""Containers return the encoded data unchanged and refuse damaged or invalid bytes."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.columns import leaves
from dingsdk.data.container import (
    MAGIC,
    decode_batch,
    decode_frame,
    decode_json,
    decode_safetensors,
    encode_batch,
    encode_frame,
    encode_json,
    encode_safetensors,
)
from dingsdk.errors import DataCorruptError

few = settings(max_examples=60, deadline=None)
DTYPES = ["?", "i1", "<i2", ">i4", "<i8", "u1", ">u2", "<u8", "<f2", ">f2", "<f4", ">f8"]
TAILS = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3) | st.just(())
NAMES = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from('",:.\\{}\x00$~'), max_size=9
)


@st.composite
def columns(draw: st.DrawFn, rows: int, depth: int = 2) -> dict[str, Any]:
    leaf = st.tuples(st.sampled_from([*DTYPES, "<c8"]), TAILS).flatmap(
        lambda form: hnp.arrays(form[0], (rows, *form[1]))
    )
    value = leaf | columns(rows, depth - 1) if depth else leaf
    return draw(st.dictionaries(NAMES, value, min_size=1, max_size=4))


batches = st.integers(0, 4).flatmap(columns).map(SampleBatch)
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
NUMBERS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
PLAIN = st.recursive(
    NUMBERS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(NAMES | st.integers(-(2**63), 2**63 - 1), inner, max_size=3)
    ),
    max_leaves=8,
)
trees = st.recursive(
    NUMBERS | ARRAYS | batches,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
states = st.dictionaries(NAMES, ARRAYS, min_size=1, max_size=5)


def frame_of(batch: SampleBatch, **options: Any) -> bytes:
    return b"".join(encode_batch(batch, **options)[0])


def arrays_of(batch: SampleBatch) -> list[tuple[str, NDArray[Any]]]:
    return list(leaves(batch.columns))


def assert_equal(found: Any, value: Any) -> None:
    assert type(found) is type(value)
    if isinstance(value, dict):
        assert list(found) == list(value)
        for key in value:
            assert_equal(found[key], value[key])
    elif isinstance(value, (list, tuple)):
        assert len(found) == len(value)
        for one, other in zip(found, value, strict=True):
            assert_equal(one, other)
    elif isinstance(value, SampleBatch):
        assert len(found) == len(value)
        assert_equal(found.columns, value.columns)
    elif isinstance(value, np.ndarray):
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert found.tobytes() == value.tobytes()
    else:
        assert found == value or found != found


@few
@given(batches, st.sampled_from(["xxh3-128", "sha256"]))
def test_batch_survives_encoding(batch: SampleBatch, algorithm: str) -> None:
    buffers, info = encode_batch(batch, algorithm=algorithm)
    frame = b"".join(buffers)
    assert info.size_bytes == len(frame)
    assert info.digest.startswith(algorithm + ":")
    found = decode_batch(frame, expected_digest=info.digest)
    assert_equal(found, batch)
    assert all(not array.flags.writeable for _, array in arrays_of(found))
    assert frame_of(found, algorithm=algorithm) == frame


@few
@given(trees)
def test_tree_survives_encoding(tree: Any) -> None:
    frame = b"".join(encode_frame("tree", tree)[0])
    assert_equal(decode_frame("tree", frame), tree)


@few
@given(PLAIN)
def test_tree_without_arrays_survives_json(tree: Any) -> None:
    line = encode_json("tree", tree)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert_equal(decode_json("tree", line), tree)


@few
@given(states)
def test_state_can_be_read_by_the_safetensors_library(state: dict[str, Any]) -> None:
    """The safetensors library reads the same tensors; there an empty name is ``value``."""
    tensors = {name: torch.from_numpy(little(array)) for name, array in state.items()}
    content = bytes(encode_safetensors("state", tensors))
    found, others = decode_safetensors("state", content), safetensors.torch.load(content)
    assert list(found) == list(state)
    assert len(others) == len(state)
    for name, array in state.items():
        for tensor in (found[name], others[name or "value"]):
            assert tensor.shape == array.shape
            assert tensor.numpy().tobytes() == little(array).tobytes()
            assert tensor.dtype == tensors[name].dtype


def little(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(array.dtype.newbyteorder("<"))


@few
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    for attempt in (data, MAGIC + data, MAGIC + struct.pack("<I", len(data)) + data):
        with pytest.raises(DataCorruptError):
            decode_batch(attempt, verify=False)
        with pytest.raises(DataCorruptError):
            decode_json("payload", attempt)
    for attempt in (data, struct.pack("<Q", len(data)) + data):
        with pytest.raises(DataCorruptError):
            decode_safetensors("payload", attempt)
