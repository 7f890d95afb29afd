"""For ``policy.normalize.reward`` collectors record the discounted return of each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.data.collected import DISCOUNTED_RETURN
from dingsdk.envs import create_env_manager
from dingsdk.errors import SchemaMismatchError
from dingsdk.policy import BasePolicy, DQNPolicy
from dingsdk.worker.collector.episode import EpisodeSerialCollector
from dingsdk.worker.collector.sample import SampleSerialCollector

from .scripted import NextStepEnvs, Script, env_fns

GAMMA, ENVS = 0.75, 3
SCRIPT = Script(seed=5, longest=9, fail_rate=0.3)
CFG = {
    "discount_factor": GAMMA,
    "model": {"obs_shape": 3, "action_shape": 5, "encoder_hidden_size_list": [4]},
    "collect": {"n_sample": 12},
    "normalize": {"reward": True},
}


class Steps(DQNPolicy):
    """Its samples are the steps."""

    samples = BasePolicy.samples


class Unrolls(Steps):
    """Its samples are unrolls, which continue across episodes."""

    piece = "unroll"


def expected(obs: Any) -> list[float]:
    """Return the discounted return after each step by a plain loop over its episode."""
    found = []
    for env_id, number, time in obs.reshape(-1, 3).astype(int).tolist():
        total = 0.0
        for step in range(1, time + 2):
            total = GAMMA * total + SCRIPT.reward(env_id, number, step)
        found.append(total)
    return found


@pytest.mark.parametrize("form", ["columns", "rows"])
@pytest.mark.parametrize("manager", ["in_process", "next step"])
@pytest.mark.parametrize("kind", ["steps", "unrolls", "episodes"])
def test_discounted_returns_are_those_of_each_episode(
    kind: str, manager: str, form: str, tmp_path: Path
) -> None:
    fns = env_fns(SCRIPT, ENVS)
    env: Any = NextStepEnvs({}, fns)
    if manager == "in_process":
        env = create_env_manager({"type": "in_process", "max_retry": 1}, fns)
    cfg = {**CFG, "collect": {"n_sample": 12, "unroll_len": 4 if kind == "unrolls" else 1}}
    mode = (Unrolls if kind == "unrolls" else Steps)(cfg, ["collect"], seed=0).collect_mode
    if form == "rows":
        mode = mode._replace(forward_batch=None)
    collector_cls: Any = EpisodeSerialCollector if kind == "episodes" else SampleSerialCollector
    collector = collector_cls({}, env=env, policy=mode, exp_name=str(tmp_path))
    rows = 0
    try:
        for _ in range(6):
            count = 5 if kind == "episodes" else 12
            samples = collector.collect(count, policy_kwargs={"eps": 0.5})
            for part in samples if kind == "episodes" else [samples]:
                columns = SampleBatch.from_rows(part).columns
                found = np.asarray(columns[DISCOUNTED_RETURN])
                assert found.dtype == np.float32
                assert found.reshape(-1).tolist() == pytest.approx(
                    expected(columns["obs"]), rel=1e-6
                )
                rows += found.size
    finally:
        collector.close()
    assert rows >= 72


def test_returns_go_on_when_an_on_policy_collector_drops_older_data(tmp_path: Path) -> None:
    env = create_env_manager({"type": "in_process"}, env_fns(SCRIPT, ENVS))
    mode = Steps({**CFG, "on_policy": True}, ["collect"], seed=0).collect_mode
    collector = SampleSerialCollector({}, env=env, policy=mode, exp_name=str(tmp_path))
    try:
        for train_iter in range(8):  # a multiple of 3 envs is taken, and 10 are asked for
            samples: Any = collector.collect(10, train_iter=train_iter)
            found = samples.columns[DISCOUNTED_RETURN].tolist()
            # Rewards are scaled, and the returns are not.
            assert found == pytest.approx(expected(samples.columns["obs"]), rel=1e-6)
    finally:
        collector.close()


@pytest.mark.parametrize("form", ["columns", "rows"])
def test_policy_that_records_no_reward_is_refused_by_name(form: str, tmp_path: Path) -> None:
    class NoReward(Steps):
        def transitions(self, obs: Any, output: Any, step: Any) -> dict[str, Any]:
            columns = super().transitions(obs, output, step)
            del columns["reward"]
            return columns

    env = create_env_manager({"type": "in_process"}, env_fns(SCRIPT, ENVS))
    mode = NoReward(CFG, ["collect"], seed=0).collect_mode
    if form == "rows":
        mode = mode._replace(forward_batch=None)
    collector = SampleSerialCollector({}, env=env, policy=mode, exp_name=str(tmp_path))
    try:
        with pytest.raises(SchemaMismatchError, match="reward") as caught:
            collector.collect(12)
    finally:
        collector.close()
    assert caught.value.key == "reward"
