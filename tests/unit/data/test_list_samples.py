"""Train samples that are lists or contain lists: packed into columns and unpacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch
from dingsdk.data.list_samples import has_lists, pack_samples, unpack_samples
from dingsdk.errors import SchemaMismatchError


def _step(number: int) -> dict[str, Any]:
    return {"obs": {"pos": torch.full((2,), float(number))}, "done": number == 3}


def test_samples_that_are_lists_come_back_as_lists_of_tensors() -> None:
    batch = pack_samples([[_step(0), _step(1)], [_step(2), _step(3)]])
    assert has_lists(batch.columns)
    assert batch.columns["[]"]["obs"]["pos"].shape == (2, 2, 2)
    samples = unpack_samples(batch)
    found = [[(s["obs"]["pos"].tolist(), bool(s["done"])) for s in sample] for sample in samples]
    assert found == [
        [([0.0, 0.0], False), ([1.0, 1.0], False)],
        [([2.0, 2.0], False), ([3.0, 3.0], True)],
    ]


def test_lists_within_samples_come_back_beside_other_values() -> None:
    row = {"obs": [torch.zeros(2), torch.ones(2)], "reward": 2.0, "n": [1, 2, 3]}
    (sample,) = unpack_samples(pack_samples([row]))
    assert [each.tolist() for each in sample["obs"]] == [[0, 0], [1, 1]]
    assert (float(sample["reward"]), sample["n"].tolist()) == (2.0, [1, 2, 3])


def test_lists_of_lists_keep_their_order() -> None:
    sample = [[_step(0), _step(1)], [_step(2), _step(3)]]
    (found,) = unpack_samples(pack_samples([sample]))
    assert [[int(s["obs"]["pos"][0]) for s in inner] for inner in found] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("rows", [SampleBatch({"a": np.zeros(2)}), [{"a": [1, 2]}, {"a": [3, 4]}]])
def test_samples_without_lists_are_plain_columns(rows: Any) -> None:
    assert not has_lists(pack_samples(rows).columns)


def test_error_for_lists_of_different_lengths_names_the_column() -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        pack_samples([[_step(0), _step(1)], [_step(2)]])
    facts = caught.value.facts
    assert (facts["key"], facts["row"], facts["expected"]) == ("[].obs.pos", 1, [2, 2])
