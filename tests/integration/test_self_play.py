"""Self-play of two by one config, in both modes."""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.pipeline.train import train

pytest.importorskip("pettingzoo", reason="the extra multiagent is not installed")

SHORT = (
    "env.collector_env_num=4",
    "env.evaluator_env_num=2",
    "env.n_evaluator_episode=4",
    "env.stop_value=2",  # a win is 1
    "policy.collect.n_sample=32",
    "policy.learn.batch_size=32",
    "policy.learn.update_per_collect=4",
    "policy.learn.learner.train_iterations=200",
    "policy.other.league.one_phase_step=50",
    "policy.eval.evaluator.eval_freq=100",
)


@pytest.mark.parametrize("kind", ["sample_1v1", "episode_1v1"])
def test_serial_run_plays_itself_and_its_past(kind: str, tmp_path: Any) -> None:
    sets = (*SHORT, f"policy.collect.collector.type={kind}")
    if kind == "episode_1v1":
        sets += ("policy.collect.n_episode=8", "policy.collect.collector.get_train_sample=true")
    result = train("tictactoe-selfplay", sets=sets, output=tmp_path)

    assert (result.reason, result.train_iter) == ("limit", 200)
    assert {each.episodes for each in result.evaluations} == {4}


def test_parallel_run_plays_itself_and_its_past(tmp_path: Any) -> None:
    result = train("tictactoe-selfplay", mode="parallel", sets=SHORT, output=tmp_path)

    assert (result.reason, result.train_iter) == ("limit", 200)
    assert result.env_steps > 0
    assert result.evaluations[-1].train_iter == 200
