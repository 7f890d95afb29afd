"""The state that a recurrent policy keeps for each env."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dingsdk.errors import PolicyOutputError
from dingsdk.policy import Memory
from tests.fakes import StepCounter


def test_states_are_kept_by_env_and_read_as_copies() -> None:
    memory = Memory(2)
    memory.write([7, 3], np.array([[1, 2], [3, 4]], np.float32))

    found = memory.read([3, 5, 7])
    found[:] = 9

    assert memory.read([3, 5, 7]).tolist() == [[3, 4], [0, 0], [1, 2]]
    assert memory.read([]).shape == (0, 2)


def test_memory_grows_with_the_number_of_envs() -> None:
    memory = Memory(1)
    memory.write(range(5), np.arange(5, dtype=np.float32)[:, None])
    memory.write(range(5, 40), np.arange(5, 40, dtype=np.float32)[:, None])

    assert memory.read(range(40)).ravel().tolist() == list(range(40))


def acted(mode: Any, *env_ids: int) -> list[int]:
    obs = np.zeros((len(env_ids), 1), np.float32)
    return mode.forward_batch(obs, np.array(env_ids))["action"].tolist()


def test_state_of_each_env_is_kept_until_it_is_reset() -> None:
    mode = StepCounter({}, seed=0).eval_mode

    assert acted(mode, 0, 1) == [0, 0]
    assert acted(mode, 1) == [1]
    assert acted(mode, 0, 1) == [1, 2]
    mode.reset([1])
    assert acted(mode, 0, 1) == [2, 0]
    mode.reset()
    assert acted(mode, 0, 1) == [0, 0]


def test_collecting_and_evaluating_keep_separate_states() -> None:
    policy = StepCounter({}, seed=0)
    acted(policy.collect_mode, 0)

    assert acted(policy.eval_mode, 0) == [0]
    policy.eval_mode.reset()
    assert acted(policy.collect_mode, 0) == [1]


def test_collecting_records_the_state_before_the_step() -> None:
    mode = StepCounter({}, seed=0).collect_mode
    obs = np.zeros((2, 1), np.float32)

    outputs = [mode.forward_batch(obs, [4, 6]) for _ in range(2)]

    assert [sorted(output) for output in outputs] == [["action", "state"]] * 2
    assert [output["state"].tolist() for output in outputs] == [[[0], [0]], [[1], [1]]]
    assert mode.forward({4: obs[0]})[4]["state"].tolist() == [2]


def test_envs_without_ids_are_numbered() -> None:
    mode = StepCounter({}, seed=0).eval_mode
    acted(mode, 0)

    assert mode.forward_batch({"x": np.zeros((2, 1), np.float32)})["action"].tolist() == [1, 0]


@pytest.mark.parametrize("action_shape", [(), (2,)])
def test_random_steps_are_recorded_with_a_state_of_zeros(action_shape: tuple[int, ...]) -> None:
    from dingsdk.envs.steps import StepColumns

    mode = StepCounter({}, seed=0).collect_mode
    obs, ended = np.zeros((3, 1), np.float32), np.zeros(3, np.bool_)
    step = StepColumns(obs, obs, np.zeros(3, np.float32), ended, ended)

    actions = np.zeros((3, *action_shape), np.int64)
    columns = mode.make_transitions(obs, {"action": actions}, step)

    assert columns["state"].tolist() == [[0], [0], [0]]
    assert columns["state"].dtype == np.float32
    timestep = SimpleNamespace(obs=obs[0], reward=0.0, done=False, info={})
    row = mode.process_transition(obs[0], {"action": actions[0]}, timestep)
    assert row["state"].tolist() == [0]


@pytest.mark.parametrize("answer", [{}, {"next_state": None}, {"next_state": np.zeros((2, 3))}])
def test_a_recurrent_policy_without_a_next_state_is_refused(answer) -> None:
    policy = StepCounter({}, seed=0)
    policy.act = lambda *args, **kwargs: {"action": np.zeros(2, np.int64), **answer}

    with pytest.raises(PolicyOutputError, match="next_state"):
        policy.eval_mode.forward_batch(np.zeros((2, 1), np.float32), [0, 1])
