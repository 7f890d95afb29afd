"""The managers give the same transitions, in both forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dingsdk.envs import (
    EnvManager,
    InProcessEnvManager,
    StepColumns,
    SubprocessEnvManager,
    create_env_manager,
    make_env_fns,
)
from dingsdk.envs.vector import NativeEnvManager

IN_PROCESS = {"type": "in_process"}
NATIVE = {"type": "vector", "vectorization_mode": "native"}


def launch(cfg: dict[str, Any], env_cfg: dict[str, Any], n: int, seed: int = 0) -> EnvManager:
    manager = create_env_manager(cfg, make_env_fns(env_cfg, n))
    manager.seed(seed)
    manager.launch()
    return manager


@pytest.mark.parametrize("name", ["Native", "NativeSameStep", "NativeDisabled"])
def test_native_env_that_reuses_its_arrays_gives_correct_episodes(name: str) -> None:
    with launch(NATIVE, {"env_id": f"Tiny/{name}-v0"}, 3) as manager:
        kept: list[StepColumns] = [manager.step_batch(np.zeros(3, int)) for _ in range(12)]
    for env_id in range(3):
        valid = [s for s in kept if s.valid is None or s.valid[env_id]]
        length = env_id + 2
        steps = [int(s.final_obs[env_id, 1]) for s in valid]
        assert steps == [i % length + 1 for i in range(len(valid))]
        assert [bool(s.terminated[env_id]) for s in valid] == [step == length for step in steps]
        assert [float(s.reward[env_id]) for s in valid] == steps
        if name != "Native":
            assert len(valid) == 12
            ended = [s for s in valid if s.terminated[env_id]]
            assert all(s.obs[env_id, 1] == 0 for s in ended)
            assert all(s.obs[env_id, 0] != s.final_obs[env_id, 0] for s in ended)


def test_dict_observations_become_nested_columns() -> None:
    env_cfg = {"env_id": "Tiny/Counter-v0", "kwargs": {"observes": "dict"}}
    with launch(IN_PROCESS, env_cfg, 2) as manager:
        steps = [manager.step_batch(np.zeros(2, int)) for _ in range(3)]
        assert steps[0].obs["box"].shape == (2, 2)
        assert [s.final_obs["inner"]["step"].tolist() for s in steps] == [[1, 1], [2, 2], [3, 3]]
        if not manager.capabilities.reset_takes_step:
            assert steps[2].obs["inner"]["step"].tolist() == [0, 0]
        manager.reset()
        assert manager.ready_obs[1]["inner"]["step"] == 0


def test_observation_without_columns_works_in_dict_form_only() -> None:
    from dingsdk.errors import ConfigError

    env_cfg = {"env_id": "Tiny/Counter-v0", "kwargs": {"observes": "tuple"}}
    with launch(IN_PROCESS, env_cfg, 1) as manager:
        assert manager.step({0: 0})[0].obs[1][1] == 1
        with pytest.raises(ConfigError, match="no columns"):
            manager.step_batch(np.zeros(1, int))
        with pytest.raises(ConfigError, match="no columns"):
            manager.current_obs()


@pytest.mark.parametrize(
    ("env_id", "cfg", "manager"),
    [
        ("CartPole-v1", {}, NativeEnvManager),
        ("CartPole-v1", {"vectorization_mode": "sync", "max_retry": 5}, InProcessEnvManager),
        ("CartPole-v1", {"vectorization_mode": "async", "max_retry": 5}, SubprocessEnvManager),
        ("MountainCar-v0", {}, InProcessEnvManager),
    ],
)
def test_type_vector_makes_the_manager_that_its_mode_names(
    env_id: str, cfg: dict[str, Any], manager: type[EnvManager]
) -> None:
    made = create_env_manager({"type": "vector", **cfg}, make_env_fns({"env_id": env_id}, 2))
    assert type(made) is manager
    assert made.section.max_retry == cfg.get("max_retry", 2)
    if manager is SubprocessEnvManager:
        assert made.section.envs_per_process == 1
