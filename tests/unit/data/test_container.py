"""The container format: all kinds of values, no copies, hostile manifests, foreign files."""

from __future__ import annotations

import io
import json
import math
import pickle
import re
import struct
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from dingsdk.data import SampleBatch, container, tagged
from dingsdk.data.container import (
    MAGIC,
    VERSION,
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
from dingsdk.errors import DataCorruptError, SchemaMismatchError


def piece(rows: int = 8) -> SampleBatch:
    return SampleBatch(
        {
            "obs": {"image": np.arange(rows * 4, dtype=np.uint8).reshape(rows, 2, 2)},
            "action": np.arange(rows),
            "done": np.zeros(rows, bool),
        }
    )


def frame_of(value: Any, kind: str = "payload", **options: Any) -> bytes:
    return b"".join(encode_frame(kind, value, **options)[0])


VALUE = {
    "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(3),
    "empty": torch.zeros(0, 4),
    "strided": torch.arange(6).reshape(2, 3).T,
    "array": np.arange(3, dtype=np.uint8),
    "0-d": np.array(2.5),
    "numpy": np.float32(0.5),
    "nested": [1, (2.5, None), {"deep": (True, "text", [])}, []],
    "special": [math.inf, -math.inf],
    "by int": {0: {"lr": 1e-3}, 1: {}, "x": 2},
    "$tag": {"$array": 1, "$float": "nan"},
    "dots.and/slashes": {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}},
    "big": [2**100, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**5000],
    "episodes": [piece(2), piece(3)],
}


def check_same(found: Any) -> None:
    assert list(found) == list(VALUE)
    for key in ("bfloat16", "scalar", "empty", "strided"):
        assert found[key].dtype == VALUE[key].dtype
        assert torch.equal(found[key], VALUE[key])
    for key in ("array", "0-d"):
        assert (found[key].dtype, found[key].shape) == (VALUE[key].dtype, VALUE[key].shape)
        assert np.array_equal(found[key], VALUE[key])
    for key in ("numpy", "nested", "special", "by int", "$tag", "big", "episodes"):
        assert found[key] == VALUE[key]
    assert list(found["by int"]) == [0, 1, "x"]
    assert found["dots.and/slashes"]["a.b"] == 1
    assert found["dots.and/slashes"]["a"]["b"] == 0


def test_every_format_keeps_every_kind_of_value() -> None:
    check_same(decode_frame("state", frame_of(VALUE, "state")))
    content = bytes(encode_safetensors("state", VALUE))
    check_same(decode_safetensors("state", content))
    assert safetensors.torch.load(content)["dots.and/slashes.a.b~"].tolist() == [0.0]
    text = encode_json("state", VALUE)
    check_same(decode_json("state", text, len(text)))
    assert math.isnan(decode_json("x", encode_json("x", [math.nan]))[0])


@pytest.mark.parametrize(
    ("leaf", "found"),
    [
        (object(), "object"),
        (b"raw", "bytes"),
        (len, "builtin_function_or_method"),
        (1j, "complex"),
        (np.datetime64(1, "s"), "datetime"),
        (np.array([None]), "object"),
        (torch.eye(2).to_sparse(), "torch.float32 torch.sparse_coo"),
        (torch.zeros(2, dtype=torch.float8_e4m3fn), "torch.float8_e4m3fn"),
        ({(1, 2): 3}, "tuple"),
        ({2**70: 3}, "int"),
    ],
)
def test_error_for_an_unsupported_leaf_names_its_path(leaf: Any, found: str) -> None:
    for encode in (encode_frame, encode_safetensors):
        with pytest.raises(SchemaMismatchError) as caught:
            encode("state", {"model": {"odd": [leaf]}})  # type: ignore[operator]
        assert caught.value.key.startswith("model.odd.0")
        assert caught.value.found == found


def test_columns_nested_up_to_the_limit_are_kept_and_deeper_ones_refused() -> None:
    columns: Any = np.arange(2)
    for _ in range(tagged.MAX_DEPTH):
        columns = {"a": columns}
    batch = SampleBatch(columns)
    assert decode_batch(frame_of(batch)) == batch
    with pytest.raises(SchemaMismatchError, match="at most 32 levels") as caught:
        encode_batch(SampleBatch({"a": columns}))
    assert caught.value.key == ".".join("a" * 33)
    columns["b"] = columns
    with pytest.raises(SchemaMismatchError, match="at most 32 levels"):
        encode_batch(SampleBatch.trusted(columns, 2))


def test_tensors_of_a_writable_frame_share_its_memory_and_others_are_copies() -> None:
    frame = bytearray(frame_of({"w": torch.zeros(3), "a": np.zeros(2)}, "policy"))
    found = decode_frame("policy", frame)
    found["w"].fill_(1.0)
    found["a"][:] = 1.0
    assert decode_frame("policy", frame, verify=False)["w"].tolist() == [1.0, 1.0, 1.0]
    copied = decode_frame("policy", bytes(frame), verify=False)
    copied["w"].fill_(2.0)
    assert not copied["a"].flags.writeable


def forged(columns: Any, body: bytes = b"", tree: Any = None, **fields: Any) -> bytes:
    """Return a frame with the given manifest and a matching digest."""
    tree = {"$batch": {"a": {"$array": "a"}}} if tree is None else tree
    core = {"version": VERSION, "kind": "payload", "tree": tree, "columns": columns, **fields}
    return forged_text(json.dumps(core, separators=(",", ":")).encode()[:-1], body)


def forged_text(core: bytes, body: bytes) -> bytes:
    length = len(core) + len(',"digest":"xxh3-128:"}') + 32
    head = MAGIC + struct.pack("<I", length) + core
    tail = bytes(-(12 + length) % 64) + body
    return head + f',"digest":"{digest_of((head, tail))}"}}'.encode() + tail


FLOATS = {"dtype": "<f4", "shape": [2]}
TWO = {"$batch": {"a": {"$array": "a"}, "b": {"$array": "b"}}}


HOSTILE: dict[str, tuple[Any, ...]] = {
    "8 TiB": ({"a": {"dtype": "<f4", "shape": [2, 2**40]}},),
    "more than an address": ({"a": {"dtype": "<f4", "shape": [0, 2**62, 2**62]}},),
    "negative length": ({"a": {"dtype": "<f4", "shape": [2, -1]}},),
    "scalar": ({"a": {"dtype": "<f4", "shape": []}},),
    "objects": ({"a": {"dtype": "|O", "shape": [2]}},),
    "half numbers that numpy lacks": ({"a": {"dtype": "bfloat16", "shape": [4]}},),
    "many dimensions": ({"a": {"dtype": "<f4", "shape": [2] + [1] * 20}},),
    "a float for a number": ({"a": {"dtype": "<f4", "shape": [2.0]}},),
    "an unknown field": ({"a": {**FLOATS, "codec": "zlib"}},),
    "no columns": ({}, {"$batch": {}}),
    "a column of no name": ({"a": FLOATS}, {"$batch": {}}),
    "a name of no column": ({"a": FLOATS}, TWO),
    "other rows": ({"a": FLOATS, "b": {"dtype": "<f4", "shape": [3]}}, TWO),
    "another order": ({"b": FLOATS, "a": FLOATS}, TWO),
    "one array twice": ({"a": FLOATS}, {"$batch": {"a": {"$array": "a"}, "b": {"$array": "a"}}}),
    "a batch in a batch": ({"a": FLOATS}, {"$batch": {"b": {"$batch": {"a": {"$array": "a"}}}}}),
    "a number for an array": ({}, {"$batch": {"a": 1}}),
    "a name twice": ({"a": FLOATS, "b": FLOATS}, {"$batch": {"$items": [
        ["a", {"$array": "a"}], ["a", {"$array": "b"}]]}}),
    "too deep": ({"a": FLOATS}, {"$batch": json.loads('{"a":' * 40 + '{"$array":"a"}' + "}" * 40)}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_refused_without_allocating(name: str) -> None:
    columns, *tree = HOSTILE[name]
    for body in (bytes(128), bytes(72), bytes(64), bytes(8), b""):
        frame = forged(columns, body, *tree)
        tracemalloc.start()
        with pytest.raises(DataCorruptError):
            decode_batch(frame)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


@pytest.mark.parametrize(
    "tree",
    [
        {"$tensor": "absent"},
        {"$tensor": ["a"]},
        {"$float": "1.0"},
        {"$float": 1.0},
        {"$int": "seven"},
        {"$tuple": {"a": 1}},
        {"$items": [[1]]},
        {"$items": [[[], 1]]},
        {"$batch": []},
        {"$new": 1},
        18446744073709551616,
        {"$set": [[]]},
        {"$deque": [[], -1]},
        {"$scalar": ["<f4", "x"]},
        {"$scalar": ["|O", 1]},
        {"$text": ["|O", [1], [1]]},
        {"$generator": {"bit_generator": "default_rng"}},
        {"$random": {"$tuple": [3, {"$tuple": [1]}, None]}},
    ],
)
def test_a_malformed_tree_is_refused(tree: Any) -> None:
    with pytest.raises(DataCorruptError) as caught:
        decode_frame("payload", forged({}, b"", tree))
    assert caught.value.where == "tree"


STATE = {"w": torch.ones(3), "text": "x"}
FORMATS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "frame": (decode_batch, frame_of(piece(3))),
    "safetensors": (
        partial(decode_safetensors, "state"),
        bytes(encode_safetensors("state", STATE)),
    ),
    "json": (
        partial(decode_json, "pointer"),
        encode_json("pointer", {"stem": "a", "iteration": 7}),
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_truncation_and_every_flipped_byte_is_refused(name: str) -> None:
    decode, content = FORMATS[name]
    for size in range(len(content) - (name == "json")):  # JSON may lack the end of its line
        with pytest.raises(DataCorruptError):
            decode(content[:size])
    with pytest.raises(DataCorruptError):
        decode(content + b"\0")
    for position in range(len(content)):
        for mask in (0x01, 0x29, 0xFF):  # 0x29 turns a space into a tab
            flipped = bytearray(content)
            flipped[position] ^= mask
            with pytest.raises(DataCorruptError):
                decode(bytes(flipped))


class Canary:
    fired = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Canary, "fired", True)


def test_pickles_arrays_and_archives_are_refused_without_unpickling() -> None:
    npy, archive = io.BytesIO(), io.BytesIO()
    np.save(npy, np.array([Canary()], dtype=object), allow_pickle=True)
    torch.save({"w": torch.ones(2), "x": Canary()}, archive)
    for data in (pickle.dumps(Canary()), npy.getvalue(), archive.getvalue()):
        for frame in (data, MAGIC + data, MAGIC + struct.pack("<I", len(data)) + data):
            with pytest.raises(DataCorruptError):
                decode_frame("payload", frame, verify=False)
            with pytest.raises(DataCorruptError):
                decode_safetensors("payload", frame)
            with pytest.raises(DataCorruptError):
                decode_json("payload", frame)
    assert not Canary.fired


def test_a_safetensors_file_with_wrong_offsets_or_dtypes_is_refused() -> None:
    content = bytes(encode_safetensors("state", {"a": torch.ones(2), "b": torch.ones(2)}))
    for good, bad in ((b"[8,16]", b"[9,16]"), (b"[0,8]", b"[8,8]"), (b'"F32"', b'"F64"')):
        digest = re.search(b"sha256:[0-9a-f]{64}", content)
        assert digest is not None
        blank = b"sha256:" + b"0" * 64
        forged = content.replace(digest[0], blank).replace(good, bad, 1)
        assert forged.count(bad) >= 1
        forged = forged.replace(blank, digest_of((forged,), "sha256").encode())
        with pytest.raises(DataCorruptError) as caught:
            decode_safetensors("state", forged)
        assert caught.value.where == "tensors"


def test_error_for_damage_names_the_damaged_part() -> None:
    frame = frame_of(piece())
    short, other = (
        frame[:8] + length.to_bytes(4, "little") + frame[12:] for length in (9, 1 << 19)
    )
    text = encode_json("pointer", 1)
    for damaged, where in (
        (frame[:11], "size"),
        (frame[:12], "manifest length"),
        (frame + b"\0", "digest"),
        (b"x" + frame[1:], "magic"),
        (short, "manifest"),
        (other, "manifest length"),
        (frame[:-1] + b"x", "digest"),
        (forged({"a": FLOATS}, bytes(72)), "size"),
        (forged({"a": FLOATS}, bytes(8), [1]), "tree"),
        (forged({"a": FLOATS}, bytes(8), {"a": {"$array": "a"}}), "tree"),
        (forged({"a": FLOATS}, bytes(8), more=1), "manifest"),
    ):
        with pytest.raises(DataCorruptError) as caught:
            decode_batch(damaged)
        assert caught.value.where == where
    for damaged, where in ((text.replace(b"1", b"7", 1), "digest"), (text[:-2], "manifest")):
        with pytest.raises(DataCorruptError) as caught:
            decode_json("pointer", damaged)
        assert caught.value.where == where
    for damaged, where in (
        (b"", "header length"),
        (bytes(8), "header length"),
        (b"\2" + bytes(7) + b"{", "header length"),
        (b"\2" + bytes(7) + b"{}", "header"),
        (b"\2" + bytes(7) + b"x}", "header"),
    ):
        with pytest.raises(DataCorruptError) as caught:
            decode_safetensors("state", damaged)
        assert caught.value.where == where


def test_a_frame_above_the_limit_is_refused() -> None:
    frame = frame_of(piece())
    assert decode_batch(frame, max_bytes=len(frame)) == piece()
    with pytest.raises(DataCorruptError, match="at most") as caught:
        decode_batch(frame, max_bytes=len(frame) - 1)
    assert caught.value.where == "size"


def test_a_manifest_above_the_limit_is_refused_by_writers_and_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = ["x" * 1000]
    with pytest.raises(SchemaMismatchError, match="manifest"):
        encode_frame("state", value, max_manifest_bytes=1000)
    frame, content = frame_of(value, "state"), bytes(encode_safetensors("state", value))
    monkeypatch.setattr(container, "_MAX_HEADER_BYTES", 1000)
    with pytest.raises(SchemaMismatchError, match="manifest"):
        encode_safetensors("state", value)
    with pytest.raises(DataCorruptError, match="manifest"):
        decode_frame("state", frame, max_manifest_bytes=1000)
    with pytest.raises(DataCorruptError, match="header"):
        decode_safetensors("state", content)
    line = encode_json("state", value)
    assert decode_json("state", line, len(line)) == value
    with pytest.raises(DataCorruptError, match="at most"):
        decode_json("state", line, len(line) - 1)


def test_without_verification_damaged_columns_are_not_detected() -> None:
    frame = bytearray(frame_of(SampleBatch({"a": np.zeros(4, np.uint8)})))
    frame[-1] = 7
    assert decode_batch(frame, verify=False).columns["a"].tolist() == [0, 0, 0, 7]
    frame[0] ^= 1  # a wrong magic is detected without the digest
    with pytest.raises(DataCorruptError):
        decode_batch(frame, verify=False)


def test_large_columns_are_written_and_read_without_a_copy() -> None:
    batch = SampleBatch({"obs": np.zeros((64, 4, 84, 84), np.uint8), "action": np.arange(64)})
    buffers, info = encode_batch(batch)
    shared = [np.shares_memory(np.frombuffer(b, np.uint8), batch.columns["obs"]) for b in buffers]
    assert sum(shared) == 1
    frame = bytearray(b"".join(buffers))
    assert len(frame) == info.size_bytes
    found = decode_batch(frame)
    assert np.shares_memory(found.columns["obs"], np.frombuffer(frame, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        found.columns["obs"][0] = 1


def test_columns_that_are_not_contiguous_are_written_in_order() -> None:
    wide = np.arange(24, dtype=np.float64).reshape(4, 6)
    batch = SampleBatch({"strided": wide[:, ::2], "fortran": np.asfortranarray(wide)})
    assert decode_batch(frame_of(batch)) == batch
    large = SampleBatch({"a": np.zeros((1000, 90))[:, ::3], "b": np.arange(2000)[::-2]})
    assert decode_batch(frame_of(large)) == large
    uneven = SampleBatch({"a": np.arange(70_001, dtype=np.uint8), "b": np.arange(70_001)})
    assert decode_batch(frame_of(uneven)) == uneven


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"a": np.zeros((2,) + (1,) * 20)},
        {"\ud800": np.zeros(2)},
        {"a" * (1 << 20): np.zeros(2)},
        {7: np.zeros(2)},
    ],
)
def test_batches_that_no_reader_accepts_are_refused_by_the_writer(columns: Any) -> None:
    with pytest.raises(SchemaMismatchError):
        encode_batch(SampleBatch.trusted(columns, 2))


def test_batch_with_a_wrong_row_count_is_refused() -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        encode_frame("state", [SampleBatch.trusted({"a": np.zeros(3)}, 2)])
    error = caught.value
    assert (error.key, error.expected, error.found) == ("0", "2 rows", "3")


def test_head_digest_detects_changes_of_the_head_only() -> None:
    batch = SampleBatch({"obs": np.arange(12, dtype=np.float32)})
    (frame,), info = encode_batch(batch, algorithm="head")
    assert info.digest.startswith("head:")
    assert decode_batch(frame, expected_digest=info.digest) == batch
    changed = bytearray(frame)
    changed[-1] ^= 1
    assert decode_batch(bytes(changed)) != batch
    with pytest.raises(DataCorruptError):
        decode_batch(bytes(frame).replace(b"[12]", b"[11]"))
    with pytest.raises(DataCorruptError):
        decode_batch(bytes(frame).replace(b"obs", b"abs"))
