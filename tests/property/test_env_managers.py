"""A synchronous vector env and a plain loop are the same envs."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dingsdk.envs import create_env_manager, make_env_fns

ENV = {"env_id": "CartPole-v1", "kwargs": {"max_episode_steps": 12}}


@settings(max_examples=25, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3),
    actions=st.lists(st.integers(0, 1), min_size=1, max_size=40),
    autoreset=st.sampled_from(["same_step", "disabled"]),
    is_dynamic=st.booleans(),
    reset_at=st.integers(0, 40),
)
def test_same_seeds_and_actions_give_the_same_columns(
    seeds: list[int], actions: list[int], autoreset: str, is_dynamic: bool, reset_at: int
) -> None:
    count = len(seeds)
    sync = {"type": "vector", "vectorization_mode": "sync", "autoreset_mode": autoreset}
    managers = [
        create_env_manager(cfg, make_env_fns(ENV, count)) for cfg in ({"type": "in_process"}, sync)
    ]
    for manager in managers:
        manager.seed(seeds, dynamic_seed=is_dynamic)
        manager.launch()
    plain, vector = managers
    try:
        np.testing.assert_array_equal(plain.current_obs(), vector.current_obs())
        for index, action in enumerate(actions):
            if index == reset_at:
                plain.reset({0: None})
                vector.reset({0: None})
            batch = (np.arange(count) + action) % 2
            for name, a, b in _columns(plain.step_batch(batch), vector.step_batch(batch)):
                np.testing.assert_array_equal(a, b, err_msg=f"{name} at step {index}")
    finally:
        plain.close()
        vector.close()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 10),
    rounds=st.lists(st.sets(st.integers(0, 2)), max_size=40),
)
def test_envs_stepped_in_any_interleaving_give_their_own_trajectories(
    seed: int, rounds: list[set[int]]
) -> None:
    mixed = create_env_manager({"type": "in_process"}, make_env_fns(ENV, 3))
    mixed.seed(seed)
    mixed.launch()
    seen: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    for named in rounds:
        for env_id, timestep in mixed.step(dict.fromkeys(named, 1)).items():
            seen[env_id].append((timestep.obs.tolist(), timestep.done))
    mixed.close()
    for env_id, steps in seen.items():
        alone = create_env_manager({"type": "base"}, make_env_fns(ENV, 1))
        alone.seed(seed + env_id)
        alone.launch()
        expected = [alone.step({0: 1})[0] for _ in steps]
        assert steps == [(timestep.obs.tolist(), timestep.done) for timestep in expected]
        alone.close()


def _columns(a: Any, b: Any) -> list[tuple[str, Any, Any]]:
    names = ("obs", "final_obs", "reward", "terminated", "truncated")
    return [(name, getattr(a, name), getattr(b, name)) for name in names]
