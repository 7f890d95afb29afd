"""Containers return the encoded data unchanged and refuse damaged or invalid bytes."""

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
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.columns import leaves
from dingsdk.data.container import (
    MAGIC,
    decode_batch,
    decode_frame,
    decode_json,
    decode_safetensors,
    digest_of,
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


JSON = st.recursive(
    NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
COUNTS = st.integers(-2, 70) | st.sampled_from([2**31, 2**32, 2**62, 2**63, 2**64, 10**400, -1])
TREES = st.recursive(
    st.sampled_from([{"$array": "a"}, {"$array": "b"}, {"$tensor": "a"}]) | NUMBERS,
    lambda inner: st.dictionaries(
        st.sampled_from(["a", "b", "$batch", "$tuple", "$items", "$array"]), inner, max_size=2
    ),
    max_leaves=4,
)
FIELDS = {
    "version": COUNTS | JSON,
    "kind": JSON,
    "columns": JSON,
    "tree": TREES | JSON,
    "dtype": st.sampled_from(["<f4", ">i8", "|b1", "|O", "<U9", "O", "<f16", "bfloat16"]) | JSON,
    "shape": st.lists(COUNTS, max_size=4) | JSON,
}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_manifest_with_a_false_field_is_refused(data: st.DataObject) -> None:
    """A false value in one field, with a matching digest, is refused unless it is harmless."""
    batch = SampleBatch({"a": np.arange(6, dtype="<f4").reshape(2, 3), "b": np.ones(2, bool)})
    manifest, body = split(frame_of(batch))
    name = data.draw(st.sampled_from(sorted(FIELDS)))
    if name in ("dtype", "shape"):
        manifest["columns"][data.draw(st.sampled_from("ab"))][name] = data.draw(FIELDS[name])
    else:
        manifest[name] = data.draw(FIELDS[name])
    frame = forge(manifest, body)
    try:
        found = decode_batch(frame, max_bytes=1 << 20)
    except DataCorruptError:
        return
    # Another type of the same size, or another shape with as many values, is also valid.
    assert found.nbytes <= len(frame)
    assert len(found) == len(next(array for _, array in arrays_of(found)))


def split(frame: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack_from("<I", frame, 8)
    end = 12 + length
    return json.loads(frame[12:end]), frame[-(-end // 64) * 64 :]


def forge(manifest: dict[str, Any], body: bytes) -> bytes:
    core = {key: value for key, value in manifest.items() if key != "digest"}
    try:
        text = msgspec.json.encode(core)[:-1]
    except Exception:
        text = json.dumps(core).encode("utf-8", "replace")[:-1]
    length = len(text) + len(',"digest":"xxh3-128:"}') + 32
    head = MAGIC + struct.pack("<I", length) + text
    end = 12 + length
    tail = bytes(-end % 64) + body
    return head + f',"digest":"{digest_of((head, tail))}"}}'.encode() + tail


def test_forge_can_write_a_valid_frame() -> None:
    frame = frame_of(SampleBatch({"a": np.ones(3)}))
    assert forge(*split(frame)) == frame
