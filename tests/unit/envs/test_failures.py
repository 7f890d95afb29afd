"""An env that fails is rebuilt and its episode is dropped. The third failure in a row is fatal."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from dingsdk.envs import EnvManager, create_env_manager, guard, make_env_fns
from dingsdk.envs.guard import GuardedEnv
from dingsdk.errors import EnvError, SchemaMismatchError
from dingsdk.runtime.spawn import signals_blocked

RAISE, NAN, REPORT = 1, 2, 5
IN_PROCESS = {"type": "in_process"}
NATIVE = {"type": "vector", "vectorization_mode": "native"}


def launch(cfg: dict[str, Any], n: int = 2, env: str = "Counter", **kwargs: Any) -> EnvManager:
    env_cfg = {"env_id": f"Tiny/{env}-v0", "kwargs": kwargs}
    manager = create_env_manager(cfg, make_env_fns(env_cfg, n))
    manager.seed(7)
    manager.launch()
    return manager


def step(manager: EnvManager, *actions: int) -> Any:
    return manager.step_batch(np.array(actions))


def test_fault_that_an_env_reports_ends_only_its_own_episode(counter_cls: Any) -> None:
    with launch(IN_PROCESS) as manager:
        step(manager, 0, 0)
        made = counter_cls.made
        columns = step(manager, 0, REPORT)
        assert counter_cls.made == made + 1
        assert columns.abnormal.tolist() == [False, True]
        assert columns.valid.tolist() == [True, False]
        assert columns.reward.tolist() == [2.0, 0.0]
        assert not columns.terminated.any()
        assert columns.obs[:, 1].tolist() == [2, 0]
        assert manager.failure_count == 1
        columns = step(manager, 0, 0)
        assert columns.abnormal is None
        assert columns.final_obs[:, 1].tolist() == [3, 1]


class Answering:
    """An env whose ``step`` and ``reset`` give the results passed to it."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    metadata: ClassVar[dict[str, Any]] = {}
    render_mode = spec = None
    obs = np.zeros(1, np.float32)

    def __init__(self, step: Any = None, reset: Any = (obs, {})) -> None:
        self._answers = {"step": step, "reset": reset}

    def reset(self, **_: Any) -> Any:
        return self._answers["reset"]

    def step(self, action: Any) -> Any:
        if isinstance(self._answers["step"], BaseException):
            raise self._answers["step"]
        return self._answers["step"]

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("reward", "flag"),
    [
        (2, True),
        (np.float64(2), 1),
        (np.array(2.0), np.True_),
        (np.array([2.0]), np.array([True])),
        (2.0, np.float64(1)),
    ],
)
def test_reward_and_flag_of_any_numeric_type_are_accepted(reward: Any, flag: Any) -> None:
    answer = (Answering.obs, reward, False, flag, {})
    env = GuardedEnv(lambda: Answering(answer), 0, EnvManager.Config())
    env.reset()
    assert env.step(0)[1:4] == (2.0, False, True)


@pytest.mark.parametrize("sign", [1, -1])
def test_largest_float32_reward_is_accepted(sign: int) -> None:
    most = sign * float(np.finfo(np.float32).max)
    assert guard.plain_reward(most, 1) == most
    with pytest.raises(SchemaMismatchError, match="float32 holds it"):
        guard.plain_reward(np.nextafter(most, sign * np.inf), 1)


@pytest.mark.parametrize(
    ("answers", "key", "text"),
    [
        ({"step": (Answering.obs, 1.0, False, {})}, "step", "4 values.*terminated.*old gym API"),
        ({"step": None}, "step", "NoneType"),
        ({"step": (Answering.obs, np.ones(2), False, False, {})}, "reward", "a number is needed"),
        ({"step": (Answering.obs, None, False, False, {})}, "reward", "None"),
        ({"step": (Answering.obs, "1.0", False, False, {})}, "reward", "'1.0', a number"),
        ({"step": (Answering.obs, np.inf, False, False, {})}, "reward", "inf, a finite number"),
        ({"step": (Answering.obs, -1e39, False, False, {})}, "reward", "float32 holds it"),
        ({"step": (Answering.obs, 1.0, "no", False, {})}, "terminated", "'no', true or false"),
        ({"step": (Answering.obs, 1.0, False, None, {})}, "truncated", "None, true or false"),
        ({"step": (Answering.obs, 1.0, np.ones(2), False, {})}, "terminated", "true or false"),
        ({"step": (Answering.obs, 1.0, False, False, None)}, "info", "NoneType, a dict"),
        ({"reset": Answering.obs}, "reset", "ndarray.*obs, info"),
        ({"reset": (Answering.obs, None)}, "info", "NoneType, a dict"),
    ],
)
def test_error_names_a_wrong_return_value(answers: dict[str, Any], key: str, text: str) -> None:
    env = GuardedEnv(lambda: Answering(**answers), 0, EnvManager.Config(max_retry=0))

    def play() -> None:
        env.reset()
        env.step(0)

    with pytest.raises(EnvError, match=text) as caught:
        play()
    cause = caught.value.__cause__
    assert isinstance(cause, SchemaMismatchError)
    assert cause.key == key


class UnprintableError(KeyError):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        raise AttributeError("no code")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (UnprintableError("x"), "UnprintableError: <exception str() failed>"),
    ],
)
def test_any_error_of_an_env_is_a_failure(error: BaseException, text: str) -> None:
    env = GuardedEnv(lambda: Answering(error), 0, EnvManager.Config())
    env.reset()
    assert env.step(0)[4]["error"] == text
    env.step(0)
    with pytest.raises(EnvError, match=re.escape(text)):
        env.step(0)


def test_state_of_a_guarded_env_includes_its_failures(counter_cls: Any) -> None:
    env, other = (GuardedEnv(counter_cls, 0, EnvManager.Config()) for _ in range(2))
    env.reset(seed=7)
    for _ in range(2):
        env.step(RAISE)
    other.call("set_state", env.call("get_state"))
    with pytest.raises(EnvError, match="failed 3 times"):
        other.step(RAISE)


def test_signals_of_a_terminal_are_blocked_only_inside_the_context() -> None:
    terminal = {signal.SIGINT, signal.SIGHUP}
    with signals_blocked():
        assert terminal <= signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert not terminal & signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_retry_by_reset_keeps_the_instance(counter_cls: Any) -> None:
    with launch({**IN_PROCESS, "retry_type": "reset"}) as manager:
        made = counter_cls.made
        assert step(manager, RAISE, 0).abnormal.tolist() == [True, False]
        assert counter_cls.made == made


def test_error_of_an_invalid_space_names_the_unwrapped_env() -> None:
    env = gym.Wrapper(CartPoleEnv())
    guard.check_spaces(env)
    env.action_space = 2  # type: ignore[assignment]

    with pytest.raises(EnvError, match="CartPoleEnv has the action_space 2, ") as caught:
        GuardedEnv(lambda: env, 0, EnvManager.Config())

    assert caught.value.failures == 1


def test_error_of_a_space_that_raises_names_the_env() -> None:
    class Late(CartPoleEnv):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if name == "action_space":
                raise OSError("no simulator yet")
            return super().__getattribute__(name)

    with pytest.raises(EnvError, match=r"Late has the action_space OSError: no simulator yet"):
        guard.check_spaces(gym.Wrapper(Late()))


@pytest.mark.parametrize("fault", [RAISE, NAN])
@pytest.mark.parametrize("env", ["Native", "NativeSameStep", "NativeDisabled"])
def test_native_failure_rebuilds_all_and_marks_all_rows(env: str, fault: int) -> None:
    with launch(NATIVE, n=3, env=env) as manager:
        step(manager, 0, 0, 0)
        columns = step(manager, 0, fault, 0)
        assert columns.abnormal.all()
        assert not columns.valid.any()
        assert columns.obs[:, 1].tolist() == [0, 0, 0]
        assert manager.failure_count == 3
        assert step(manager, 0, 0, 0).final_obs[:, 1].tolist() == [1, 1, 1]
        step(manager, 0, 0, 0)  # the first env completes an episode here
        step(manager, 0, fault, 0)
        step(manager, 0, fault, 0)
        with pytest.raises(EnvError, match="vector env failed 3 times") as caught:
            step(manager, 0, fault, 0)
        assert caught.value.__cause__ is not None
        assert manager.closed


def test_native_failure_is_abnormal_for_every_env_in_dict_form() -> None:
    with launch(NATIVE, env="Native") as manager:
        timesteps = manager.step({0: 0, 1: RAISE})
        assert [t.info["abnormal"] for t in timesteps.values()] == [True, True]
        assert timesteps[0].info["error"] == "RuntimeError: step on cue"
        assert manager.step({0: 0, 1: 0})[1].reward == 1.0


@pytest.mark.parametrize("cfg", [IN_PROCESS, {"type": "vector"}])
def test_manager_waits_before_it_retries_an_env(cfg: dict[str, Any]) -> None:
    env = "Counter" if cfg is IN_PROCESS else "Native"
    with launch({**cfg, "retry_waiting_time": 0.05}, env=env) as manager:
        started = time.monotonic()
        step(manager, 0, RAISE)
        assert time.monotonic() - started >= 0.05


def test_failed_native_env_continues_with_another_seed_each_time() -> None:
    def starts() -> list[Any]:
        found = [manager.current_obs().tolist()]
        for _ in range(2):
            step(manager, 0, RAISE)
            found.append(manager.current_obs().tolist())
        return found

    with launch(NATIVE, env="Native") as manager:
        first = starts()
        manager.close()
        manager.launch()
        assert starts() == first
    assert len({str(each) for each in first}) == 3


@pytest.mark.parametrize("env", ["Native", "NativeSameStep", "NativeDisabled"])
def test_native_env_keeps_a_fixed_seed_after_a_failure(env: str) -> None:
    with launch(NATIVE, env=env, n=1) as manager:
        manager.seed(3, dynamic_seed=False)
        manager.reset()
        first = manager.current_obs().tolist()
        step(manager, RAISE)
        assert manager.current_obs().tolist() == first


class Closing(CartPoleEnv):
    """Records the thread that calls ``close``, which returns when ``gate`` is set."""

    gate: ClassVar[threading.Event]
    closed_in: ClassVar[list[threading.Thread]]

    def close(self) -> None:
        self.closed_in.append(threading.current_thread())
        self.gate.wait(30)


@pytest.fixture
def closing_cls() -> Iterator[type[Closing]]:
    gate = threading.Event()
    cls = type("Closing", (Closing,), {"gate": gate, "closed_in": []})
    yield cls
    gate.set()
    for thread in cls.closed_in:
        if thread is not threading.current_thread():
            thread.join(30)


def test_manager_does_not_wait_for_an_env_whose_close_hangs(
    closing_cls: type[Closing], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard, "CLOSE_S", 0.1)
    manager = create_env_manager(IN_PROCESS, [closing_cls] * 2)
    assert manager.observation_space.shape == (4,)  # makes an env and closes it
    manager.launch()
    manager.close()
    assert manager.closed
    assert [record.getMessage() for record in caplog.records] == [
        "close() of the envs (Closing) has not ended after 0 s; they are abandoned"
    ] * 2


@pytest.mark.parametrize(("mode", "is_here"), [(None, False), ("rgb_array", True)])
def test_close_waits_for_a_slow_env_and_closes_one_that_renders_in_its_thread(
    closing_cls: type[Closing], mode: str | None, is_here: bool, caplog: pytest.LogCaptureFixture
) -> None:
    manager = create_env_manager(IN_PROCESS, [partial(closing_cls, render_mode=mode)] * 2)
    manager.launch()
    threading.Timer(0.1, closing_cls.gate.set).start()
    manager.close()
    assert closing_cls.gate.is_set()
    here = threading.current_thread()
    assert [thread is here for thread in closing_cls.closed_in] == [is_here] * 2
    assert caplog.records == []


@pytest.mark.parametrize("reward", [[1.0], 1.0, [1.0, float("nan")], [[1.0, 2.0]]])
def test_rewards_of_two_players_are_two_finite_numbers(reward: Any) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        guard.plain_reward(reward, 2)
    facts = caught.value.facts
    assert (facts["key"], facts["expected"]) == ("reward", "2 finite numbers, one per player")
    assert facts["found"] == repr(reward)
    for accepted in ([1, 2], [[1], [2]], [np.array([1.0]), np.array([2.0])]):
        assert guard.plain_reward(accepted, 2).tolist() == [1.0, 2.0]
