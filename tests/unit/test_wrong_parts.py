"""A part of the wrong kind, given to a part from Python: the error says which kind is expected."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch
from dingsdk.envs import create_env_manager
from dingsdk.errors import ConfigError, ConfigTypeError, HookError, SchemaMismatchError
from dingsdk.policy import DQNPolicy
from dingsdk.worker import (
    AdvancedReplayBuffer,
    BaseLearner,
    EpisodeSerialCollector,
    InteractionSerialEvaluator,
    NaiveReplayBuffer,
    SampleSerialCollector,
)

MODEL = {"obs_shape": 4, "action_shape": 2}
make_env = partial(gym.make, "CartPole-v1")
make_vec = partial(gym.make_vec, "CartPole-v1", num_envs=2)
WORKERS = [SampleSerialCollector, EpisodeSerialCollector, InteractionSerialEvaluator]


@pytest.fixture(scope="module")
def policy() -> DQNPolicy:
    return DQNPolicy({"model": MODEL}, seed=0)


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("make", [make_env, make_vec])
def test_an_env_in_place_of_an_env_manager_is_refused(
    tmp_path: Any, worker: Any, make: Callable[[], Any]
) -> None:
    env = make()
    with pytest.raises(ConfigTypeError, match=r"create_env_manager\(.*BaseVectorEnvManager"):
        worker({}, env=env, exp_name=str(tmp_path))
    env.close()


@pytest.mark.parametrize("worker", WORKERS)
def test_a_policy_in_place_of_its_mode_is_refused(
    tmp_path: Any, worker: Any, policy: DQNPolicy
) -> None:
    with pytest.raises(ConfigTypeError, match=r"policy\.collect_mode.*DQNPolicy"):
        worker({}, policy=policy, exp_name=str(tmp_path))


def test_a_policy_in_place_of_its_learn_mode_is_refused(tmp_path: Any, policy: DQNPolicy) -> None:
    learner = BaseLearner({}, exp_name=str(tmp_path))
    with pytest.raises(ConfigTypeError, match=r"policy\.learn_mode.*DQNPolicy"):
        learner.policy = policy  # type: ignore[assignment]
    learner.close()


@pytest.mark.parametrize("env_fns", [make_env, make_vec()])
def test_env_functions_that_are_no_list_are_refused(env_fns: Any) -> None:
    with pytest.raises(ConfigTypeError, match="env_fns: expected a list of functions"):
        create_env_manager({"type": "in_process"}, env_fns)


@pytest.mark.parametrize("kind", ["in_process", "vector", "subprocess"])
@pytest.mark.parametrize(
    ("env_fn", "reason"),
    [("CartPole-v1", "a function that makes one env, found 'CartPole-v1'"), (make_vec, "one env")],
)
def test_what_does_not_make_one_env_is_refused(kind: str, env_fn: Any, reason: str) -> None:
    manager = create_env_manager({"type": kind}, [env_fn] * 2)
    with pytest.raises(ConfigError, match=rf"env_fns\[0\].*{reason}"):
        manager.launch()
    manager.close()


def test_a_function_in_place_of_a_learner_hook_is_refused(tmp_path: Any) -> None:
    learner = BaseLearner({}, exp_name=str(tmp_path))
    with pytest.raises(HookError, match="LearnerHook"):
        learner.register_hook(print)  # type: ignore[arg-type]
    learner.close()


@pytest.mark.parametrize(
    "part", [NaiveReplayBuffer, AdvancedReplayBuffer, BaseLearner, DQNPolicy, *WORKERS]
)
def test_a_number_in_place_of_a_section_is_refused(part: Any) -> None:
    with pytest.raises(ConfigTypeError, match="expected a dict of settings, found 100"):
        part(100)


@pytest.mark.parametrize("obs", [np.zeros((2, 4), np.float32), torch.zeros(2, 4), [[0.0] * 4]])
def test_columns_given_to_the_dict_form_of_a_policy_are_refused(
    policy: DQNPolicy, obs: Any
) -> None:
    for mode in (policy.collect_mode, policy.eval_mode):
        with pytest.raises(SchemaMismatchError, match=r"dict \{env_id: .*forward_batch"):
            mode.forward(obs)
    assert policy.eval_mode.forward({}) == {}


@pytest.mark.parametrize("obs", [[[0.0] * 4], None, {"a": [1.0]}])
def test_observations_that_are_no_columns_are_refused(policy: DQNPolicy, obs: Any) -> None:
    with pytest.raises(SchemaMismatchError, match="expected an array, a tensor or a dict"):
        policy.eval_mode.forward_batch(obs)


@pytest.mark.parametrize("state", [None, [], 3, torch.zeros(2)])
def test_a_policy_state_that_is_no_mapping_is_refused(policy: DQNPolicy, state: Any) -> None:
    with pytest.raises(SchemaMismatchError, match="policy state: expected a mapping"):
        policy.eval_mode.load_state_dict(state)


def test_rows_given_to_concat_are_refused() -> None:
    with pytest.raises(
        SchemaMismatchError, match=r"batch 1: .*found dict; join dicts with from_rows"
    ):
        SampleBatch.concat([SampleBatch({"x": [1.0]}), {"x": 1.0}])  # type: ignore[list-item]


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("count", [2.5, "8", True, -1, math.nan])
def test_an_amount_that_is_no_whole_number_is_refused(
    tmp_path: Any, policy: DQNPolicy, worker: Any, count: Any
) -> None:
    env = create_env_manager({"type": "in_process"}, [make_env])
    modes = {InteractionSerialEvaluator: policy.eval_mode}
    part = worker({}, env, modes.get(worker, policy.collect_mode), exp_name=str(tmp_path))
    amount = {"n_sample" if worker is SampleSerialCollector else "n_episode": count}
    with pytest.raises(ConfigTypeError, match="expected a whole number >= 0"):
        getattr(part, "eval" if worker is InteractionSerialEvaluator else "collect")(**amount)
    part.close()


NOTEBOOK = """
import gymnasium as gym
from dingsdk.envs import create_env_manager
from dingsdk.errors import ConfigError

class Walk(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)

manager = create_env_manager({"type": "subprocess"}, [Walk] * 2)
try:
    manager.launch()
except ConfigError as error:
    assert "notebook" in str(error) and "in_process" in str(error), error
else:
    raise SystemExit("no error")
"""


def test_an_env_class_that_no_process_can_import_is_refused() -> None:
    subprocess.run([sys.executable, "-c", NOTEBOOK], check=True, timeout=60)
