"""States of envs and managers, saved in mid-episode and loaded into other instances."""

from __future__ import annotations

import contextlib
import enum
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dingsdk.data import decode_safetensors, encode_safetensors
from dingsdk.envs import create_env_manager, make_env_fns
from dingsdk.envs.saving import env_state, set_env_state
from dingsdk.errors import CheckpointCorruptError, NotSavableError

# The import registers the envs. Envs that a test registers are removed after the test.
with contextlib.suppress(ImportError):
    import ale_py  # noqa: F401


def through_a_file(state: Any) -> Any:
    return decode_safetensors("test", encode_safetensors("test", state))


def play(env: gym.Env[Any, Any], actions: list[Any]) -> list[Any]:
    """Step an env; return all results, including the resets at episode ends."""
    seen = []
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        seen.append((np.asarray(obs).tolist(), float(reward), terminated, truncated))
        if terminated or truncated:
            seen.append(np.asarray(env.reset()[0]).tolist())
    return seen


@pytest.mark.parametrize(
    "env_id",
    ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"],
)
def test_env_continues_in_another_instance(env_id: str, **kwargs: Any) -> None:
    goes_on(gym.make(env_id, **kwargs), gym.make(env_id, **kwargs))


def goes_on(env: gym.Env[Any, Any], other: gym.Env[Any, Any], steps: int = 300) -> None:
    """Check that the second env continues exactly as the first one."""
    env.reset(seed=3)
    other.reset(seed=9)
    env.action_space.seed(1)
    actions = [env.action_space.sample() for _ in range(steps)]
    play(env, actions[:57])
    state = through_a_file(env_state(env))
    expected = play(env, actions[57:])
    play(other, actions[:5])
    set_env_state(other, state)
    assert play(other, actions[57:]) == expected


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Ant-v5"])
def test_mujoco_env_continues_in_another_instance(
    env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log of warnings there
    pytest.importorskip("mujoco", reason="the extra mujoco is not installed")
    env, other = gym.make(env_id), gym.make(env_id)
    goes_on(env, other, steps=299)
    first, second = (each.unwrapped.data for each in (env, other))  # type: ignore[attr-defined]
    assert first.time == second.time


def test_atari_preprocessing_continues_in_another_instance() -> None:
    pytest.importorskip("cv2", reason="the extra atari is not installed")
    wrappers = [
        {"type": "AtariPreprocessing", "frame_skip": 4, "noop_max": 5},
        {"type": "FrameStackObservation", "stack_size": 4},
    ]
    cfg = {"env_id": "ale_py:ALE/Pong-v5", "kwargs": {"frameskip": 1}, "wrappers": wrappers}
    env, other = (fn() for fn in make_env_fns(cfg, 2))
    goes_on(env, other, steps=100)
    layers = env_state(env)["layers"]
    emulators = [each["type"] for each in layers if "ale" in each["attributes"]]
    assert emulators == ["AtariEnv"]


def test_sticky_actions_continue_and_are_not_changed_by_saving() -> None:
    pytest.importorskip("ale_py", reason="the extra atari is not installed")
    kwargs = {"frameskip": 1, "obs_type": "ram", "repeat_action_probability": 0.6}
    env, unsaved, other = (gym.make("ALE/Breakout-v5", **kwargs) for _ in range(3))
    for each in (env, unsaved):
        each.reset(seed=3)
    other.reset(seed=9)
    env.action_space.seed(1)
    actions = [env.action_space.sample() for _ in range(120)]
    expected = play(unsaved, actions)
    for index, action in enumerate(actions[:100]):
        if index % 20 == 0:
            set_env_state(other, through_a_file(env_state(env)))
            assert play(other, actions[index : index + 20]) == expected[index : index + 20]
        assert play(env, [action]) == [expected[index]]


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [({"continuous": True}, "continuous actions"), ({"sound_obs": True}, "sound_obs")],
)
def test_atari_env_with_continuous_actions_or_sound_cannot_be_saved(
    kwargs: dict[str, Any], why: str
) -> None:
    pytest.importorskip("ale_py", reason="the extra atari is not installed")
    with pytest.raises(NotSavableError, match=why):
        env_state(gym.make("ALE/Pong-v5", **kwargs))


def test_state_of_another_simulator_is_refused() -> None:
    ale_py = pytest.importorskip("ale_py", reason="the extra atari is not installed")
    pytest.importorskip("mujoco", reason="the extra mujoco is not installed")
    gym.register_envs(ale_py)
    pong, breakout = (gym.make(f"ALE/{name}-v5") for name in ("Pong", "Breakout"))
    with pytest.raises(CheckpointCorruptError, match="of another game"):
        set_env_state(breakout, env_state(pong))
    hopper, walker = gym.make("Hopper-v5"), gym.make("Hopper-v5", xml_file="walker2d_v5.xml")
    with pytest.raises(CheckpointCorruptError, match="another MuJoCo model"):
        set_env_state(walker, env_state(hopper))
    state = env_state(hopper)
    attributes = state["layers"][-1]["attributes"]
    attributes["frame_skip"] = attributes["data"]
    with pytest.raises(CheckpointCorruptError, match="the saved frame_skip of HopperEnv"):
        set_env_state(hopper, state)


PLUGIN = """
<mujoco>
  <extension><plugin plugin="mujoco.pid"><instance name="pid"/></plugin></extension>
  <worldbody><body><joint name="j"/><geom size="1"/></body></worldbody>
  <actuator><plugin joint="j" plugin="mujoco.pid" instance="pid" actdim="0"/></actuator>
</mujoco>
"""


def test_simulator_with_plugins_cannot_be_saved() -> None:
    mujoco = pytest.importorskip("mujoco", reason="the extra mujoco is not installed")
    env: Any = Rocket()
    env.engine = mujoco.MjData(mujoco.MjModel.from_xml_string(PLUGIN))
    with pytest.raises(NotSavableError, match="plugins"):
        env_state(env)


class Rocket(gym.Env[Any, Any]):
    """Keeps its state in an iterator, which cannot be saved."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.engine = iter([0.5])

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros(1, np.float32), {}


class Phase(enum.Enum):
    WAITING = 1
    FLYING = 2


class PhasedRocket(Rocket):
    """Its only attribute is an enum member."""

    def __init__(self) -> None:
        self.phase = Phase.WAITING


def test_enum_member_is_saved() -> None:
    env, other = PhasedRocket(), PhasedRocket()
    env.phase = Phase.FLYING
    set_env_state(other, through_a_file(env_state(env)))
    assert other.phase is Phase.FLYING
    state = env_state(env)
    state["layers"][0]["attributes"]["phase"] = {"@member": "LANDING"}
    with pytest.raises(CheckpointCorruptError, match="phase of PhasedRocket is no Phase"):
        set_env_state(other, state)


class SavableRocket(Rocket):
    height = 0.0

    def get_state(self) -> dict[str, Any]:
        return {"height": np.float32(self.height)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.height = state["height"]


def test_error_names_the_attribute_that_cannot_be_saved() -> None:
    with pytest.raises(NotSavableError, match=r"Rocket\.engine is a .*iterator"):
        env_state(gym.wrappers.TimeLimit(Rocket(), 5))


def test_env_with_get_state_but_no_set_state_is_refused() -> None:
    class HalfSavable(Rocket):
        def get_state(self) -> dict[str, Any]:
            return {}

    with pytest.raises(NotSavableError, match="HalfSavable has get_state but no set_state"):
        env_state(HalfSavable())


def test_get_state_and_set_state_of_a_wrapped_env_are_used() -> None:
    env, other = (gym.wrappers.TimeLimit(SavableRocket(), 5) for _ in range(2))
    env.reset()
    env.unwrapped.height = 0.25  # type: ignore[attr-defined]
    set_env_state(other, through_a_file(env_state(env)))
    assert other.unwrapped.height == np.float32(0.25)  # type: ignore[attr-defined]
    assert type(other.unwrapped.height) is np.float32  # type: ignore[attr-defined]


def test_state_of_another_env_is_refused() -> None:
    with pytest.raises(CheckpointCorruptError, match=r"PendulumEnv, this one is .*CartPoleEnv"):
        set_env_state(gym.make("CartPole-v1"), env_state(gym.make("Pendulum-v1")))


def test_manager_of_a_native_vector_env_continues_in_another_instance() -> None:
    def launched(seed: int) -> Any:
        manager = create_env_manager({"type": "vector"}, make_env_fns({"env_id": "CartPole-v1"}, 3))
        manager.seed(seed)
        manager.launch()
        return manager

    def steps(manager: Any, actions: Any) -> list[Any]:
        return [np.asarray(part).tolist() for each in actions for part in manager.step_batch(each)]

    actions = np.random.default_rng(0).integers(0, 2, (200, 3))
    with launched(1) as manager, launched(7) as other:
        steps(manager, actions[:101])
        state = through_a_file(manager.get_state())
        expected = steps(manager, actions[101:])
        steps(other, actions[:3])
        other.set_state(state)
        assert steps(other, actions[101:]) == expected
