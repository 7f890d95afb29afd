"""Runs of both modes report what happened to their samples, and check it if configured."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dingsdk import train
from dingsdk.errors import SamplesLostError
from dingsdk.pipeline.status_file import read_status
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.policy import R2D2Policy
from dingsdk.worker import NaiveReplayBuffer
from dingsdk.worker.coordinator.live_payloads import LivePayloads

BUFFER = "policy.other.replay_buffer"
SETS = (
    "system.validate_state=true",
    "system.max_env_steps=1500",
    "env.stop_value=.inf",
    f"{BUFFER}.replay_buffer_size=512",
)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(mode: Any, example: str = "cartpole-dqn", *sets: str) -> dict[str, Any]:
    with use_manager(PluginManager()):
        result = train(example, mode=mode, sets=(*SETS, *sets), seed=3)
    return samples_of(result.run_dir)


def samples_of(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "result.json").read_text())["samples"]
    assert read_status(run_dir)["samples"] == found
    return found


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize(
    "sets",
    [
        (),
        (f"{BUFFER}.type=advanced", "policy.priority=true"),
        (f"{BUFFER}.type=elastic",),
    ],
    ids=["naive", "prioritized", "elastic"],
)
def test_samples_of_a_run_are_all_accounted_for(mode: str, sets: tuple[str, ...]) -> None:
    found = run(mode, "cartpole-dqn", *sets)
    assert found["collected"] >= found["acknowledged"] >= 1024
    assert found["live"] == 512
    assert found["acknowledged"] == 512 + sum(found["evicted"].values())
    assert found["evicted"]["overwritten"] > 0
    assert found["trained"] > found["acknowledged"] / 2


def test_on_policy_samples_leave_after_training() -> None:
    found = run("serial", "cartpole-ppo")
    assert found["evicted"] == {"trained": found["collected"]}
    assert found["live"] == 0


class CountingR2D2(R2D2Policy):
    """Counts the rows of the sequences that it trains on."""

    rows = 0

    def learn(self, batch: Any) -> Any:
        CountingR2D2.rows += int(batch["mask"].sum()) if "mask" in batch else batch["done"].numel()
        return super().learn(batch)


@pytest.mark.parametrize("place", ["serial", "learner", "server"])
@pytest.mark.parametrize("is_padded", [True, False])
def test_trained_rows_of_sequences_are_counted_without_padding(place: str, is_padded: bool) -> None:
    CountingR2D2.rows = 0
    sets = (
        *SETS,
        f"policy.other.replay_buffer.sampler.pad={is_padded}",
        "policy.other.replay_buffer.replay_buffer_size=2048",
        "policy.learn.sequence_length=4",
        "policy.learn.burn_in=2",
        "policy.other.replay_buffer.sequence_length=4",
        "policy.other.replay_buffer.sampler.burn_in=2",
    )
    mode: Any = "serial" if place == "serial" else "parallel"
    if mode == "parallel":
        sets = (*sets, f"system.replay.type={place}")
    with use_manager(PluginManager()):
        result = train("cartpole-r2d2", mode, sets=sets, policy=CountingR2D2)

    assert result.samples.trained == CountingR2D2.rows > 0


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize(
    ("validates", "interval_s", "last_step"),
    [(True, math.inf, 1_500), (True, 0.0, 10**9), (False, 0.0, 1_500)],
    ids=["at its end", "meanwhile", "not"],
)
def test_run_that_loses_samples_ends_with_an_error_if_it_checks_them(
    mode: str, validates: bool, interval_s: float, last_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dingsdk.pipeline.serial._VALIDATE_S", interval_s)
    monkeypatch.setattr("dingsdk.pipeline.parallel.PACES_S", interval_s)
    push, add = LivePayloads.push, NaiveReplayBuffer.push

    def forget(self: LivePayloads, *args: Any) -> bool:
        is_new = push(self, *args)
        self._acked_rows -= is_new
        return is_new

    def drop(self: NaiveReplayBuffer, data: Any, *args: Any, **kwargs: Any) -> None:
        add(self, data[1:], *args, **kwargs)

    monkeypatch.setattr(LivePayloads, "push", forget)
    if mode == "serial":
        monkeypatch.setattr(NaiveReplayBuffer, "push", drop)
    sets = (f"system.validate_state={validates}", f"system.max_env_steps={last_step}")
    with pytest.raises(SamplesLostError) if validates else nullcontext():
        run(mode, "cartpole-dqn", *sets)
