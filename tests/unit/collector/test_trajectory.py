from __future__ import annotations

import numpy as np
import torch

from dingsdk.worker.collector.rows import CachePool, TrajBuffer, to_tensor_transitions


def test_buffer_keeps_the_newest_entries() -> None:
    assert TrajBuffer(2, [0, 1, 2, 3, 4]) == [3, 4]
    buffer = TrajBuffer(2, [0, 1, 2])
    assert buffer == [1, 2]
    buffer.append(3)
    assert buffer == [2, 3]
    unbounded = TrajBuffer(float("inf"))
    unbounded.append(1)
    unbounded.append(2)
    assert unbounded == [1, 2]


def test_buffer_copies_when_asked() -> None:
    item = {"obs": [1]}
    buffer = TrajBuffer(None, deepcopy=True)
    buffer.append(item)
    item["obs"].append(2)
    assert buffer == [{"obs": [1]}]


def test_pool_returns_the_value_stored_last() -> None:
    pool = CachePool("obs", 2)
    pool.update({0: "a"})
    assert (pool[0], pool[1]) == ("a", None)
    pool.reset(0)
    assert pool[0] is None


def test_pool_stores_copies_when_asked() -> None:
    obs = [1]
    shared, copied = CachePool("obs", 1), CachePool("obs", 1, deepcopy=True)
    for pool in (shared, copied):
        pool.update({0: obs})
    obs.append(2)
    assert (shared[0], copied[0]) == ([1, 2], [1])


def test_pool_of_players_returns_a_list_also_for_one_player() -> None:
    pool = CachePool("obs", 1)
    pool.update([{0: "a"}])
    assert pool[0] == ["a"]
    pool.update([{0: "a"}, {0: "b"}])
    assert pool[0] == ["a", "b"]


def test_consecutive_transitions_share_an_observation() -> None:
    obs = [np.full(2, i, np.float32) for i in range(4)]
    data = [
        {"obs": obs[i], "next_obs": obs[i + 1], "done": i == 2, "reward": 0.5 * i} for i in range(3)
    ]

    shared = to_tensor_transitions(data)
    apart = to_tensor_transitions(data, shallow_copy_next_obs=False)

    assert shared[0]["next_obs"] is shared[1]["obs"]
    assert apart[0]["next_obs"] is not apart[1]["obs"]
    assert torch.equal(shared[2]["next_obs"], torch.full((2,), 3.0))
    assert shared[2]["done"] is apart[2]["done"] is True
    assert [type(each["reward"]) for each in (*shared, *apart)] == [float] * 6
    assert isinstance(data[0]["next_obs"], np.ndarray)
