"""Policy outputs that are refused, and random actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.errors import NonFiniteError, PolicyOutputError
from dingsdk.worker.collector.policy_output import check_columns, check_dicts


@pytest.mark.parametrize(
    ("output", "key", "expected", "found"),
    [
        ([1.0], "action", "action", "list"),
        ({"value": np.zeros(2)}, "action", "action", ["value"]),
        ({"action": np.zeros(3)}, "action", (2,), (3,)),
        ({"action": np.array(1)}, "action", (2,), ()),
        ({"action": np.zeros(2), "value": [0.0, 0.0]}, "value", (2,), "list"),
    ],
)
def test_error_names_an_unusable_column(output: Any, key: str, expected: Any, found: Any) -> None:
    with pytest.raises(PolicyOutputError) as caught:
        check_columns(output, 2)
    assert (caught.value.key, caught.value.expected, caught.value.found) == (key, expected, found)


def test_error_names_rows_that_are_not_finite() -> None:
    value = np.zeros((4, 2))
    value[1, 1], value[3] = np.nan, np.inf
    with pytest.raises(NonFiniteError) as caught:
        check_columns({"action": np.zeros(4, np.int64), "value": value}, 4)
    assert (caught.value.key, caught.value.rows) == ("value", [1, 3])
    check_columns({"action": np.zeros(4), "state": {"hidden": value}}, 4)
    with pytest.raises(NonFiniteError):
        check_columns({"action": np.zeros(4), "state": {"hidden": value}, "value": value}, 4)


@pytest.mark.parametrize(
    "bad", [float("nan"), np.float32(np.inf), np.array([0.0, np.nan]), torch.tensor([np.inf])]
)
def test_error_names_an_env_whose_value_is_not_finite(bad: Any) -> None:
    outputs = {0: {"action": 1, "value": 0.5}, 3: {"action": 1, "value": bad}}
    with pytest.raises(NonFiniteError) as caught:
        check_dicts(outputs, [0, 3])
    assert (caught.value.key, caught.value.rows) == ("value", [3])
    check_dicts(outputs, [0])


@pytest.mark.parametrize("outputs", [None, {0: {"action": 1}}, {0: {"action": 1}, 1: {"value": 1}}])
def test_error_names_an_env_without_an_action(outputs: Any) -> None:
    with pytest.raises(PolicyOutputError, match=r"for env \d") as caught:
        check_dicts(outputs, [0, 1])
    assert caught.value.key == "action"
