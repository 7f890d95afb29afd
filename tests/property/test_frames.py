"""Frames: what goes in comes out, and nothing else does."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dingsdk.data import SampleBatch, decode_frame, encode_frame
from dingsdk.data.columns import leaves
from dingsdk.data.digests import digest_of
from dingsdk.data.frames import MAGIC
from dingsdk.errors import DataCorruptError

few = settings(max_examples=60, deadline=None)
DTYPES = ["?", "i1", "<i2", ">i4", "<i8", "u1", ">u2", "<u8", "<f2", ">f2", "<f4", ">f8", "<c8"]
TAILS = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3) | st.just(())
NAMES = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from('",:.\\{}\x00'), max_size=9
)


@st.composite
def columns(draw: st.DrawFn, rows: int, depth: int = 2) -> dict[str, Any]:
    leaf = st.tuples(st.sampled_from(DTYPES), TAILS).flatmap(
        lambda form: hnp.arrays(form[0], (rows, *form[1]))
    )
    value = leaf | columns(rows, depth - 1) if depth else leaf
    return draw(st.dictionaries(NAMES, value, min_size=1, max_size=4))


batches = st.integers(0, 4).flatmap(columns).map(SampleBatch)


def frame_of(batch: SampleBatch, **options: Any) -> bytes:
    return b"".join(encode_frame(batch, **options)[0])


def arrays_of(batch: SampleBatch) -> list[tuple[str, NDArray[Any]]]:
    return list(leaves(batch.columns))


def assert_same(found: SampleBatch, batch: SampleBatch) -> None:
    assert len(found) == len(batch)
    for (name, array), (other_name, other) in zip(arrays_of(found), arrays_of(batch), strict=True):
        assert name == other_name
        assert array.dtype == other.dtype
        assert array.dtype.byteorder == other.dtype.byteorder
        assert array.shape == other.shape
        assert array.tobytes() == other.tobytes()


@few
@given(batches, st.sampled_from(["xxh3-128", "sha256"]))
def test_a_batch_comes_back_as_it_was(batch: SampleBatch, algorithm: str) -> None:
    buffers, info = encode_frame(batch, algorithm)
    frame = b"".join(buffers)
    assert info.size_bytes == len(frame)
    assert info.digest.startswith(algorithm + ":")
    found = decode_frame(frame, expected_digest=info.digest)
    assert_same(found, batch)
    assert all(not array.flags.writeable for _, array in arrays_of(found))
    assert frame_of(found, algorithm=algorithm) == frame


@few
@given(batches, st.data())
def test_a_changed_byte_is_noticed(batch: SampleBatch, data: st.DataObject) -> None:
    frame = bytearray(frame_of(batch))
    position = data.draw(st.integers(0, len(frame) - 1))
    frame[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DataCorruptError):
        decode_frame(frame)


@few
@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    for attempt in (data, MAGIC + data, MAGIC + struct.pack("<I", len(data)) + data):
        with pytest.raises(DataCorruptError):
            decode_frame(attempt, verify=False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
NUMBERS = st.integers(-2, 70) | st.sampled_from([2**31, 2**32, 2**62, 2**63, 2**64, 10**400, -1])
COLUMN_FIELDS = {
    "path": st.lists(st.text(max_size=3), max_size=3) | JSON,
    "dtype": st.sampled_from(["<f4", ">i8", "|b1", "|O", "<U9", "O", "<f16", "V8", "f4"]) | JSON,
    "shape": st.lists(NUMBERS, max_size=4) | JSON,
    "offset": NUMBERS | JSON,
    "nbytes": NUMBERS | JSON,
}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_lying_header_is_refused(data: st.DataObject) -> None:
    """Whatever one field claims, with a digest that fits: refused, or no lie after all."""
    batch = SampleBatch({"a": np.arange(6, dtype="<f4").reshape(2, 3), "b": np.ones(2, bool)})
    frame = frame_of(batch)
    header, body = split(frame)
    column = header["columns"][data.draw(st.integers(0, 1))]
    name = data.draw(st.sampled_from(["v", "rows", "raw_len", "columns", *COLUMN_FIELDS]))
    if name in COLUMN_FIELDS:
        column[name] = data.draw(COLUMN_FIELDS[name])
    else:
        header[name] = data.draw(NUMBERS | JSON)
    forged = forge(header, body)
    try:
        found = decode_frame(forged, max_bytes=1 << 20)
    except DataCorruptError:
        return
    # Another name, or another type of the same size, is as good a frame.
    assert frame_of(found) == forged
    assert found.nbytes <= len(forged)


def split(frame: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack_from("<I", frame, 8)
    end = 12 + length
    return json.loads(frame[12:end]), frame[-(-end // 64) * 64 :]


def forge(header: dict[str, Any], body: bytes) -> bytes:
    core = {key: value for key, value in header.items() if key != "digest"}
    try:
        text = msgspec.json.encode(core)[:-1]
    except Exception:
        text = json.dumps(core).encode("utf-8", "replace")[:-1]
    length = len(text) + len(',"digest":"xxh3-128:"}') + 32
    head = MAGIC + struct.pack("<I", length) + text
    end = 12 + length
    tail = bytes(-end % 64) + body
    return head + f',"digest":"{digest_of((head, tail))}"}}'.encode() + tail
