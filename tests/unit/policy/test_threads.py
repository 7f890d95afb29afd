"""Policies compute in one thread, unless a ``torch_threads`` block sets another number."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.policy import CollectMode, DQNPolicy, torch_threads
from dingsdk.policy.threads import policy_threads

MODEL = {"obs_shape": 4, "action_shape": 2}
BATCH = {
    "obs": np.zeros((3, 4), np.float32),
    "action": np.zeros(3, np.int64),
    "reward": np.zeros(3, np.float32),
    "next_obs": np.zeros((3, 4), np.float32),
    "discount": np.zeros(3, np.float32),
}


class Counting(DQNPolicy):
    """Records how many threads torch uses when the policy computes."""

    found: list[int]

    def build(self) -> None:
        super().build()
        self.found = []

    def act(self, *args: Any, **kwargs: Any) -> Any:
        self.found.append(torch.get_num_threads())
        return super().act(*args, **kwargs)

    def learn(self, batch: dict[str, Any]) -> Any:
        self.found.append(torch.get_num_threads())
        if "obs" not in batch:
            raise KeyError("obs")
        return super().learn(batch)


@pytest.fixture(autouse=True)
def _many_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def policy() -> Counting:
    return Counting({"model": MODEL}, seed=0)


def use(policy: Counting) -> None:
    """Act in the batched and the dict form, and learn."""
    mode: CollectMode = policy.collect_mode
    assert mode.forward_batch is not None
    mode.forward_batch(BATCH["obs"])
    policy.eval_mode.forward({0: BATCH["obs"][0]})
    policy.learn_mode.forward([{name: column[0] for name, column in BATCH.items()}])


def test_policy_acts_and_learns_in_one_thread(policy: Counting) -> None:
    use(policy)
    assert policy.found == [1, 1, 1]
    assert (torch.get_num_threads(), policy_threads()) == (5, 1)


def test_number_of_threads_is_restored_after_an_error(policy: Counting) -> None:
    with pytest.raises(ValueError, match="obs"):
        policy.learn_mode.forward([{"action": 0}])
    assert policy.found == [1]
    assert torch.get_num_threads() == 5


def test_torch_threads_block_sets_the_number_until_it_ends(policy: Counting) -> None:
    with torch_threads(3):
        with torch_threads(2):
            use(policy)
            assert policy_threads() == 2
        assert torch.get_num_threads() == 3
        use(policy)
    assert policy.found == [2, 2, 2, 3, 3, 3]
    assert torch.get_num_threads() == 5
    use(policy)
    assert policy.found[6:] == [1, 1, 1]


def test_policies_in_two_threads_do_not_affect_each_other(policy: Counting) -> None:
    inside, done = threading.Event(), threading.Event()

    class Slow(Counting):
        def act(self, *args: Any, **kwargs: Any) -> Any:
            inside.set()
            done.wait(10)
            return super().act(*args, **kwargs)

    slow = Slow({"model": MODEL}, seed=0)
    found: list[int] = []

    def run() -> None:
        slow.eval_mode.forward({0: BATCH["obs"][0]})
        found.append(torch.get_num_threads())

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(10)
    use(policy)
    assert torch.get_num_threads() == 5
    done.set()
    thread.join(10)
    assert (slow.found, found, torch.get_num_threads()) == ([1], [5], 5)
