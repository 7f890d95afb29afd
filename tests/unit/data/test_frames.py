"""Frames by example: zero copies, hostile headers, files that are something else."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch, decode_frame, encode_frame
from dingsdk.data.digests import digest_of
from dingsdk.data.frames import MAGIC
from dingsdk.errors import ConfigError, DataCorruptError, SchemaMismatchError


def piece(rows: int = 8) -> SampleBatch:
    return SampleBatch(
        {
            "obs": {"image": np.arange(rows * 4, dtype=np.uint8).reshape(rows, 2, 2)},
            "action": np.arange(rows),
            "done": np.zeros(rows, bool),
        }
    )


def frame_of(batch: SampleBatch) -> bytes:
    return b"".join(encode_frame(batch)[0])


def forged(columns: Any, raw_len: int, rows: int = 2, body: bytes = b"", **more: Any) -> bytes:
    """Return a frame with any header and a digest that fits."""
    core = {"v": 1, "rows": rows, "raw_len": raw_len, "columns": columns, **more}
    text = json.dumps(core, separators=(",", ":")).encode()[:-1]
    length = len(text) + len(',"digest":"xxh3-128:"}') + 32
    head = MAGIC + struct.pack("<I", length) + text
    tail = bytes(-(12 + length) % 64) + body
    return head + f',"digest":"{digest_of((head, tail))}"}}'.encode() + tail


def column(**changes: Any) -> dict[str, Any]:
    made = {"path": ["a"], "dtype": "<f4", "shape": [2], "offset": 0, "nbytes": 8}
    return {**made, **changes}


def test_the_forger_can_write_a_good_frame() -> None:
    batch = SampleBatch({"a": np.array([1, 2], np.float32)})
    frame = forged([column()], 8, body=batch.columns["a"].tobytes())
    assert frame == frame_of(batch)
    assert decode_frame(frame) == batch


HOSTILE = {
    "8 TiB": ([column(shape=[2, 2**40], nbytes=2**43)], 2**43),
    "8 TiB in a small file": ([column(shape=[2, 2**40])], 8),
    "more than an address": ([column(shape=[0, 2**62, 2**62], nbytes=0)], 0, 0),
    "negative length": ([column(shape=[2, -1], nbytes=-8)], -8),
    "negative offset": ([column(offset=-64)], 8),
    "gap": ([column(offset=64)], 72),
    "overlap": ([column(), column(path=["b"])], 8),
    "unaligned": ([column(), column(path=["b"], offset=8)], 16),
    "nbytes too many": ([column(nbytes=12)], 12),
    "raw_len too large": ([column()], 2**60),
    "other rows": ([column(shape=[1], nbytes=4)], 4),
    "scalar": ([column(shape=[], nbytes=4)], 4),
    "objects": ([column(dtype="|O", nbytes=16)], 16),
    "text": ([column(dtype="<U1")], 8),
    "fields": ([column(dtype="[('a', '<f4')]")], 8),
    "no columns": ([], 0),
    "same name twice": ([column(), column(offset=64)], 72),
    "column in a column": ([column(), column(path=["a", "b"], offset=64)], 72),
    "column around a column": ([column(path=["a", "b"]), column(offset=64)], 72),
    "no name": ([column(path=[])], 8),
    "too deep": ([column(path=["a"] * 40)], 8),
    "a bool for a number": ([column(offset=False)], 8),
    "a float for a number": ([column(nbytes=8.0)], 8),
    "an unknown field": ([column(codec="zlib")], 8),
    "many dimensions": ([column(shape=[2] + [1] * 20)], 8),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused_without_allocating(name: str) -> None:
    columns, raw_len, *rows = HOSTILE[name]
    for body in (bytes(max(0, min(raw_len, 128))), bytes(8), b""):
        frame = forged(columns, raw_len, *(rows or [2]), body=body)
        tracemalloc.start()
        with pytest.raises(DataCorruptError):
            decode_frame(frame)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


@pytest.mark.parametrize(
    "text",
    [
        b'{"v":1,"v":1,"rows":2,"raw_len":8,"columns":[',
        b'{ "v":1,"rows":2,"raw_len":8,"columns":[',
        b'{"rows":2,"v":1,"raw_len":8,"columns":[',
        b'{"v":1.0,"rows":2,"raw_len":8,"columns":[',
        b'{"v":2,"rows":2,"raw_len":8,"columns":[',
        b'\xef\xbb\xbf{"v":1,"rows":2,"raw_len":8,"columns":[',
        b'{"v":1,"rows":' + b"9" * 5000 + b',"raw_len":8,"columns":[',
        b'{"v":1,"rows":2,"raw_len":8,"columns":' + b"[" * 200_000,
        b'{"v":1,"rows":NaN,"raw_len":8,"columns":[',
    ],
)
def test_another_spelling_of_the_header_is_refused(text: bytes) -> None:
    text += b'{"path":["a"],"dtype":"<f4","shape":[2],"offset":0,"nbytes":8}]'
    head = MAGIC + struct.pack("<I", len(text) + 54) + text
    tail = bytes(-(len(head) + 54) % 64) + bytes(8)
    frame = head + f',"digest":"{digest_of((head, tail))}"}}'.encode() + tail
    with pytest.raises(DataCorruptError):
        decode_frame(frame)


def test_every_truncation_and_every_flipped_byte_is_refused() -> None:
    frame = frame_of(piece(3))
    for size in range(len(frame)):
        with pytest.raises(DataCorruptError):
            decode_frame(frame[:size])
    with pytest.raises(DataCorruptError):
        decode_frame(frame + b"\0")
    for position in range(len(frame)):
        flipped = bytearray(frame)
        flipped[position] ^= 0xFF
        with pytest.raises(DataCorruptError):
            decode_frame(flipped)


class Canary:
    fired = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Canary, "fired", True)


def test_pickles_arrays_and_archives_are_refused_unread() -> None:
    npy, archive = io.BytesIO(), io.BytesIO()
    np.save(npy, np.array([Canary()], dtype=object), allow_pickle=True)
    torch.save({"w": torch.ones(2), "x": Canary()}, archive)
    for data in (pickle.dumps(Canary()), npy.getvalue(), archive.getvalue()):
        for frame in (data, MAGIC + data, MAGIC + struct.pack("<I", len(data)) + data):
            with pytest.raises(DataCorruptError):
                decode_frame(frame, verify=False)
    assert not Canary.fired


def test_a_frame_above_the_cap_is_refused() -> None:
    frame = frame_of(piece())
    assert decode_frame(frame, max_bytes=len(frame)) == piece()
    with pytest.raises(DataCorruptError, match="at most") as caught:
        decode_frame(frame, max_bytes=len(frame) - 1)
    assert caught.value.where == "size"


def test_a_good_frame_of_somebody_else_is_refused() -> None:
    with pytest.raises(DataCorruptError, match="expected"):
        decode_frame(frame_of(piece(3)), expected_digest=encode_frame(piece(4))[1].digest)


def test_without_verification_damage_in_the_columns_passes() -> None:
    frame = bytearray(frame_of(SampleBatch({"a": np.zeros(4, np.uint8)})))
    frame[-1] = 7
    assert decode_frame(frame, verify=False).columns["a"].tolist() == [0, 0, 0, 7]


def test_large_columns_leave_and_arrive_without_a_copy() -> None:
    batch = SampleBatch({"obs": np.zeros((64, 4, 84, 84), np.uint8), "action": np.arange(64)})
    buffers, info = encode_frame(batch)
    shared = [np.shares_memory(np.frombuffer(b, np.uint8), batch.columns["obs"]) for b in buffers]
    assert sum(shared) == 1
    frame = bytearray(b"".join(buffers))
    assert len(frame) == info.size_bytes
    found = decode_frame(frame)
    assert np.shares_memory(found.columns["obs"], np.frombuffer(frame, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        found.columns["obs"][0] = 1


def test_columns_that_are_not_contiguous_are_written_in_order() -> None:
    wide = np.arange(24, dtype=np.float64).reshape(4, 6)
    batch = SampleBatch({"strided": wide[:, ::2], "fortran": np.asfortranarray(wide)})
    assert decode_frame(frame_of(batch)) == batch
    large = SampleBatch({"a": np.zeros((1000, 90))[:, ::3], "b": np.arange(2000)[::-2]})
    assert decode_frame(frame_of(large)) == large


@pytest.mark.parametrize("dtype", ["O", "U3", "S3", "M8[s]", [("a", "f4")], "g"])
def test_columns_that_are_no_fixed_numbers_are_refused_at_the_writer(dtype: Any) -> None:
    batch = SampleBatch.trusted({"a": {"b": np.zeros(2, dtype)}}, 2)
    with pytest.raises(SchemaMismatchError) as caught:
        encode_frame(batch)
    assert caught.value.key == "a.b"


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"a": {}},
        {"a": np.zeros(3)},
        {"a": np.zeros((2,) + (1,) * 20)},
        {"\ud800": np.zeros(2)},
        {"a" * (1 << 20): np.zeros(2)},
        {7: np.zeros(2)},
    ],
)
def test_what_no_reader_would_take_is_refused_at_the_writer(columns: Any) -> None:
    with pytest.raises(SchemaMismatchError):
        encode_frame(SampleBatch.trusted(columns, 2))


def test_more_schemas_than_are_remembered_work() -> None:
    for width in range(600):
        batch = SampleBatch({"a": np.full((1, width), width)})
        assert decode_frame(frame_of(batch)) == batch


def test_an_unknown_digest_is_refused() -> None:
    with pytest.raises(ConfigError, match="xxh3-128"):
        encode_frame(piece(), algorithm="crc32")
