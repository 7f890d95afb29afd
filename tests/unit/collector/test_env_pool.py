"""A worker keeps its env managers from one task to the next while their config is the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from dingsdk.envs import EnvManager
from dingsdk.errors import EnvError
from dingsdk.runtime import deadline
from dingsdk.worker.collector.env_pool import EnvPool, Unfinished

ENV = {"env_id": "CartPole-v1", "collector_env_num": 2, "evaluator_env_num": 1}
MANAGER = {"type": "in_process"}


@pytest.fixture
def pool() -> Iterator[EnvPool]:
    with closing(EnvPool()) as made:
        yield made


def take(pool: EnvPool, kind: Any = "collector", seed: int | None = 1, **changes: Any) -> Any:
    cfg = {"manager_cfg": MANAGER, "env_cfg": ENV, **changes}
    return pool.take(kind, seed=seed, **cfg)


def observed(manager: EnvManager) -> list[list[float]]:
    return [np.asarray(each).tolist() for each in manager.ready_obs.values()]


def step(manager: EnvManager) -> None:
    manager.step({env_id: np.int64(1) for env_id in range(manager.env_num)})


def test_next_task_gets_the_same_envs_after_a_reset(pool: EnvPool) -> None:
    first, parts = take(pool)
    assert (first.env_num, parts) == (2, None)
    begun = observed(first)
    step(first)
    pool.give_back(first, is_usable=True)

    second, parts = take(pool)
    assert second is first
    assert parts is None
    assert observed(second) == begun  # the same seed
    step(second)
    pool.give_back(second, is_usable=True)
    third, _ = take(pool, seed=None)
    assert third is first
    assert all(abs(value) <= 0.05 for each in observed(third) for value in each)  # just reset
    assert observed(third) != begun
    pool.give_back(third, is_usable=False)


def test_envs_that_cannot_be_used_again_are_closed(pool: EnvPool) -> None:
    first, _ = take(pool)
    pool.give_back(first, is_usable=False)
    assert first.closed
    second, _ = take(pool)
    assert second is not first
    second.close()
    pool.give_back(second, is_usable=True)
    third, _ = take(pool)
    assert third is not second
    assert not third.closed
    pool.give_back(third, is_usable=True)


def test_envs_that_cannot_be_reset_are_closed_and_the_error_is_raised(pool: EnvPool) -> None:
    class Unwilling(CartPoleEnv):
        def reset(self, **kwargs: Any) -> Any:
            if is_failing:
                raise RuntimeError("no more episodes")
            return super().reset(**kwargs)

    gym.register("Tiny/Unwilling-v0", entry_point=Unwilling)
    is_failing = False
    changes = {"env_cfg": {**ENV, "env_id": "Tiny/Unwilling-v0"}}
    first, _ = take(pool, **changes)
    pool.give_back(first, is_usable=True)
    is_failing = True
    with pytest.raises(EnvError, match="no more episodes"):
        take(pool, **changes)
    assert first.closed
    is_failing = False
    second, _ = take(pool, **changes)
    assert second is not first
    pool.give_back(second, is_usable=True)


@pytest.mark.parametrize(
    "changes",
    [{"env_cfg": {**ENV, "env_id": "Acrobot-v1"}}, {"manager_cfg": {**MANAGER, "max_retry": 5}}],
)
def test_another_config_gets_new_envs(pool: EnvPool, changes: dict[str, Any]) -> None:
    first, _ = take(pool)
    pool.give_back(first, is_usable=True)
    second, _ = take(pool, **changes)
    assert second is not first
    assert first.closed
    pool.give_back(second, is_usable=True)


def test_one_manager_of_each_kind_is_kept(pool: EnvPool) -> None:
    first, second = take(pool)[0], take(pool)[0]
    evaluator, _ = take(pool, "evaluator")
    assert (second is first, evaluator.env_num) == (False, 1)
    for manager in (first, second, evaluator):
        pool.give_back(manager, is_usable=True)
    assert [each.closed for each in (first, second, evaluator)] == [False, True, False]
    pool.give_back(first, is_usable=True)  # given back a second time
    assert first.closed
    pool.close()
    assert evaluator.closed


@pytest.mark.parametrize("ends_by", ["unusable", "changed", "closed"])
def test_envs_that_do_not_close_are_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends_by: str
) -> None:
    monkeypatch.setattr(deadline, "CLOSE_S", 0.01)
    go_on, closed = threading.Event(), threading.Event()
    pool = EnvPool()
    manager, _ = take(pool)
    plain = manager.close

    def hang() -> None:
        go_on.wait(20.0)
        plain()
        closed.set()

    manager.close = hang
    pool.give_back(manager, is_usable=ends_by != "unusable")
    if ends_by == "changed":
        pool.give_back(take(pool, manager_cfg={**MANAGER, "max_retry": 2})[0], is_usable=True)
    pool.close()

    assert not closed.is_set()
    assert caplog.messages == ["close() of env_manager did not return in time; it is abandoned"]
    go_on.set()
    assert closed.wait(20.0)


@pytest.mark.parametrize("policy_cfg", ["same", "other", None])
def test_task_of_the_same_policy_continues_unfinished_episodes(
    pool: EnvPool, policy_cfg: Any
) -> None:
    closed: list[str] = []
    first, _ = take(pool)
    step(first)
    before = observed(first)
    left = Unfinished("same", "parts", lambda: closed.append("left"))
    pool.give_back(first, is_usable=True, left=left)
    assert closed == []

    second, parts = take(pool, policy_cfg=policy_cfg)
    assert second is first
    goes_on = policy_cfg == "same"
    assert (parts, closed) == (("parts", []) if goes_on else (None, ["left"]))
    assert (observed(second) == before) == goes_on
    pool.give_back(second, is_usable=True)


@pytest.mark.parametrize("ends_by", ["another config", "unusable", "pool"])
def test_unfinished_episodes_without_a_next_task_are_closed(pool: EnvPool, ends_by: str) -> None:
    closed: list[str] = []
    manager, _ = take(pool)
    left = Unfinished("same", "parts", lambda: closed.append("left"))
    pool.give_back(manager, is_usable=ends_by != "unusable", left=left)
    if ends_by == "another config":
        pool.give_back(
            take(pool, policy_cfg="same", env_cfg={**ENV, "env_id": "Acrobot-v1"})[0],
            is_usable=False,
        )
    elif ends_by == "pool":
        pool.close()
    assert (closed, manager.closed) == (["left"], True)
