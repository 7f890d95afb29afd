"""Compressed arrays of rows: they come back unchanged, as copies."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError
from dingsdk.worker.replay_buffer import NaiveReplayBuffer
from dingsdk.worker.replay_buffer.storage.compression import Codec, Packed, read_codec
from dingsdk.worker.replay_buffer.storage.objects import ObjectStorage

CODECS = ["lz4", "zstd"]


def codec(name: str) -> Codec:
    found = read_codec(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 84, 84), np.uint8),
        np.random.default_rng(0).random((5, 40)),
        np.arange(600, dtype=">i4").reshape(20, 30)[::2, ::-1],
        np.asfortranarray(np.arange(400.0).reshape(20, 20)),
        np.full(256, True),
    ],
)
def test_arrays_come_back_bit_by_bit_and_writable(name: str, array: np.ndarray) -> None:
    packed = codec(name).pack_array(array)
    assert isinstance(packed, Packed)
    assert len(packed.data) <= 1.01 * array.nbytes
    again = codec(name).unpack_array(packed)
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    assert again.tobytes() == array.tobytes()
    again[...] = 1
    assert codec(name).unpack_array(packed).tobytes() == array.tobytes()


@pytest.mark.parametrize("value", [np.zeros(255, np.uint8), np.array(["a"] * 99), "x" * 999, None])
def test_small_arrays_and_other_values_are_not_compressed(value: Any) -> None:
    assert codec("lz4").pack_array(value) is value


@pytest.mark.parametrize("name", CODECS)
def test_rows_of_any_objects_come_back_unchanged(name: str) -> None:
    storage = {"type": "object", "compress": name}
    buffer = NaiveReplayBuffer({"replay_buffer_size": 4, "storage": storage})
    image = np.arange(4096, dtype=np.uint8).reshape(64, 64)
    for _ in range(3):
        row = {"obs": [image, (image[:8], "text")], "reward": 1.0}
        buffer.push([row, "a word"], 0)
    buffer.push(SampleBatch({"image": image.astype(np.float32)[None]}), 0)
    for _ in range(2):  # changes to the first sample do not reach the stored rows
        rows = [row for row in buffer.sample(4, 0) or [] if isinstance(row, dict)]
        assert len(rows) == 2
        for row in rows:
            arrays = [row["image"]] if "image" in row else [row["obs"][0]]
            if "obs" in row:
                assert row["obs"][1][1] == "text"
                arrays.append(row["obs"][1][0])
            for array in arrays:
                assert np.array_equal(array, image[: len(array)])
                array[...] = 0


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(ConfigError, match="none, lz4, zstd"):
        ObjectStorage({"compress": "gzip"}, 1)


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_that_is_not_installed_says_what_to_install(name: str) -> None:
    code = f"""
import sys
sys.modules["lz4"] = sys.modules["zstandard"] = None
from dingsdk.errors import ConfigError
from dingsdk.worker.replay_buffer.storage.compression import read_codec
try:
    read_codec({name!r})
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "pip install lz4 zstandard" in done.stdout, done.stderr
