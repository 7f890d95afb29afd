"""A remover of a plugin together with built-in parts."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from dingsdk.errors import ConfigError
from dingsdk.worker.replay_buffer import AdvancedReplayBuffer, NaiveReplayBuffer

from .random_remover import RandomRemover

pytestmark = pytest.mark.usefixtures("random_removers")

CAPACITY = 8


class RandomlyRemoving(NaiveReplayBuffer):
    """Sets the remover in the default config of the class."""

    config: ClassVar[dict[str, Any]] = {
        "replay_buffer_size": CAPACITY,
        "remover": {"type": "random"},
    }


def push(buffer: NaiveReplayBuffer | AdvancedReplayBuffer, numbers: range) -> None:
    for number in numbers:
        buffer.push({"number": number}, 0)


def numbers(buffer: NaiveReplayBuffer | AdvancedReplayBuffer) -> list[int]:
    data = buffer.state_dict()["data"]
    return [int(number) for number in data["number"]]


def test_a_part_in_the_class_config_has_its_own_defaults() -> None:
    buffer = RandomlyRemoving({})
    assert isinstance(buffer._contents.remover, RandomRemover)
    assert buffer._contents.remover.spread == 3
    with pytest.raises(ConfigError) as caught:
        RandomlyRemoving({"remover": {"spread": 0}})
    assert caught.value.path == "remover.spread"


def test_next_of_needs_rows_to_leave_oldest_first() -> None:
    storage = {"storage": {"type": "array", "next_of": "obs"}}
    with pytest.raises(ConfigError, match="needs rows to leave oldest first") as caught:
        RandomlyRemoving(storage).push({"obs": 1.0, "next_obs": 2.0}, 0)
    assert str(caught.value.path).endswith("remover.type")
    RandomlyRemoving({**storage, "remover": {"type": "fifo"}}).push(
        {"obs": 1.0, "next_obs": 2.0}, 0
    )


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
def test_the_state_of_a_part_is_separate_from_that_of_the_buffer(kind: type[Any]) -> None:
    cfg = {"replay_buffer_size": CAPACITY, "remover": {"type": "random"}, "seed": 0}
    old, new = kind(cfg), kind({**cfg, "seed": 9})
    push(old, range(20))
    state = old.state_dict()
    assert (state["remover"]["version"], state["capacity"]) == ("mine", CAPACITY)
    new.load_state_dict(state)
    assert numbers(new) == numbers(old)
    for buffer in (old, new):
        push(buffer, range(20, 40))
    assert numbers(new) == numbers(old)
    assert old.sample(4, 0) == new.sample(4, 0)
