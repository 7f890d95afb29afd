"""Life cycle, seeds, resets, episode counts and errors of the env managers."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from dingsdk.data.seeding import derive_seed
from dingsdk.envs import (
    Capabilities,
    EnvManager,
    InProcessEnvManager,
    VectorEnvManager,
    create_env_manager,
    make_env_fns,
    seed_envs,
)
from dingsdk.envs.guard import GuardedEnv
from dingsdk.envs.spaces import ActionChecker, ObservationSchema
from dingsdk.errors import (
    ClosedError,
    ConfigError,
    ConfigTypeError,
    NonFiniteError,
    PolicyOutputError,
    UnknownKeyError,
)

IN_PROCESS = {"type": "in_process"}
NATIVE = {"type": "vector", "vectorization_mode": "native"}
ALL = [IN_PROCESS, NATIVE]


def make(cfg: dict[str, Any], n: int = 2, env_id: str = "CartPole-v1", **kw: Any) -> EnvManager:
    return create_env_manager(cfg, make_env_fns({"env_id": env_id, "kwargs": kw}, n))


def starts(manager: EnvManager) -> list[list[float]]:
    rows: list[list[float]] = manager.current_obs().tolist()
    return rows


def test_same_seed_gives_the_same_start_after_each_launch() -> None:
    found = []
    for seed in (3, 3, 4):
        with make(NATIVE) as manager:
            manager.seed(seed)
            manager.launch()
            found.append(starts(manager))
            if seed == 4:
                manager.close()
                manager.launch()
                assert starts(manager) == found[-1]
    assert found[0] == found[1] != found[2]


def test_wrong_number_of_seeds_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 envs need 2 seeds"):
        make(IN_PROCESS).seed([1, 2, 3])
    with pytest.raises(ConfigError, match="take one seed together") as caught:
        make(NATIVE).seed([1, 2])
    assert caught.value.path == "env_manager.vectorization_mode"


def test_static_seed_starts_every_episode_in_the_same_state() -> None:
    with make(NATIVE) as manager:
        manager.seed(5, dynamic_seed=False)
        manager.launch()
        first = starts(manager)
        manager.reset()
        assert starts(manager) == first


def test_native_mode_refuses_unsupported_operations() -> None:
    with make(NATIVE) as manager:
        manager.launch()
        assert manager.capabilities.per_env_seed is False
        manager.step_batch(np.zeros(2, int))
        with pytest.raises(ConfigError, match="sync") as refused:
            manager.reset({0: None})
        assert refused.value.path == "env_manager.vectorization_mode"
        manager.reset()
        start = starts(manager)
        manager.reset({0: None})  # allowed: its episode has no step yet
        assert starts(manager) == start
        manager.step_batch(np.zeros(2, int), np.arange(2))
        with pytest.raises(PolicyOutputError, match="in_process") as caught:
            manager.step_batch(np.zeros(1, int), np.array([1]))
        assert (caught.value.facts["expected"], caught.value.facts["found"]) == ([0, 1], [1])
    with pytest.raises(ConfigError, match="no vector env of its own"):
        make(NATIVE, env_id="MountainCar-v0")
    with pytest.raises(ConfigError, match="resets in mode next_step"):
        make({**NATIVE, "autoreset_mode": "same_step"})


def test_finished_env_does_not_block_the_others() -> None:
    cfg = {**IN_PROCESS, "episode_num": 1}
    with make(cfg, env_id="Tiny/Counter-v0") as manager:
        manager.launch()
        for _ in range(3):
            manager.step({0: 0})
        columns = manager.step_batch(np.zeros(2, int))
        assert columns.valid.tolist() == [False, True]  # type: ignore[union-attr]
        assert columns.obs[:, 1].tolist() == [3, 1]


def test_closed_manager_refuses_env_methods() -> None:
    manager = make(IN_PROCESS)
    with pytest.raises(ClosedError):
        manager.enable_save_replay("replays")


@pytest.mark.parametrize("cfg", ALL)
@pytest.mark.parametrize(
    "actions",
    [
        np.zeros(3, int),
        np.zeros((2, 1), int),
        np.zeros(2, np.float32),
        np.array([0, 2]),
        np.array([-1, 0]),
        None,
    ],
    ids=["too many", "2-d", "float", "above", "below", "none"],
)
def test_bad_actions_leave_the_envs_untouched(cfg: dict[str, Any], actions: Any) -> None:
    with make(cfg) as manager:
        manager.seed(0)
        manager.launch()
        before = starts(manager)
        with pytest.raises(PolicyOutputError) as caught:
            manager.step_batch(actions)
        assert caught.value.expected == "int64[2] in Discrete(2)"
        assert starts(manager) == before
        assert manager.failure_count == 0
        with make(cfg) as other:
            other.seed(0)
            other.launch()
            expected = other.step_batch(np.array([0, 1])).obs
        np.testing.assert_array_equal(manager.step_batch(np.array([0, 1])).obs, expected)


def test_continuous_actions_are_cast_and_checked() -> None:
    with make(IN_PROCESS, env_id="Pendulum-v1") as manager:
        manager.launch()
        manager.step_batch(np.full((2, 1), 2.0))
        manager.step({0: np.array([-2.0]), 1: np.array([0])})
        with pytest.raises(NonFiniteError, match="NaN"):
            manager.step_batch(np.array([[0.0], [np.nan]]))
        with pytest.raises(PolicyOutputError, match=r"with \[2\.5\]"):
            manager.step_batch(np.array([[0.0], [2.5]]))


def test_random_actions_are_for_ready_envs() -> None:
    with make({**IN_PROCESS, "episode_num": 1}, env_id="Tiny/Counter-v0") as manager:
        assert isinstance(manager, InProcessEnvManager)
        manager.launch()
        for _ in range(3):
            manager.step({0: 0})
        actions = manager.random_action()
        assert list(actions) == [1]
        assert manager.action_space.contains(actions[1])


class Silent(InProcessEnvManager):
    """Does not set the number of players of its envs."""

    def _open(self) -> None:
        self._envs = [GuardedEnv(self._env_fns[0], 0, self.section)]
        space, actions = self._envs[0].observation_space, self._envs[0].action_space
        self._spaces = ObservationSchema(space), ActionChecker(actions)


def test_number_of_players_is_one_by_default() -> None:
    env_fns = make_env_fns({"env_id": "Tiny/Counter-v0"}, 1)
    with Silent({}, env_fns) as manager:
        manager.launch()
        timesteps = [manager.step({0: 0})[0] for _ in range(3)]
    assert [each.reward for each in timesteps] == [1.0, 2.0, 3.0]
    assert timesteps[2].info["eval_episode_return"] == 6.0


def test_images_of_envs_without_a_render_mode_are_refused() -> None:
    with make(IN_PROCESS, env_id="Tiny/Counter-v0") as manager:
        assert isinstance(manager, InProcessEnvManager)
        manager.launch()
        with pytest.raises(ConfigError, match="rgb_array") as caught:
            _ = manager.ready_imgs

    assert caught.value.path == "env.kwargs.render_mode"


def test_rendered_images_are_for_ready_envs() -> None:
    with make(IN_PROCESS, env_id="Tiny/Counter-v0", render_mode="rgb_array") as manager:
        assert isinstance(manager, InProcessEnvManager)
        manager.launch()
        manager.step({1: 0})
        images = manager.ready_imgs
        assert {env_id: image.shape for env_id, image in images.items()} == {
            0: (4, 6, 3),
            1: (4, 6, 3),
        }
        assert images[1].max() == 1


@pytest.mark.parametrize(
    "cfg",
    [
        {"type": "in_process", "episode_num": 0},
        {"type": "in_process", "max_retry": -1},
        {"type": "in_process", "retry_type": "again"},
        {"type": "vector", "vectorization_mode": "fast"},
        {"type": "vector", "autoreset_mode": "never"},
        {"type": "vector", "step_timeout": "soon"},
    ],
    ids=lambda cfg: list(cfg)[1],
)
def test_bad_config_value_is_named_by_its_path(cfg: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        make(cfg)
    assert caught.value.path == f"env_manager.{list(cfg)[1]}"


def test_unknown_config_key_names_the_nearest() -> None:
    with pytest.raises(UnknownKeyError) as caught:
        make({"type": "in_process", "episode_nun": 3})
    assert caught.value.nearest == "episode_num"


def test_default_config_has_the_keys_of_the_base_classes() -> None:
    default = VectorEnvManager.default_config()
    assert default.cfg_type == "VectorEnvManagerDict"
    assert default.vectorization_mode == "auto"
    assert default.max_retry == 2
    default.max_retry = 5
    assert VectorEnvManager.default_config().max_retry == 2


def test_envs_that_cannot_render_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any) -> Any:
        raise ImportError("no module pygame")

    with make(IN_PROCESS, env_id="Tiny/Counter-v0", render_mode="rgb_array") as manager:
        assert isinstance(manager, InProcessEnvManager)
        manager.launch()
        monkeypatch.setattr(type(manager._envs[0].unwrapped), "render", fail)
        with pytest.raises(ConfigError, match="cannot render: no module pygame") as caught:
            _ = manager.ready_imgs
    assert caught.value.path == "env.kwargs.render_mode"


@pytest.mark.parametrize("cfg", ALL)
def test_a_single_env_is_enough(cfg: dict[str, Any]) -> None:
    with make(cfg, n=1) as manager:
        assert manager.observation_space.shape == (4,)
        manager.launch()
        assert manager.step_batch(np.zeros(1, int)).obs.shape == (1, 4)
    with pytest.raises(ConfigError, match="at least 1 env"):
        create_env_manager(cfg, [])


@pytest.mark.parametrize("cfg", [*ALL, {"type": "subprocess"}])
def test_actions_that_are_no_dict_are_refused(cfg: dict[str, Any]) -> None:
    with make(cfg) as manager:
        manager.launch()
        for actions in (None, np.array([0, 1]), [0, 1], 0.5):
            with pytest.raises(PolicyOutputError, match="takes a dict of actions"):
                manager.step(actions)  # type: ignore[arg-type]
        assert len(manager.step({0: 0, 1: 0})) == 2


@pytest.mark.parametrize("seed", [None, float("nan"), "ab", [1, None], {1: 0.5}])
def test_seed_that_is_no_whole_number_is_refused(seed: Any) -> None:
    with make(IN_PROCESS) as manager, pytest.raises(ConfigTypeError, match="seed"):
        manager.seed(seed)


def test_reset_of_no_env_changes_nothing() -> None:
    with make(IN_PROCESS) as manager:
        manager.launch()
        before = starts(manager)
        manager.reset({})
        assert starts(manager) == before
        assert manager.failure_count == 0


@pytest.mark.parametrize(
    ("cfg", "promises"),
    [
        (IN_PROCESS, Capabilities(True, True, True, False)),
        (NATIVE, Capabilities(False, False, False, True)),
    ],
)
def test_each_manager_has_its_capabilities(cfg: dict[str, Any], promises: Capabilities) -> None:
    with make(cfg) as manager:
        assert manager.capabilities == promises
        manager.launch()
        assert manager.capabilities == promises


def test_envs_are_seeded_from_a_branch_of_the_seed_tree() -> None:
    for cfg in ALL:
        found = []
        for seed, role in ((1, "collector"), (1, "collector"), (1, "evaluator"), (2, "collector")):
            with make(cfg) as manager:
                seed_envs(manager, seed, role)
                manager.launch()
                found.append(starts(manager))
        assert found[0] == found[1]
        assert len({str(one) for one in found}) == 3
        assert found[0][0] != found[0][1]
        seed: Any = [derive_seed(2, "collector", "env", index) for index in range(2)]
        if cfg is NATIVE:
            seed = derive_seed(2, "collector", "env")
        with make(cfg) as manager:
            manager.seed(seed)
            manager.launch()
            assert starts(manager) == found[3]


class Fresh(gym.vector.VectorEnv[Any, Any, Any]):
    """Returns new arrays in the dtypes of its spaces, and records their ids."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int = 1, **_: Any) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.ids: list[int] = []

    def reset(self, **_: Any) -> Any:
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        made = [np.zeros((self.num_envs, 2), np.float32), np.zeros(self.num_envs, np.float32)]
        made += [np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)]
        self.ids = [id(array) for array in made]
        return made.pop(0), made.pop(0), made.pop(0), made.pop(0), {}


def test_new_arrays_of_a_native_env_are_not_copied() -> None:
    gym.register("Tiny/Fresh-v0", vector_entry_point=Fresh)
    with make(NATIVE, env_id="Tiny/Fresh-v0") as manager:
        manager.launch()
        step = manager.step_batch(np.zeros(2, int))
        handed_out = [step.obs, step.reward, step.terminated, step.truncated]
        assert [id(array) for array in handed_out] == manager._vec.ids  # type: ignore[attr-defined]


def test_env_that_is_registered_with_wrappers_is_not_native() -> None:
    entry = gym.spec("CartPole-v1")
    wrapper = gym.envs.registration.WrapperSpec("W", "gymnasium.wrappers:Autoreset", {})
    gym.register(
        "Tiny/Wrapped-v0",
        entry_point=entry.entry_point,
        vector_entry_point=entry.vector_entry_point,
        additional_wrappers=(wrapper,),
    )
    with pytest.raises(ConfigError, match="Tiny/Wrapped-v0 is registered with wrappers"):
        make(NATIVE, env_id="Tiny/Wrapped-v0")


def test_defaults_of_the_sections() -> None:
    own = {
        "episode_num": np.inf,
        "auto_reset": True,
        "max_retry": 2,
        "retry_type": "renew",
        "retry_waiting_time": 0.0,
    }
    default = InProcessEnvManager.default_config()
    assert {key: default[key] for key in own} == own
    own |= {
        "vectorization_mode": "auto",
        "autoreset_mode": "auto",
        "step_timeout": 60.0,
        "reset_timeout": 60.0,
    }
    default = VectorEnvManager.default_config()
    assert {key: default[key] for key in own} == own
