"""The numbers in the infos of an env, and its own returns, in all results of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dingsdk.pipeline.evaluate import evaluate
from dingsdk.pipeline.train import train
from tests.tensorboard_events import curves_of

SCORED = "tests.unit.envs.scored_envs:Scored"
CONFIG: dict[str, Any] = {
    "exp_name": "run",
    "env": {
        "env_id": SCORED,
        "info_numbers": ["is_success", "score"],
        # Each step pays 2, and the policy sees 0.2: a tenth.
        "wrappers": [{"type": "clip_reward", "max_reward": 0.2, "evaluate": True}],
        "collector_env_num": 2,
        "collector_episode_num": 2,
        "evaluator_env_num": 1,
        "n_evaluator_episode": 4,
        "stop_value": 6.5,
    },
    "policy": {
        "type": "dqn",
        "nstep": 1,
        "collect": {"n_sample": 12},
        "learn": {
            "batch_size": 8,
            "update_per_collect": 2,
            "learner": {"train_iterations": 20},
        },
        "eval": {"evaluator": {"eval_freq": 1000}},
    },
}
HALF = {"mean": 0.5, "min": 0.0, "max": 1.0}


def run(
    tmp_path: Path, mode: str, transport: str = "in_memory", **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Return the result of a run and the content of its ``result.json``."""
    where = {"transport": transport} if mode == "parallel" else {}
    result = train(CONFIG, mode, output=tmp_path, **where, **options)  # type: ignore[arg-type]
    return result, json.loads((result.run_dir / "result.json").read_text())


def values_of(run_dir: Path) -> dict[str, list[float]]:
    return {tag: [value for _, value in each] for tag, each in curves_of(run_dir).items()}


def check(result: Any, written: dict[str, Any]) -> None:
    """Check the files of a run of ``CONFIG``, whose episodes are known."""
    first = written["evaluations"][0]
    # Four episodes of one env: successes are those with an even number, and scores begin at 7.
    assert first["numbers"] == {
        "is_success": HALF,
        "score": {"mean": 8.5, "min": 7.0, "max": 10.0},
    }
    assert (first["mean"], first["min"], first["max"]) == (6.0, 6.0, 6.0)
    assert written["best_return"] == written["last_return"] == 6.0
    assert not written["reached"], "the stop value is compared with the returns of the env"
    status = json.loads((result.run_dir / "status.json").read_text())
    assert status["numbers"]["is_success"] == 0.5
    assert status["evaluations"][0]["numbers"]["score"]["max"] == 10.0
    training = result.training_numbers
    assert training == written["training_numbers"] == status["training_numbers"]
    assert set(training) == {"is_success", "score"}
    assert 0 <= training["is_success"] <= 1
    if result.mode == "serial":
        # In each of ten collects both envs play two episodes more.
        assert training == {"is_success": 0.5, "score": 7 + 19 / 2}
    found = values_of(result.run_dir)
    for axis in ("iter", "step"):
        assert found[f"evaluator_{axis}/is_success_mean"][0] == 0.5
        assert found[f"evaluator_{axis}/score_min"][0] == 7.0
        assert found[f"evaluator_{axis}/score_max"][0] == 10.0
        assert set(found[f"evaluator_{axis}/reward_mean"]) == {6.0}
        assert set(found[f"collector_{axis}/reward_mean"]) == {6.0}
        assert min(found[f"collector_{axis}/score_min"]) == 7.0
        assert all(0 <= each <= 1 for each in found[f"collector_{axis}/is_success_mean"])


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_numbers_and_returns_of_the_env_are_in_all_results(
    tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[str, int, float, Any]] = []

    def after_episode(
        source: str, env_id: int, episode_return: float, numbers: dict[str, float]
    ) -> None:
        told.append((source, env_id, episode_return, numbers))

    result, written = run(tmp_path, mode, callbacks=[after_episode], progress=True)

    check(result, written)
    assert {episode_return for _, _, episode_return, _ in told} == {6.0}
    evaluated = [numbers for source, *_, numbers in told if source == "evaluator"]
    assert evaluated[:4] == [
        {"is_success": success, "score": 7.0 + number}
        for number, success in enumerate([1.0, 0.0] * 2)
    ]
    collected = [
        numbers for source, env_id, _, numbers in told if source[:9] == "collector" and not env_id
    ]
    assert {"is_success": 1.0, "score": 7.0} in collected
    text = capsys.readouterr().out
    assert "mean return 6.0 (6 to 6, 4 episodes), success 0.50, score 8.50 after" in text
    shown = (
        r"\(best 6\.0\), success 0\.50, score [\d.]+, training success [\d.]+, training score \d"
    )
    assert re.search(shown, text)
    again = evaluate(result.run_dir, episodes=2, seed=5)
    assert again.returns == (6.0, 6.0)
    assert again.numbers["score"] == {"mean": 7.5, "min": 7.0, "max": 8.0}


def test_statistics_of_a_serial_collector_are_of_the_episodes_since_the_last_log(
    tmp_path: Path,
) -> None:
    result, _ = run(tmp_path, "serial", sets=["policy.collect.collector.collect_print_freq=0"])

    found = values_of(result.run_dir)
    # Two envs play two episodes each in the twelve steps of a collect.
    assert found["collector_iter/episode_count"][:2] == [4, 4]
    assert found["collector_iter/score_mean"][:2] == [7.5, 9.5]
    assert found["collector_iter/score_max"][:2] == [8.0, 10.0]
    assert found["collector_iter/is_success_mean"][:2] == [0.5, 0.5]


@pytest.mark.slow
def test_numbers_travel_from_worker_processes(tmp_path: Path) -> None:
    pytest.importorskip("dingsdk_shared_memory")
    result, written = run(tmp_path, "parallel", "shared_memory")
    check(result, written)


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_name_that_no_episode_brings_is_reported_once(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    sets = ["env.info_numbers=[score, is_sucess]", "policy.eval.evaluator.eval_freq=5"]

    result, _ = run(tmp_path, mode, sets=sets)

    assert len(result.evaluations) > 1
    texts = [each.getMessage() for each in caplog.records if "info_numbers" in each.getMessage()]
    (text,) = texts
    assert "names 'is_sucess', and so far no last info" in text
    assert text.endswith("it had score")
