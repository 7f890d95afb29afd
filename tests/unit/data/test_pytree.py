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
    map_leaves,
    nest,
    tensor_to_list,
    to_tensor,
)

Pair = namedtuple("Pair", ["left", "right"])


def test_map_leaves_keeps_the_containers() -> None:
    tree = {"a": [1, (2, 3)], "p": Pair(4, {"x": 5})}
    assert map_leaves(lambda n: n + 1, tree) == {"a": [2, (3, 4)], "p": Pair(5, {"x": 6})}


def test_flatten_gives_paths() -> None:
    tree = {"obs": {"pos": 1}, "act": [2, (3,)]}
    assert flatten(tree) == [(("obs", "pos"), 1), (("act", 0), 2), (("act", 1, 0), 3)]
    assert flatten(5) == [((), 5)]


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


def test_list_of_one_number_becomes_a_tensor_and_an_empty_list_stays() -> None:
    found = to_tensor({"one": [3], "none": []})
    assert torch.equal(found["one"], torch.tensor([3]))
    assert found["none"] == []


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
    found = to_tensor({"a": 1, "k": 2, "t": torch.ones(1)}, torch.float64, ignore_keys=["k"])
    assert found["a"].dtype == torch.float64
    assert found["t"].dtype == torch.float64
    assert found["k"] == 2
    assert to_tensor({"a": 1}, transform_scalar=False) == {"a": 1}
    pair = to_tensor(Pair(np.int64(1), np.bool_(True)))
    assert isinstance(pair, Pair)
    assert pair.right is True


@pytest.mark.parametrize("convert", [to_tensor, tensor_to_list])
def test_unknown_leaves_are_type_errors(convert: Any) -> None:
    with pytest.raises(TypeError, match=f"^{convert.__name__} cannot convert object: <object"):
        convert([object()])


def test_tensors_and_arrays_become_lists() -> None:
    assert tensor_to_list({"t": torch.ones(2), "a": np.eye(1), "n": 1, "s": None}) == {
        "t": [1.0, 1.0],
        "a": [[1.0]],
        "n": 1,
        "s": None,
    }


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


def test_array_differs_from_a_number_on_either_side() -> None:
    one, other = {("a",): 1}, {("a",): np.array([1, 2])}
    assert different_leaves(one, other) == different_leaves(other, one) == ["a"]
