"""Tree helpers: walking and converting nested values."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data.pytree import (
    copy_containers,
    different_leaves,
    flatten,
    nest,
    to_tensor,
)

Pair = namedtuple("Pair", ["left", "right"])


def test_nest_builds_dicts_from_paths_and_refuses_duplicates() -> None:
    pairs = [(("obs", "pos"), 1), (("act",), 2), (("obs", "seen"), 3)]
    assert nest(pairs) == {"obs": {"pos": 1, "seen": 3}, "act": 2}
    with pytest.raises(ValueError, match=r"\('act',\) comes twice"):
        nest([*pairs, (("act",), 4)])


def test_copy_containers_shares_leaves_only() -> None:
    array = np.zeros(2)
    tree = {"a": [array]}
    other = copy_containers(tree)
    other["a"].append(1)
    assert len(tree["a"]) == 1
    assert other["a"][0] is array


def test_to_tensor_converts_by_kind() -> None:
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    found = to_tensor(
        {
            "d": np.zeros(2),
            "i": 3,
            "f": 0.5,
            "b": True,
            "s": "x",
            "n": None,
            "l": [1, 2],
            "z": frozen,
        }
    )
    assert found["d"].dtype == torch.float32
    assert found["i"].dtype == torch.int64
    assert found["f"].dtype == torch.float32
    assert found["b"] is True
    assert found["s"] == "x"
    assert found["n"] is None
    assert torch.equal(found["l"], torch.tensor([1, 2]))
    assert found["z"].tolist() == [0, 0]


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_float32_arrays_are_shared_with_their_tensors(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.float32)
    tensor = to_tensor(array)
    array += 1
    assert (tensor == 1).all()
    assert tensor.shape == shape


@pytest.mark.parametrize("flip", [np.s_[::-1], np.s_[:, ::-1], np.s_[::-1, ::-1]])
def test_arrays_with_negative_strides_become_tensors(flip: Any) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)[flip]
    assert to_tensor(array).tolist() == array.tolist()


def test_to_tensor_honours_its_options() -> None:
    found = to_tensor({"a": 1, "t": torch.ones(1)}, torch.float64)
    assert found["a"].dtype == torch.float64
    assert found["t"].dtype == torch.float64
    assert to_tensor({"a": 1}, transform_scalar=False) == {"a": 1}
    pair = to_tensor(Pair(np.int64(1), np.bool_(True)))
    assert isinstance(pair, Pair)
    assert pair.right is True


def test_leaves_are_compared_bit_by_bit_and_named_by_their_paths() -> None:
    first: dict[str, Any] = {"a": np.array([1.0, np.nan]), "b": [torch.zeros(2), "x"], "only": 1}
    second: dict[str, Any] = {"a": np.array([1.0, np.nan]), "b": [torch.zeros(2), "x"], "only": 1}
    assert different_leaves(dict(flatten(first)), dict(flatten(second))) == []

    second["a"] = np.array([1.0, np.nan], np.float32)
    second["b"][0] = -torch.zeros(2)
    second["b"][1] = "y"
    del second["only"]
    found = different_leaves(dict(flatten(first)), dict(flatten(second)))
    assert found == ["a", "b.0", "b.1", "only"]
