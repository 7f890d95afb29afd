"""The factories of ``dingsdk.worker`` and ``dingsdk.policy``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dingsdk import worker
from dingsdk.errors import ConfigError
from dingsdk.policy import get_policy_cls


@pytest.mark.parametrize(
    ("get_class", "known"),
    [
        (worker.get_serial_collector_cls, "sample"),
        (worker.get_parallel_collector_cls, "zergling"),
        (worker.get_buffer_cls, "naive"),
        (worker.get_parallel_commander_cls, "solo"),
        (get_policy_cls, "dqn"),
    ],
)
def test_section_without_a_type_is_told_the_known_ones(
    get_class: Callable[[dict[str, Any]], Any], known: str
) -> None:
    with pytest.raises(ConfigError, match="names no type") as caught:
        get_class({})

    assert known in caught.value.known
    assert get_class({"type": known}) is not None


def test_commander_section_without_a_type_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        worker.create_parallel_commander({"policy": {"other": {"commander": {}}}})

    assert caught.value.path == "policy.other.commander.type"
