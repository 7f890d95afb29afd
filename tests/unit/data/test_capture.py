"""State that is copied, stored and read back, and values that cannot be saved."""

from __future__ import annotations

import random
import re
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data import (
    SampleBatch,
    decode_json,
    decode_safetensors,
    encode_json,
    encode_safetensors,
)
from dingsdk.data.capture import Savable, capture
from dingsdk.data.container import digest_of
from dingsdk.errors import CheckpointCorruptError, DataCorruptError, NotSavableError


def stored(value: Any) -> Any:
    """Capture a value, write it in file format, read it back and return it."""
    content = encode_safetensors("test", {"value": capture(value)})
    return decode_safetensors("test", content)["value"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        2**80,
        float("inf"),
        "text",
        (1, [2.5, {"a": (3,)}]),
        {1: "one", "two": 2},
        {"$set": 3},
        {4, 5},
        frozenset({"x"}),
        deque([1, 2], maxlen=3),
        deque([(1, 0.5)]),
    ],
    ids=repr,
)
def test_plain_values_come_back_with_their_types(value: Any) -> None:
    found = stored(value)
    assert type(found) is type(value)
    assert found == value
    if isinstance(value, deque):
        assert found.maxlen == value.maxlen


@pytest.mark.parametrize(
    "value",
    [np.float32(0.1), np.int8(-3), np.bool_(True), np.str_("D"), np.arange(6.0).reshape(2, 3)],
    ids=repr,
)
def test_numpy_values_come_back_with_their_dtypes(value: Any) -> None:
    found = stored(value)
    assert type(found) is type(value)
    assert found.dtype == value.dtype
    assert np.array_equal(found, value)


def test_arrays_of_text_come_back() -> None:
    found = stored(np.array([[b"S", b"F"], [b"H", b"G"]]))
    assert found.tolist() == [[b"S", b"F"], [b"H", b"G"]]


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.Philox])
def test_numpy_generators_continue_with_the_same_numbers(bits: Any) -> None:
    rng = np.random.Generator(bits(3))
    rng.random(5)
    found = stored(rng)
    assert found.random(4).tolist() == rng.random(4).tolist()


def test_stdlib_and_legacy_generators_continue_with_the_same_numbers() -> None:
    own, legacy = random.Random(3), np.random.RandomState(3)
    own.gauss(0, 1)
    found_own, found_legacy = stored(own), stored(legacy)
    assert found_own.gauss(0, 1) == own.gauss(0, 1)
    assert found_legacy.rand() == legacy.rand()


def test_capture_copies_arrays_tensors_and_batches() -> None:
    array, tensor = np.zeros(2), torch.zeros(2)
    batch = SampleBatch({"obs": np.zeros((2, 1))})
    found = capture({"array": array, "tensor": tensor, "batch": batch})
    array += 1
    tensor += 1
    batch.columns["obs"] += 1
    assert found["array"].tolist() == [0, 0]
    assert found["tensor"].tolist() == [0, 0]
    assert found["batch"].columns["obs"].tolist() == [[0], [0]]


@pytest.mark.parametrize(
    "value",
    [object(), np.array([object()]), print, np.random.RandomState(np.random.PCG64(0))],
    ids=["object", "array", "function", "random state that numpy cannot restore"],
)
def test_values_that_cannot_be_saved_are_refused_with_their_path(value: Any) -> None:
    with pytest.raises(NotSavableError, match=r"Env\.state\.a\[1\] is a "):
        capture({"a": [0, value]}, "Env.state")


@pytest.mark.parametrize(
    ("bits", "key"), [(np.random.MT19937, "pos"), (np.random.Philox, "buffer_pos")]
)
def test_place_in_a_generator_beyond_its_memory_is_refused(bits: Any, key: str) -> None:
    text = encode_json("test", np.random.Generator(bits(3)))
    place = re.search(rb'"%s":([0-9]+)' % key.encode(), text)
    assert place is not None
    core = text.replace(place[0], b'"%s":9999999' % key.encode()).partition(b',"digest"')[0]
    forged = core + f',"digest":"{digest_of((core,))}"}}'.encode()
    with pytest.raises(DataCorruptError, match="a place in a random generator"):
        decode_json("test", forged)


class Walker(Savable):
    saved = ("place", "rng")

    def __init__(self) -> None:
        self.place = 0
        self.rng = np.random.default_rng(1)
        self.friend = object()


def test_savable_loads_all_saved_attributes_or_none() -> None:
    walker, other = Walker(), Walker()
    walker.place = 7
    walker.rng.random()
    other.load_state_dict(walker.state_dict())
    assert other.place == 7
    assert other.rng.random() == walker.rng.random()
    with pytest.raises(CheckpointCorruptError, match="no rng"):
        other.load_state_dict({"place": 9})
    assert other.place == 7
