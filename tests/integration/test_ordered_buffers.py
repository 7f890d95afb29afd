"""Training on sequences and on whole episodes, in both modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError, DingError
from dingsdk.pipeline.context import RunResult
from dingsdk.pipeline.train import train
from dingsdk.policy import LearnMode
from dingsdk.policy.dqn import DQNPolicy
from dingsdk.worker.replay_buffer import (
    EpisodeReplayBuffer,
    NaiveReplayBuffer,
)
from dingsdk.worker.replay_buffer.sampler.uniform import UniformSampler
from tests.own_plugins import using

from . import short_runs

BUFFER = "policy.other.replay_buffer"


class SequencePolicy(DQNPolicy):
    """Trains on all steps of sequences, and checks that they follow each other."""

    trains_on = frozenset({"sequences"})

    batches: ClassVar[int] = 0

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        size, time = batch["obs"].shape[:2]
        assert (size, time) == (16, 6)
        mask = batch["mask"] if "mask" in batch else torch.ones(size, time, dtype=torch.bool)
        follows = mask[:, :-1] & mask[:, 1:]
        assert torch.equal(batch["next_obs"][:, :-1][follows], batch["obs"][:, 1:][follows])
        assert not batch["done"][:, :-1][follows].any()
        assert not batch["obs"][~mask].any()
        type(self).batches += 1
        return super().learn({key: column.flatten(0, 1) for key, column in batch.items()})


class EpisodePolicy(DQNPolicy):
    """Trains on the steps of whole episodes, and checks that they are whole."""

    trains_on = frozenset({"episodes"})

    batches: ClassVar[int] = 0

    @property
    def learn_mode(self) -> LearnMode:
        mode = super().learn_mode

        def forward(data: list[SampleBatch]) -> Any:
            return mode.forward(self._steps(data))

        return mode._replace(forward=forward)

    def _steps(self, data: list[SampleBatch]) -> SampleBatch:
        assert len(data) == 16
        for episode in data:
            columns = episode.columns
            assert np.array_equal(columns["next_obs"][:-1], columns["obs"][1:])
            assert columns["done"].tolist() == [False] * (len(episode) - 1) + [True]
            assert np.abs(columns["obs"][0]).max() <= 0.05  # CartPole's initial range
        type(self).batches += 1
        steps = SampleBatch.concat(data)
        if "terminated" in steps.columns:  # transitions, not train samples
            bootstrap = np.where(steps.columns["terminated"], 0.0, 0.99)
            steps = steps.with_columns(discount=bootstrap.astype(np.float32))
        return steps


class VersionedPolicy(DQNPolicy):
    """Collects the versions of the trained rows."""

    versions: ClassVar[set[int]] = set()

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.versions.update(batch["collect_iter"].tolist())
        return super().learn(batch)


class SerialBuffer(NaiveReplayBuffer):
    modes: ClassVar[frozenset[str]] = frozenset({"serial"})


class ReturnSampler(UniformSampler):
    """Records the episode return, env and reward of each pushed row."""

    needs_columns: ClassVar[tuple[str, ...]] = ("episode_return", "env_id", "reward")
    seen: ClassVar[list[tuple[Any, ...]]] = []

    def on_insert(self, where: Any, rows: Any, priorities: Any = None) -> None:
        columns = (rows if isinstance(rows, SampleBatch) else SampleBatch.from_rows(rows)).columns
        self.seen += zip(*(columns[name].tolist() for name in self.needs_columns), strict=True)


class NeedsLives(UniformSampler):
    """Needs a column that the policy does not give."""

    needs_columns: ClassVar[tuple[str, ...]] = ("reward", "lives")


POLICIES = {
    "sequences": SequencePolicy,
    "episodes": EpisodePolicy,
    "versioned": VersionedPolicy,
}
SAMPLERS = {"returns": ReturnSampler, "lives": NeedsLives}


def run(tmp_path: Path, mode: Any, *sets: str, **buffers: type[NaiveReplayBuffer]) -> RunResult:
    sets = (
        *(*short_runs.QUICK, "policy.nstep=1", "policy.learn.learner.train_iterations=60", *sets),
        *(("system.transport.check_wire=true",) if mode == "parallel" else ()),
    )
    buffers = {"serial": SerialBuffer, **buffers}
    with using(policies=POLICIES, samplers=SAMPLERS, buffers=buffers):
        return train("cartpole-dqn", mode, sets=sets, seed=3, output=tmp_path)


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param((), id="cut", marks=pytest.mark.slow),
        pytest.param((f"{BUFFER}.sampler.pad=true",), id="padded"),
        pytest.param((f"{BUFFER}.sampler.trajectory=env_id",), id="of-each-env"),
    ],
)
def test_sequences_are_trained_on(tmp_path: Path, mode: str, sampler: tuple[str, ...]) -> None:
    SequencePolicy.batches = 0
    sequences = ("policy.type=sequences", f"{BUFFER}.type=sequence", f"{BUFFER}.sequence_length=6")
    result = run(tmp_path, mode, *sequences, *sampler)
    assert (result.reason, result.train_iter) == ("limit", 60)
    assert SequencePolicy.batches == 60


COLLECTED = ("policy.collect.collector.type=episode", "policy.collect.n_sample=null")


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_both_modes_train_on_episodes_at_the_same_pace(tmp_path: Path, mode: str) -> None:
    class CountingBuffer(EpisodeReplayBuffer):
        pushed: ClassVar[int] = 0

        def push(self, data: Any, *args: Any, **kwargs: Any) -> None:
            type(self).pushed += len(data)
            super().push(data, *args, **kwargs)

    sets = (
        *("policy.type=episodes", f"{BUFFER}.type=counting", f"{BUFFER}.replay_buffer_size=32"),
        *(*COLLECTED, "policy.collect.n_episode=4"),
    )
    EpisodePolicy.batches = 0
    result = run(tmp_path, mode, *sets, counting=CountingBuffer)
    assert (result.reason, result.train_iter) == ("limit", 60)
    assert EpisodePolicy.batches == 60
    # Two batches for each collect, 60 in all; the first ones wait for 16 episodes.
    paced, early_or_late = 30 * 4, 16 + 2 * 2 * 4 + 4 * 4
    assert paced - early_or_late <= CountingBuffer.pushed <= paced + early_or_late


def test_buffer_of_episodes_needs_a_collector_of_episodes_in_both_modes(tmp_path: Path) -> None:
    texts = set()
    for mode in ("serial", "parallel"):
        with pytest.raises(ConfigError, match="choose the collector 'episode'") as caught:
            run(tmp_path, mode, "policy.type=episodes", f"{BUFFER}.type=episode")
        assert caught.value.path == f"{BUFFER}.type"
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_a_buffer_that_does_not_support_the_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SerialBuffer") as caught:
        run(tmp_path, "parallel", f"{BUFFER}.type=serial")
    assert caught.value.path == f"{BUFFER}.type"
    assert run(tmp_path, "serial", f"{BUFFER}.type=serial").reason == "limit"


@pytest.mark.parametrize(
    "sets",
    [
        pytest.param((), id="columns"),
        pytest.param(("env_manager.type=async_subprocess",), id="rows", marks=pytest.mark.slow),
        pytest.param(
            (
                "policy.collect.collector.type=episode",
                "policy.collect.collector.get_train_sample=true",
                "policy.collect.n_sample=null",
                "policy.collect.n_episode=4",
            ),
            id="episodes",
        ),
    ],
)
@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_a_sampler_sees_the_return_of_whole_episodes_and_their_env(
    tmp_path: Path, mode: str, sets: tuple[str, ...]
) -> None:
    ReturnSampler.seen.clear()
    result = run(tmp_path, mode, f"{BUFFER}.sampler.type=returns", *sets)
    assert (result.reason, result.train_iter) == ("limit", 60)
    envs, rows = set(), ReturnSampler.seen
    while rows:
        # CartPole's reward is 1 per step, so an episode has as many rows as its return.
        episode_return, env_id, _ = rows[0]
        episode, rows = rows[: int(episode_return)], rows[int(episode_return) :]
        assert set(episode) == {(episode_return, env_id, 1.0)}
        assert rows == [] or len(episode) == episode_return
        envs.add(env_id)
    assert envs == {0, 1, 2, 3}


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_rows_of_an_episode_keep_the_versions_that_collected_them(
    tmp_path: Path, mode: str
) -> None:
    VersionedPolicy.versions = set()
    sets = ("policy.type=versioned", "policy.traj_len_inf=true", f"{BUFFER}.type=advanced")
    often = "policy.collect.parallel_collector.update_policy_second=0"
    result = run(tmp_path, mode, *sets, often, "system.learner.send_policy_freq=1")
    assert (result.reason, result.train_iter) == ("limit", 60)
    assert len(VersionedPolicy.versions) > 3


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_run_without_a_needed_column_ends_at_its_first_push(tmp_path: Path, mode: Any) -> None:
    with pytest.raises(DingError, match="the column 'lives'"):
        run(tmp_path, mode, f"{BUFFER}.sampler.type=lives")
