"""The zergling collector is compared with a plain model: payloads, messages, policy versions."""

from __future__ import annotations

import dataclasses
import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dingsdk.data import SampleBatch
from dingsdk.data.seeding import derive_seed
from dingsdk.policy.modes import CollectMode
from dingsdk.worker.collector.zergling import ZerglingParallelCollector
from tests.own_plugins import using

from .scripted import (
    CountingPolicy,
    EndedEpisode,
    Model,
    Script,
    ScriptedEnv,
    differences,
    plain_rows,
)

SEED = 13


class SeededEnv(ScriptedEnv):
    """Finds its env id from the seed of its first reset."""

    def __init__(self, script: Mapping[str, Any], env_num: int) -> None:
        SeededEnv.open_envs += 1
        super().__init__(Script(**script), -1, [-1] * env_num)
        self._seeds = [derive_seed(SEED, "collector", "env", index) for index in range(env_num)]

    open_envs = 0

    def close(self) -> None:
        SeededEnv.open_envs -= 1

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._env_id = self._seeds.index(seed)
        return super().reset(seed=seed)


gym.register("Scripted-v0", entry_point=SeededEnv, disable_env_checker=True)


class VersionPolicy(CountingPolicy):
    """Its action is the version of the weights that it loaded last, modulo 5."""

    def __init__(
        self, cfg: Mapping[str, Any], enable_field: Sequence[str], seed: int | None
    ) -> None:
        super().__init__(cfg=cfg, **cfg["collect"])
        assert seed == SEED
        self._version = 0
        self._form = cfg["form"]
        assert list(enable_field) == ["collect"]

    @property
    def collect_mode(self) -> CollectMode:
        return self.mode(self._form)._replace(load_state_dict=self._load)

    def _load(self, state: Mapping[str, Any]) -> None:
        self._version = state["model"]["version"]

    def _forward(self, obs: Mapping[int, Any], shift: int = 0) -> dict[int, Any]:
        assert {value.dtype for value in obs.values()} <= {torch.float32}
        return super()._forward(obs, shift)

    def _act(self, env_id: int, shift: int) -> int:
        assert shift == 3
        return self._version % 5


CASE = st.fixed_dictionaries(
    {
        "script": st.builds(Script, st.integers(0, 999), st.integers(1, 9), st.just(0.0)),
        "env_num": st.integers(1, 4),
        "form": st.sampled_from(["columns", "rows"]),
        "n_sample": st.integers(1, 20) | st.none(),
        "unroll_len": st.integers(1, 3),
        "episodes_per_env": st.integers(1, 4),
        "versions": st.lists(st.none() | st.integers(1, 30), max_size=40),
        "is_updating": st.booleans(),
    }
)


class Wire:
    """Records what the collector sends; answers its polls from a list of versions."""

    def __init__(self, versions: Sequence[int | None]) -> None:
        self.messages: list[dict[str, Any]] = []
        self.payloads: dict[str, Any] = {}
        self._versions = iter(versions)

    def attach(self, collector: ZerglingParallelCollector) -> None:
        collector.send_metadata = self.messages.append
        collector.send_stepdata = self._keep
        collector.get_policy_update_info = self._newest
        collector.clock = itertools.count(0.0, 0.1).__next__  # progress is always due

    def _keep(self, data_id: str, batch: Any) -> None:
        assert isinstance(batch, SampleBatch)
        assert data_id not in self.payloads
        self.payloads[data_id] = plain_rows(batch)

    def _newest(self, path: str) -> dict[str, Any] | None:
        assert path == "somewhere"
        version = next(self._versions, None)
        return None if version is None else {"model": {"version": version}, "iter": version}


def make(case: Mapping[str, Any], root: str) -> ZerglingParallelCollector:
    env_kwargs = {"script": dataclasses.asdict(case["script"]), "env_num": case["env_num"]}
    return ZerglingParallelCollector(
        {
            **ZerglingParallelCollector.default_config(),
            "env": {
                "env_id": "Scripted-v0",
                "kwargs": env_kwargs,
                "collector_env_num": case["env_num"],
                "collector_episode_num": case["episodes_per_env"],
            },
            "env_manager": {"type": "in_process"},
            "policy": {
                "type": "scripted",
                "form": case["form"],
                "collect": {
                    "n_sample": case["n_sample"],
                    "n_episode": None if case["n_sample"] else 2,
                    "unroll_len": case["unroll_len"],
                },
            },
            "collect_setting": {"shift": 3},
            "eval_flag": False,
            "policy_update_path": "somewhere",
            "exp_name": root,
            "seed": SEED,
            "update_policy_second": 0 if case["is_updating"] else 3600,
        }
    )


def expected_messages(
    case: Mapping[str, Any], versions: Sequence[int | None]
) -> tuple[list[list[dict[str, Any]]], list[dict[str, Any]], Model, list[EndedEpisode], int]:
    """Return the expected payloads, messages, model, episodes and last version."""
    env_num, n_sample = case["env_num"], case["n_sample"]
    traj_len = None if not n_sample else max(case["unroll_len"], math.ceil(n_sample / env_num))
    model = Model(case["script"], env_num, traj_len)
    answers = iter(versions)
    version = next(answer for answer in answers if answer is not None)
    payloads: list[list[dict[str, Any]]] = []
    messages: list[dict[str, Any]] = []
    episodes: list[EndedEpisode] = []
    target = case["episodes_per_env"] * env_num
    sent = 0

    def counts() -> dict[str, int]:
        return {"cur_episode": len(episodes), "cur_sample": sent, "cur_step": model.envstep}

    def send() -> None:
        nonlocal sent
        rows, model.pending = model.pending, []
        payloads.append([{**row, "action": row["collect_iter"] % 5} for row in rows])
        sent += len(rows)
        oldest = min(row["collect_iter"] for row in rows)
        messages.append({"rows": len(rows), "policy_iter": oldest, **counts()})

    while len(episodes) < target:
        before = len(episodes)
        for env_id in range(env_num):
            model.play(env_id, version, 0, False, episodes)
        if len(model.pending) >= (n_sample or 1):
            send()
        if len(episodes) > before:
            messages.append({"collector_done": len(episodes) >= target, **counts()})
        if case["is_updating"]:
            version = next(answers, None) or version
    if traj_len is not None:
        for env_id in range(env_num):
            model.cut(env_id)
    if model.pending:
        send()
    return payloads, messages, model, episodes, version


@pytest.fixture(scope="module", autouse=True)
def _scripted_policy() -> Any:
    with using(policies={"scripted": VersionPolicy}):
        yield


@settings(max_examples=40, deadline=None)
@given(case=CASE)
def test_collect_task_matches_the_model(case: dict[str, Any]) -> None:
    versions = [None, 7, *case["versions"]]
    wire = Wire(versions)
    payloads, messages, model, episodes, version = expected_messages(case, versions)
    with tempfile.TemporaryDirectory() as root:
        collector = make(case, root)
        wire.attach(collector)
        collector.start()
        info = collector.get_finish_info()

    assert len(wire.payloads) == len(payloads)
    for rows, expected in zip(wire.payloads.values(), payloads, strict=True):
        assert differences(rows, expected) == []
    data_ids = [message["data_id"] for message in wire.messages if "data_id" in message]
    assert data_ids == list(wire.payloads)
    for message, expected_message in zip(wire.messages, messages, strict=True):
        assert {key: message[key] for key in expected_message} == expected_message
        assert message["eval_flag"] is False
        assert ("data_id" in message) == ("rows" in expected_message)
        if "data_id" in message:
            assert message["unroll_len"] == case["unroll_len"]
    sent = sum(map(len, payloads))
    _check_info(info, episodes, model.envstep, sent)
    assert info["predefined_episode_count"] == case["episodes_per_env"] * case["env_num"]
    assert info["collect_setting"] == {"shift": 3}
    assert info["train_iter"] == version


def _check_info(
    info: Mapping[str, Any], episodes: Sequence[EndedEpisode], steps: int, samples: int
) -> None:
    returns = [each.episode_return for each in episodes]
    assert info["reward_raw"] == returns
    assert info["reward_mean"] == pytest.approx(np.mean(returns))
    assert info["reward_std"] == pytest.approx(np.std(returns))
    assert info["real_episode_count"] == len(episodes)
    assert info["collector_done"] is True
    assert (info["step_count"], info["sample_count"]) == (steps, samples)
    duration = info["duration"]
    assert duration > 0
    assert info["avg_time_per_episode"] == pytest.approx(duration / len(episodes))
    assert info["avg_time_per_step"] == pytest.approx(duration / steps)
    assert info["avg_time_per_train_sample"] == pytest.approx(duration / max(1, samples))
    assert info["avg_step_per_episode"] == pytest.approx(np.mean([e.length for e in episodes]))
    assert info["avg_sample_per_episode"] == pytest.approx(samples / len(episodes))


def test_a_collector_that_cannot_be_built_leaves_no_env_open(tmp_path: Any) -> None:
    case = {
        "script": Script(0, 3, 0.0), "env_num": 3,
        "form": "rows", "n_sample": 4, "unroll_len": 1, "episodes_per_env": 1, "is_updating": False,
    }  # fmt: skip
    before = SeededEnv.open_envs
    collector = make(case, str(tmp_path))
    assert SeededEnv.open_envs == before + 3
    collector.close()
    assert SeededEnv.open_envs == before
    with pytest.raises(ValueError, match="unroll_len"):
        make({**case, "unroll_len": "unroll_len"}, str(tmp_path))
    assert SeededEnv.open_envs == before
