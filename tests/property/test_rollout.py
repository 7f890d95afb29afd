"""Both writers make the same samples of the same play, whatever the lengths."""

from __future__ import annotations

import tempfile
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dingsdk.data import SampleBatch
from dingsdk.envs import create_env_manager
from dingsdk.policy import create_policy
from dingsdk.worker.collector.sample import SampleSerialCollector


class NoisyEnv(gym.Env[Any, Any]):
    """Random observations and rewards; ends or is cut with some probability."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, end_rate: float) -> None:
        self.end_rate = end_rate

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        reward = float(self.np_random.normal()) + int(action)
        ends = self.np_random.random(2) < self.end_rate
        return self._obs(), reward, bool(ends[0]), bool(ends[1]), {}

    def _obs(self) -> Any:
        return self.np_random.normal(size=3).astype(np.float32)


def _collect(form: str, case: dict[str, Any], requests: list[int], root: str) -> list[SampleBatch]:
    mode = create_policy(
        {
            "type": "dqn",
            "nstep": case["nstep"],
            "model": {"obs_shape": 3, "action_shape": 2, "encoder_hidden_size_list": [4]},
            "collect": {"n_sample": case["n_sample"], "unroll_len": case["unroll_len"]},
        },
        enable_field=["collect"],
        seed=1,
    ).collect_mode
    if form == "rows":
        mode = mode._replace(forward_batch=None, make_transitions=None, make_samples=None)
    fns = [lambda: NoisyEnv(case["end_rate"])] * case["env_num"]
    env = create_env_manager({"type": case["manager"]}, fns)
    env.seed(case["seed"])
    collector = SampleSerialCollector({}, env, mode, exp_name=root)
    batches = []
    for version, count in enumerate(requests):
        samples = collector.collect(count, version, case["drop_extra"], policy_kwargs={"eps": 0.3})
        batches.append(
            samples if isinstance(samples, SampleBatch) else SampleBatch.from_rows(samples)
        )
    batches.append(collector.envstep)  # type: ignore[arg-type]
    collector.close()
    return batches


@settings(max_examples=25, deadline=None)
@given(
    case=st.fixed_dictionaries(
        {
            "nstep": st.integers(1, 4),
            "n_sample": st.integers(1, 40) | st.none(),
            "unroll_len": st.integers(1, 5),
            "env_num": st.integers(1, 4),
            "end_rate": st.sampled_from([0.05, 0.2, 0.6]),
            "manager": st.sampled_from(["in_process", "vector"]),
            "seed": st.integers(0, 1000),
            "drop_extra": st.booleans(),
        }
    ),
    requests=st.lists(st.integers(1, 60), min_size=1, max_size=4),
)
def test_rows_and_columns_give_the_same_samples(case: dict[str, Any], requests: list[int]) -> None:
    with tempfile.TemporaryDirectory() as root:
        *columns, column_steps = _collect("columns", case, requests, root)
        *rows, row_steps = _collect("rows", case, requests, root)

    assert column_steps == row_steps
    for count, one, other in zip(requests, columns, rows, strict=True):
        assert len(one) == count if case["drop_extra"] else len(one) >= count
        assert one.keys() == other.keys()
        for key, column in one.columns.items():
            np.testing.assert_array_equal(column, other.columns[key], err_msg=key)
