"""Random calls to env managers, compared with separate plain envs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from dingsdk.data.seeding import derive_seed
from dingsdk.envs import BaseVectorEnvManager, EnvManager, create_env_manager
from dingsdk.errors import EnvError

FAIL = 2


class DrawnEnv(gym.Env[Any, Any]):
    """Observes [number, step]; the number, drawn at reset, sets when and how the episode ends."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.drawn = float(np.float32(self.np_random.random()))
        self.time = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == FAIL:
            raise RuntimeError("asked to fail")
        self.time += 1
        is_over = self.time == 1 + int(self.drawn * 6)
        terminated = is_over and self.drawn * 1000 % 2 < 1
        return self._obs(), self.time + 0.5 * action, terminated, is_over and not terminated, {}

    def _obs(self) -> Any:
        return np.array([self.drawn, self.time], np.float32)


class PlainEnv:
    """The expected behaviour of one env of a manager.

    Args:
        episode_num: Number of episodes after which the env stops.
        reset_takes_step: Whether the reset after an episode takes one step.
    """

    def __init__(self, episode_num: float, reset_takes_step: bool) -> None:
        self._episode_num = episode_num
        self._reset_takes_step = reset_takes_step
        self.seed: int | None = None
        self.is_static = False
        self.launch()

    def launch(self) -> None:
        self.episodes = self.failures = self.failures_in_row = 0
        self.reset(self.seed)

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode; a seed starts a new random stream."""
        if seed is not None:
            self._env, self.rebuilds = DrawnEnv(), 0
        self._begin(self.seed if self.is_static else seed)
        self.is_resetting = self.is_parked = False

    def _begin(self, seed: int | None) -> None:
        self.obs = self._env.reset(seed=seed)[0] if hasattr(self, "_env") else None
        self.episode_return = 0.0

    def step(self, action: int) -> dict[str, Any]:
        """Return the outcome: ``kind`` and the parts of the step."""
        if self.is_parked:
            return {"kind": "parked"}
        if self.is_resetting:
            self.is_resetting = False
            self._begin(self.seed if self.is_static else None)
            return {"kind": "reset", "obs": self.obs}
        if action == FAIL:
            return self._fail()
        final_obs, reward, terminated, truncated, _ = self._env.step(action)
        self.obs = final_obs
        self.episode_return += reward
        made = {"kind": "transition", "final_obs": final_obs, "reward": reward}
        made |= {"terminated": terminated, "truncated": truncated}
        if terminated or truncated:
            self.failures_in_row = 0
            made["return"] = self.episode_return
            self.episodes += 1
            if self.episodes >= self._episode_num:
                self.is_parked = True
            elif self._reset_takes_step:
                self.is_resetting = True
            else:
                self._begin(self.seed if self.is_static else None)
        return {**made, "obs": self.obs}

    def _fail(self) -> dict[str, Any]:
        self.failures += 1
        self.failures_in_row += 1
        if self.failures_in_row > 2:
            return {"kind": "fatal"}
        self.rebuilds += 1
        self._env = DrawnEnv()
        assert self.seed is not None
        rebuilt = derive_seed(self.seed, "rebuild", self.rebuilds)
        self._begin(self.seed if self.is_static else rebuilt)
        return {"kind": "abnormal", "obs": self.obs}


class Vectorized(BaseVectorEnvManager):
    """The envs as one of gymnasium's vector envs."""

    class Config(BaseVectorEnvManager.Config, frozen=True, kw_only=True):
        mode: str

    def make_vector_env(self) -> Any:
        return SyncVectorEnv(self._env_fns, autoreset_mode=AutoresetMode[self.section.mode])


def make_manager(kind: str, episode_num: float) -> EnvManager:
    if kind == "in_process":
        return create_env_manager({"type": kind, "episode_num": episode_num}, [DrawnEnv] * 3)
    return Vectorized({"mode": kind, "episode_num": episode_num}, [DrawnEnv] * 3)


def as_vector_env(call: str, argument: Any) -> tuple[str, Any]:
    """Return a call that a vector env supports: no failures, and all envs at once."""
    if call == "steps":
        return call, [[min(action, 1) for action in actions] for actions in argument]
    if call.startswith("seed"):
        return "seed", (argument[0] if call == "seed" else len(argument), False)
    return call, None


ACTIONS = st.lists(st.sampled_from([0, 1, 0, 1, 0, 1, FAIL]), min_size=3, max_size=3)
CALL = st.one_of(
    st.tuples(st.just("steps"), st.lists(ACTIONS, min_size=1, max_size=12)),
    st.tuples(st.just("steps"), st.lists(ACTIONS, min_size=1, max_size=12)),
    st.tuples(st.just("reset"), st.sets(st.integers(0, 2)) | st.none()),
    st.tuples(st.just("seed"), st.tuples(st.integers(0, 99), st.booleans())),
    st.tuples(st.just("seed some"), st.dictionaries(st.integers(0, 2), st.integers(0, 99))),
    st.tuples(st.just("relaunch"), st.none()),
)


@pytest.mark.parametrize("kind", ["in_process", "SAME_STEP", "NEXT_STEP", "DISABLED"])
@settings(max_examples=40, deadline=None)
@given(
    is_dict=st.booleans(),
    episode_num=st.sampled_from([np.inf, 3]),
    calls=st.lists(CALL, min_size=1, max_size=10),
)
def test_manager_behaves_like_plain_envs(
    kind: str, is_dict: bool, episode_num: float, calls: list[Any]
) -> None:
    plain = [PlainEnv(episode_num, kind == "NEXT_STEP") for _ in range(3)]
    with make_manager(kind, episode_num) as manager:
        _seed(manager, plain, (10, False))
        manager.launch()
        for env in plain:
            env.launch()
        for call, argument in calls:
            if kind != "in_process":
                call, argument = as_vector_env(call, argument)
            if kind != "in_process" and any(env.is_parked for env in plain):
                # A vector env keeps stepping a DONE env, so its random stream differs from here.
                call = "relaunch"
            if call == "steps":
                for actions in argument:
                    if all(env.is_parked for env in plain):
                        break
                    if not (_dict_step if is_dict else _batch_step)(manager, plain, actions):
                        return
            elif call == "reset":
                manager.reset(None if argument is None else dict.fromkeys(argument))
                for env_id in range(3) if argument is None else argument:
                    plain[env_id].reset()
            elif call == "relaunch":
                manager.close()
                manager.launch()
                for env in plain:
                    env.launch()
            else:
                _seed(manager, plain, argument)
                manager.reset()
                named = range(3) if call == "seed" else argument
                for env_id, env in enumerate(plain):
                    env.reset(env.seed if env_id in named else None)
            assert manager.failure_count == sum(env.failures for env in plain)
            assert manager.done == all(env.is_parked for env in plain)


def _seed(manager: EnvManager, plain: list[PlainEnv], seeds: Any) -> None:
    if isinstance(seeds, tuple):
        seed, is_static = seeds
        manager.seed(seed, dynamic_seed=not is_static)
        for env_id, env in enumerate(plain):
            env.seed, env.is_static = seed + env_id, is_static
        return
    manager.seed(seeds)
    for env_id, seed in seeds.items():
        plain[env_id].seed = seed


def _batch_step(manager: EnvManager, plain: list[PlainEnv], actions: list[int]) -> bool:
    """Step both and compare; return False if the run ended because an env failed too often."""
    actions = [
        0 if env.is_parked or env.is_resetting else action
        for env, action in zip(plain, actions, strict=True)
    ]
    expected = [env.step(action) for env, action in zip(plain, actions, strict=True)]
    if any(each["kind"] == "fatal" for each in expected):
        with pytest.raises(EnvError, match="failed 3 times"):
            manager.step_batch(np.array(actions))
        return False
    step = manager.step_batch(np.array(actions))
    assert step.episode_info == {}
    assert (step.reward.dtype, step.terminated.dtype) == (np.float32, np.bool_)
    valid = np.ones(3, np.bool_) if step.valid is None else step.valid
    abnormal = np.zeros(3, np.bool_) if step.abnormal is None else step.abnormal
    assert valid.tolist() == [each["kind"] == "transition" for each in expected]
    assert abnormal.tolist() == [each["kind"] == "abnormal" for each in expected]
    for row, each in enumerate(expected):
        is_transition = each["kind"] == "transition"
        assert step.reward[row] == each.get("reward", 0.0)
        assert bool(step.terminated[row]) is each.get("terminated", False)
        assert bool(step.truncated[row]) is each.get("truncated", False)
        if is_transition:
            np.testing.assert_array_equal(step.final_obs[row], each["final_obs"])
        if not plain[row].is_parked:
            np.testing.assert_array_equal(step.obs[row], each["obs"])
            np.testing.assert_array_equal(manager.current_obs()[row], each["obs"])
    return True


def _dict_step(manager: EnvManager, plain: list[PlainEnv], actions: list[int]) -> bool:
    ready = [i for i, env in enumerate(plain) if not env.is_parked and not env.is_resetting]
    _check_ready(manager, plain, ready)
    expected = {env_id: plain[env_id].step(actions[env_id]) for env_id in ready}
    for env_id, env in enumerate(plain):
        if env_id not in ready:
            env.step(0)
    named = {env_id: actions[env_id] for env_id in ready}
    if any(each["kind"] == "fatal" for each in expected.values()):
        with pytest.raises(EnvError, match="failed 3 times"):
            manager.step(named)
        return False
    timesteps = manager.step(named)
    assert list(timesteps) == ready
    for env_id, timestep in timesteps.items():
        _check_timestep(timestep, expected[env_id])
    if all(env.is_parked or env.is_resetting for env in plain):
        for env in plain:  # the manager spends the round on resets
            env.step(0)
    _check_ready(
        manager,
        plain,
        [i for i, env in enumerate(plain) if not env.is_parked and not env.is_resetting],
    )
    return True


def _check_ready(manager: EnvManager, plain: list[PlainEnv], ready: list[int]) -> None:
    assert list(manager.ready_obs) == ready
    for env_id, obs in manager.ready_obs.items():
        np.testing.assert_array_equal(obs, plain[env_id].obs)


def _check_timestep(timestep: Any, expected: Mapping[str, Any]) -> None:
    is_done = expected.get("terminated", False) or expected.get("truncated", False)
    assert (timestep.reward, timestep.done) == (expected.get("reward", 0.0), is_done)
    assert timestep.info["terminated"] is expected.get("terminated", False)
    assert timestep.info["truncated"] is expected.get("truncated", False)
    assert timestep.info.get("eval_episode_return") == expected.get("return")
    assert timestep.info.get("abnormal", False) is (expected["kind"] == "abnormal")
    obs = expected["obs"] if expected["kind"] == "abnormal" else expected["final_obs"]
    np.testing.assert_array_equal(timestep.obs, obs)
