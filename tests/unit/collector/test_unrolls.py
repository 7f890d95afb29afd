"""Pieces of trajectories that a policy declares: unrolls of exactly T steps, and episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dingsdk.data import SampleBatch
from dingsdk.envs import create_env_manager
from dingsdk.errors import ConfigError
from dingsdk.pipeline.train import train
from dingsdk.plugins import default_manager
from dingsdk.policy import BasePolicy, PolicySection
from dingsdk.worker.collector.columns import UnrollWriter
from dingsdk.worker.collector.sample import SampleSerialCollector

T, ENVS = 5, 3


class Counting(gymnasium.Env[Any, Any]):
    """Observations count the steps of the env since it was made; episodes have 2 to 4 steps."""

    observation_space = gymnasium.spaces.Box(0, 1e6, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.total = self.episode = self.left = 0

    def _obs(self) -> Any:
        return np.array([self.total, self.episode], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode += 1
        self.left = 2 + self.episode % 3
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.total += 1
        self.left -= 1
        return self._obs(), float(self.total), self.left == 0, False, {}


class UnrollPolicy(BasePolicy):
    """Learns a value of each step from unrolls; records the shapes of its batches."""

    class Config(PolicySection, frozen=True, kw_only=True):
        type: str = "of_unrolls"

    piece = "unroll"
    state_size = 3
    shapes: ClassVar[list[tuple[int, ...]]] = []
    given: ClassVar[set[str]] = set()
    marks: ClassVar[list[Any]] = []
    """Of the batches: the number of updates of the weights that acted, and the first value seen."""

    def build(self) -> None:
        self.net = torch.nn.Linear(int(np.prod(self.section.model["obs_shape"])), 1)
        self.net.register_buffer("updates", torch.zeros(1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-9)

    @classmethod
    def model_from_spaces(cls, obs: Any, action: Any) -> dict[str, Any]:
        return {"obs_shape": list(obs.shape)}

    def act(self, obs: Any, env_ids: Any = None, *, explore: bool, **setting: Any) -> Any:
        count = setting["state"] + 1
        updates = np.full(len(obs), self.net.get_buffer("updates").item(), np.float32)
        mark = np.stack([updates, obs[:, 0]], axis=1)
        return {"action": np.zeros(len(obs), np.int64), "next_state": count, "mark": mark}

    def samples(self, columns: dict[str, Any], ends: Any) -> SampleBatch:
        self.given.update(columns)
        return super().samples(columns, ends)

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.shapes.append(tuple(batch["obs"].shape))
        self.marks.append(batch["mark"].numpy())
        self.net.get_buffer("updates").add_(1)
        assert batch["state"].shape == (len(batch["obs"]), 3)
        loss = self.net(batch["obs"]).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"total_loss": loss.item()}

    def state(self) -> Any:
        return {"model": self.net, "optimizer": self.optimizer}


class EpisodePolicy(UnrollPolicy):
    """Learns from steps; checks that it makes its samples of whole episodes of ``Counting``."""

    class Config(PolicySection, frozen=True, kw_only=True):
        type: str = "of_episodes"

    piece = "episode"
    state_size = 0
    pieces: ClassVar[int] = 0

    def act(self, obs: Any, env_ids: Any = None, *, explore: bool, **setting: Any) -> Any:
        return super().act(obs, env_ids, explore=explore, state=np.zeros(len(obs)))

    def samples(self, columns: dict[str, Any], ends: Any) -> SampleBatch:
        starts = np.concatenate(([0], ends[:-1]))
        assert columns["done"].nonzero()[0].tolist() == (ends - 1).tolist()
        assert (ends - starts == 2 + columns["obs"][starts, 1] % 3).all()
        type(self).pieces += len(ends)
        columns.pop("next_state", None)
        return SampleBatch(columns)

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        return super().learn({**batch, "state": torch.zeros(len(batch["obs"]), 3)})


CFG = {
    "type": "of_unrolls",
    "model": {"obs_shape": [2]},
    "collect": {"n_sample": 4, "unroll_len": T},
}


def collect(
    folder: Path, manager: dict[str, Any], calls: int, in_dicts: bool = False
) -> list[SampleBatch]:
    envs = create_env_manager(manager, [Counting] * ENVS)
    envs.seed(0)
    envs.launch()
    mode = UnrollPolicy(CFG, ["collect"], seed=0).collect_mode
    if in_dicts:
        mode = mode._replace(forward_batch=None)
    collector = SampleSerialCollector({}, env=envs, policy=mode, exp_name=str(folder))
    try:
        return [collector.collect(train_iter=call) for call in range(calls)]  # type: ignore[misc]
    finally:
        collector.close()
        envs.close()


def rows_of(batches: list[Any]) -> dict[str, np.ndarray[Any, Any]]:
    if isinstance(batches[0], SampleBatch):
        return {name: np.concatenate([b.columns[name] for b in batches]) for name in NAMES}
    rows = [row for batch in batches for row in batch]
    return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in NAMES}


NAMES = ("obs", "next_obs", "reward", "done", "state", "collect_iter")


@pytest.mark.parametrize(
    ("manager", "in_dicts"),
    [
        ({"type": "in_process"}, False),
        ({"type": "vector"}, False),
        ({"type": "in_process"}, True),
    ],
    ids=["columns", "vector", "dicts"],
)
def test_unrolls_are_whole_and_continue_across_episodes(
    tmp_path: Path, manager: dict[str, Any], in_dicts: bool
) -> None:
    found = rows_of(collect(tmp_path, manager, 9, in_dicts))
    assert found["obs"].shape == (9 * 4, T, 2)
    totals = found["obs"][:, :, 0]
    # Each unroll has T consecutive steps of one env, and the unrolls of an env follow each other.
    assert (np.diff(totals, axis=1) == 1).all()
    assert (totals[:, 0] % T == 0).all()
    starts, counts = np.unique(totals[:, 0], return_counts=True)
    assert (starts == T * np.arange(len(starts))).all()
    assert (counts[:-1] == ENVS).all()
    assert (found["reward"] == totals + 1).all()
    # The episode changes exactly after steps that are done, and next_obs is of the old one.
    assert (np.diff(found["obs"][:, :, 1], axis=1) == found["done"][:, :-1]).all()
    assert (found["next_obs"][:, :, 0] == totals + 1).all()
    assert (found["next_obs"][:, :, 1] == found["obs"][:, :, 1]).all()
    # The recurrent state is that of the first step, which counts the steps of its episode.
    assert found["state"].shape == (36, 3)
    assert UnrollPolicy.given >= {"obs", "action", "done"}
    assert not UnrollPolicy.given & {"collect_iter", "seed", "env_id"}


@given(
    steps=st.lists(st.lists(st.sampled_from("srd"), min_size=2, max_size=2), max_size=60),
    flush_every=st.integers(1, 9),
)
def test_writer_leaves_out_resets_and_drops_failed_unrolls(
    steps: list[list[str]], flush_every: int
) -> None:
    """Each round, each of two envs makes a step (s), is reset (r), or fails (d)."""
    length, number, model, expected = 3, 0, [[], []], []
    writer = UnrollWriter(2, length, lambda columns, ends: SampleBatch(columns))
    found: list[int] = []
    for round_, kinds in enumerate(steps):
        writer.record({"n": np.array([number, number + 1])}, round_)
        for env_id, kind in enumerate(kinds):
            if kind == "s":
                model[env_id].append(number + env_id)
            elif kind == "r":
                writer.skip([env_id])
            else:
                writer.drop([env_id])
                model[env_id].clear()
        writer.cut(())
        for each in model:
            if len(each) == length:
                expected += each
                each.clear()
        number += 2
        assert writer.unfinished_rows == sum(map(len, model))
        if round_ % flush_every == 0:
            if (batch := writer.flush()) is not None:
                found += batch.columns["n"].tolist()  # type: ignore[union-attr]
            if round_ % 2:  # as a resumed run does
                state = writer.state_dict()
                writer = UnrollWriter(2, length, lambda columns, ends: SampleBatch(columns))
                writer.load_state_dict(state)
    if (batch := writer.flush()) is not None:
        found += batch.columns["n"].tolist()  # type: ignore[union-attr]
    assert found == expected
    assert writer.pending_rows == 0


@pytest.fixture
def _policy() -> None:
    for policy in (UnrollPolicy, EpisodePolicy):
        name = policy.Config().type
        default_manager().registry("policies").register(name, policy, force_overwrite=True)
    UnrollPolicy.shapes.clear()


def run_cfg() -> dict[str, Any]:
    return {
        "env": {
            "env_id": "CartPole-v1",
            "collector_env_num": 2,
            "evaluator_env_num": 1,
            "n_evaluator_episode": 1,
        },
        "policy": {
            "type": "of_unrolls",
            "collect": {"n_sample": 4, "unroll_len": T},
            "learn": {"batch_size": 8, "learner": {"train_iterations": 12}},
        },
    }


@pytest.mark.usefixtures("_policy")
@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_policy_trains_on_unrolls_in_both_modes(tmp_path: Path, mode: Any) -> None:
    transport = "in_memory" if mode == "parallel" else None
    result = train(run_cfg(), mode, transport, output=tmp_path)
    assert (result.reason, result.train_iter) == ("limit", 12)
    assert set(UnrollPolicy.shapes) == {(8, T, 4)}


@pytest.mark.usefixtures("_policy")
def test_on_policy_unrolls_are_full_although_policies_are_loaded(tmp_path: Path) -> None:
    """Every step that is not at the very end of the run is in an unroll, whoever acted."""
    changes = (
        "policy.on_policy=true",
        "policy.other.commander.max_policy_lag=null",
        "policy.learn.learner.train_iterations=10000",
        "system.max_env_steps=4000",
        "system.collector_num=2",
    )
    UnrollPolicy.marks.clear()
    config = run_cfg()
    del config["env"]["env_id"]
    result = train(config, "parallel", "in_memory", changes, env=Counting, output=tmp_path)
    marks = np.concatenate(UnrollPolicy.marks)
    assert result.train_iter >= 100
    assert marks.shape[1] == T
    assert marks.size >= 0.99 * result.env_steps
    totals = marks[:, :, 1]
    assert (np.diff(totals, axis=1) == 1).all()  # consecutive steps of one env
    assert (np.diff(marks[:, :, 0], axis=1) != 0).any()  # of several versions


@pytest.mark.usefixtures("_policy")
@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_on_policy_episodes_of_several_versions_need_a_lag_without_limit(
    tmp_path: Path, mode: Any
) -> None:
    EpisodePolicy.pieces = 0
    config = run_cfg()
    del config["env"]["env_id"]
    config["policy"] |= {"type": "of_episodes", "on_policy": True}
    transport = "in_memory" if mode == "parallel" else None
    with pytest.raises(ConfigError, match="whole episodes") as caught:
        train(config, mode, transport, env=Counting, output=tmp_path)
    assert caught.value.path == "policy.type"
    config["policy"]["other"] = {"commander": {"max_policy_lag": None}}
    result = train(config, mode, transport, env=Counting, output=tmp_path)
    assert (result.reason, result.train_iter) == ("limit", 12)
    assert EpisodePolicy.pieces > 0
    assert result.policy_lag is not None


@pytest.mark.usefixtures("_policy")
@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("policy.on_policy=true", "policy.on_policy"),
        ("policy.traj_len_inf=true", "policy.traj_len_inf"),
        ("policy.collect.added_columns=[episode_return]", "policy.collect.added_columns"),
        ("policy.other.replay_buffer.type=episode", "policy.other.replay_buffer.type"),
        ("policy.other.replay_buffer.type=sequence", "policy.other.replay_buffer.type"),
        ("policy.collect.parallel_collector.type=marine", "policy.collect"),
    ],
)
def test_what_cannot_give_the_pieces_is_refused(tmp_path: Path, change: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train(run_cfg(), "parallel", "in_memory", (change,), output=tmp_path)
    assert caught.value.path is not None
    assert caught.value.path.startswith(key)
    assert not list(tmp_path.iterdir())
