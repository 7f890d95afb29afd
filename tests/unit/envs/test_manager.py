"""Life cycle, seeds, resets, episode counts and errors of the env managers."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dingsdk.data.seeding import derive_seed
from dingsdk.envs import (
    EnvManager,
    InProcessEnvManager,
    StepColumns,
    SubprocessEnvManager,
    create_env_manager,
    in_process,
    make_env_fns,
    seed_envs,
)
from dingsdk.envs.vector import NativeEnvManager
from dingsdk.errors import (
    ClosedError,
    ConfigError,
    ConfigTypeError,
    EnvError,
    PolicyOutputError,
)

IN_PROCESS = {"type": "in_process"}
NATIVE = {"type": "vector", "vectorization_mode": "native"}
ALL = [IN_PROCESS, NATIVE]


def make(cfg: dict[str, Any], n: int = 2, env_id: str = "CartPole-v1", **kw: Any) -> EnvManager:
    return create_env_manager(cfg, make_env_fns({"env_id": env_id, "kwargs": kw}, n))


def test_native_mode_refuses_unsupported_operations() -> None:
    with make(NATIVE) as manager:
        with pytest.raises(ConfigError, match="takes one seed for all") as unseeded:
            manager.seed([1, 2])
        assert unseeded.value.path == "env_manager.type"
        manager.launch()
        assert manager.capabilities.per_env_seed is False
        manager.step_batch(np.zeros(2, int))
        with pytest.raises(ConfigError, match="in_process") as refused:
            manager.reset({0: None})
        assert refused.value.path == "env_manager.type"
        manager.step_batch(np.zeros(2, int), np.arange(2))
        with pytest.raises(PolicyOutputError, match="in_process") as caught:
            manager.step_batch(np.zeros(1, int), np.array([1]))
        assert (caught.value.facts["expected"], caught.value.facts["found"]) == ([0, 1], [1])
        with pytest.raises(PolicyOutputError, match="in_process") as caught:
            manager.step({1: 0})
        assert (caught.value.facts["expected"], caught.value.facts["found"]) == ([0, 1], [1])
    with pytest.raises(ConfigError, match="no vector env of its own"):
        make(NATIVE, env_id="MountainCar-v0")


def test_closed_manager_refuses_env_methods() -> None:
    manager = make(IN_PROCESS)
    with pytest.raises(ClosedError):
        manager.enable_save_replay("replays")
    with pytest.raises(ClosedError):
        manager.get_state()


def test_random_actions_are_for_ready_envs() -> None:
    with make({**IN_PROCESS, "episode_num": 1}, env_id="Tiny/Counter-v0") as manager:
        assert isinstance(manager, InProcessEnvManager)
        manager.launch()
        for _ in range(3):
            manager.step({0: 0})
        actions = manager.random_action()
        assert list(actions) == [1]
        assert manager.action_space.contains(actions[1])


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


def test_actions_and_resets_that_are_no_dict_by_env_id_are_refused() -> None:
    with make(IN_PROCESS) as manager:
        manager.launch()
        for actions in (None, np.array([0, 1]), [0, 1], 0.5):
            with pytest.raises(PolicyOutputError, match="takes a dict of actions"):
                manager.step(actions)  # type: ignore[arg-type]
        for env_id in (True, 1.0, 2, "0"):
            with pytest.raises(PolicyOutputError, match="there are envs 0 to 1"):
                manager.step({env_id: 0})  # type: ignore[dict-item]
        for reset in ([0, 1], 1, {0: 5}):
            with pytest.raises(ConfigTypeError, match="reset_param: expected a dict"):
                manager.reset(reset)  # type: ignore[arg-type]
        assert len(manager.step({0: 0, 1: 0})) == 2


@pytest.mark.parametrize("seed", [None, float("nan"), "ab", [1, None], {1: 0.5}])
def test_seed_that_is_no_whole_number_is_refused(seed: Any) -> None:
    with make(IN_PROCESS) as manager, pytest.raises(ConfigTypeError, match="seed"):
        manager.seed(seed)


def test_envs_are_seeded_from_a_branch_of_the_seed_tree() -> None:
    seed = derive_seed(2, "collector", "env")
    each = [derive_seed(2, "collector", "env", index) for index in range(2)]
    for cfg, expected in ((IN_PROCESS, each), (NATIVE, seed)):
        with make(cfg) as manager, make(cfg) as other:
            seed_envs(manager, 2, "collector")
            other.seed(expected)
            manager.launch()
            other.launch()
            assert manager.current_obs().tolist() == other.current_obs().tolist()


class Meeting(gym.Env[Any, Any]):
    """Each step and each reset waits until all envs are in one; episodes have two steps."""

    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(9)

    def __init__(self, barrier: threading.Barrier) -> None:
        self._barrier = barrier

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._barrier.wait(30)
        self._time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        if action == 8:
            raise RuntimeError("step on cue")
        self._barrier.wait(30)
        self._time += 1
        return np.full(1, self._time, np.float32), float(action), self._time == 2, False, {}


def test_threads_step_and_reset_envs_side_by_side() -> None:
    barrier, thread_num = threading.Barrier(4), threading.active_count()
    env_fns = [lambda: Meeting(barrier)] * 4
    with create_env_manager({"type": "in_process", "threads": 4, "max_retry": 0}, env_fns) as m:
        m.launch()
        for time in (1, 2):
            steps = m.step({3: 3, 0: 0, 2: 2, 1: 1})
            assert {i: step.reward for i, step in steps.items()} == {i: i for i in range(4)}
            assert [step.done for step in steps.values()] == [time == 2] * 4
        assert m.current_obs().tolist() == [[0]] * 4
        columns = m.step_batch(np.arange(4))
        assert columns.reward.tolist() == [0, 1, 2, 3]
        # The error of the first env is raised when no env is in a step any more.
        threading.Timer(0.1, barrier.abort).start()
        with pytest.raises(EnvError, match="env 0 failed 1 times"):
            m.step({0: 0, 2: 8})
        assert barrier.n_waiting == 0
    assert threading.active_count() == thread_num


def test_meanwhile_is_called_while_envs_step_in_threads() -> None:
    barrier = threading.Barrier(3)
    cfg = {"type": "in_process", "threads": 2, "max_retry": 0}
    with create_env_manager(cfg, [lambda: Meeting(barrier)] * 2) as manager:
        threading.Timer(0.05, barrier.wait).start()
        manager.launch()
        manager.meanwhile = barrier.wait
        assert manager.step_batch(np.zeros(2, np.int64)).reward.tolist() == [0, 0]

        def interrupt() -> None:
            threading.Timer(0.2, barrier.abort).start()
            raise KeyboardInterrupt

        manager.meanwhile = interrupt
        with pytest.raises(KeyboardInterrupt):
            manager.step_batch(np.zeros(2, np.int64))
    assert barrier.n_waiting == 0, "the manager is closed, and an env is still in a step"


def test_thread_whose_call_does_not_end_is_abandoned_at_the_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_process, "CLOSE_S", 0.05)
    go_on, threads = threading.Event(), in_process._Threads(1)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        threads.map(go_on.wait, [10.0], meanwhile=interrupt)
    threads.close()
    (thread,) = threads._threads
    assert thread.is_alive()
    go_on.set()
    thread.join()


def test_env_is_only_reset_after_its_last_episode_if_asked() -> None:
    with make({**IN_PROCESS, "episode_num": 2}, 1, "Tiny/Counter-v0") as manager:
        manager.launch()
        while not manager.done:
            manager.step({0: 0})
        assert manager.current_obs()[0, 1] == 3
        manager.reset()
        assert (manager.done, manager.ready_obs[0][1]) == (False, 0)


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


@pytest.mark.parametrize("name", ["Native", "NativeSameStep", "NativeDisabled"])
def test_native_env_that_reuses_its_arrays_gives_correct_episodes(name: str) -> None:
    with make(NATIVE, 3, f"Tiny/{name}-v0") as manager:
        manager.launch()
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
