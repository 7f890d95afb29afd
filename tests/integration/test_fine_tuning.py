"""Runs that begin with weights of another run: ``dingsdk train --from``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import dingsdk
from dingsdk.cli.root import root
from dingsdk.config import load_config
from dingsdk.errors import CheckpointError, CheckpointMissingError, ConfigError
from dingsdk.worker import read_dataset
from dingsdk.worker.learner.checkpoint import load_checkpoint

from .short_runs import QUICK
from .test_demonstrations import recorded

# The batch is larger than what is collected, so that the last checkpoint has the first weights.
UNTRAINED = (
    *(each for each in QUICK if "replay_buffer_size" not in each),
    "policy.learn.batch_size=5000",
    "system.max_env_steps=64",
)


STATISTICS = "encoder.features."
"""Prefix of the statistics of observations, which the collected steps of a run are added to."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a trained policy."""
    output = tmp_path_factory.mktemp("source")
    sets = (*QUICK, "policy.learn.learner.train_iterations=20", "policy.normalize.obs=true")
    return dingsdk.train("cartpole-dqn", sets=sets, output=output).run_dir


def train(tmp_path: Path, mode: Any, *sets: str, **options: Any) -> dingsdk.RunResult:
    sets = (*UNTRAINED, "policy.normalize.obs=true", *sets)
    return dingsdk.train("cartpole-dqn", mode, sets=sets, output=tmp_path, seed=5, **options)


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_run_begins_with_the_weights_of_the_best_checkpoint(
    source: Path, tmp_path: Path, mode: Any
) -> None:
    result = train(tmp_path, mode, start_from=source)

    found = load_checkpoint(result.run_dir / "ckpt")
    best = load_checkpoint(source / "ckpt" / "ckpt_best.safetensors")
    assert found.state["model"].keys() == best.state["model"].keys()
    for key, tensor in best.state["model"].items():
        if key.startswith(STATISTICS):
            continue
        assert torch.equal(found.state["model"][key], tensor), key
    counts = [each.state["model"][f"{STATISTICS}count"] for each in (found, best)]
    assert counts[0] == counts[1] + result.samples.collected
    assert best.state["optimizer"]["exp_avg"].any()
    assert not found.state["optimizer"]["exp_avg"].any()
    assert (found.iteration, found.state["optimizer"]["step"]) == (0, 0)
    assert result.env_steps < 100
    origin = {"checkpoint": str(best.path), "keep": [], "parts": None}
    assert json.loads((result.run_dir / "result.json").read_text())["started_from"] == origin
    hook = load_config(result.run_dir / "config.yaml")["policy"]["learn"]["learner"]["hook"]
    assert hook["load_ckpt_before_run"]["ext_args"] == {"load_path": str(best.path), "keep": []}


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_kept_optimizer_and_counters_continue(source: Path, tmp_path: Path, mode: Any) -> None:
    best = load_checkpoint(source / "ckpt" / "ckpt_best.safetensors")
    limit = f"system.max_env_steps={best.envstep + 64}"

    result = train(tmp_path, mode, limit, start_from=best.path, keep=["optimizer", "counters"])

    found = load_checkpoint(result.run_dir / "ckpt")
    moments = [each.state["optimizer"]["exp_avg"] for each in (found, best)]
    assert torch.equal(*moments)
    assert found.iteration == result.train_iter == best.iteration
    assert best.envstep + 64 <= result.env_steps < best.envstep + 128


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_run_with_another_head_takes_the_encoder(source: Path, tmp_path: Path, mode: Any) -> None:
    result = train(
        tmp_path, mode, "policy.model.dueling=true", start_from=source, parts=["encoder"]
    )

    found = load_checkpoint(result.run_dir / "ckpt").state["model"]
    best = load_checkpoint(source / "ckpt" / "ckpt_best.safetensors").state["model"]
    taken = [key for key in found if key in best and torch.equal(found[key], best[key])]
    encoder = [key for key in found if key.startswith("encoder.")]
    assert taken == [key for key in encoder if not key.startswith(STATISTICS)]


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_nothing_is_started_if_the_model_does_not_fit(
    source: Path, tmp_path: Path, mode: Any
) -> None:
    output = tmp_path / "runs"
    with pytest.raises(CheckpointError, match=r"model.value.bias is absent there.*--parts encoder"):
        train(output, mode, "policy.model.dueling=true", start_from=source)
    with pytest.raises(CheckpointError, match=r"no part 'tail'\. Parts in"):
        train(output, mode, start_from=source, parts=["tail"])
    with pytest.raises(CheckpointMissingError, match="nowhere"):
        train(output, mode, start_from=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="expected one of optimizer, counters"):
        train(output, mode, start_from=source, keep=["optimiser"])
    with pytest.raises(ConfigError, match="keep: expected a list"):
        train(output, mode, start_from=source, keep=5)
    with pytest.raises(ConfigError, match="keep has 'optimizer'"):
        train(output, mode, start_from=source, keep=["optimizer"], parts=["encoder"])
    with pytest.raises(ConfigError, match="start_from"):
        train(output, mode, keep=["optimizer"])
    loading = f"policy.learn.learner.hook.load_ckpt_before_run={source / 'ckpt'}"
    with pytest.raises(ConfigError, match="loads a checkpoint itself"):
        train(output, mode, loading, start_from=source)

    assert not output.exists()


def test_fine_tuned_run_is_resumed_without_the_run_that_it_began_with(
    source: Path, tmp_path: Path
) -> None:
    copied = shutil.copytree(source, tmp_path / "copied")
    sets = ("system.save_every=0.0001", "policy.learn.batch_size=16")
    run = train(tmp_path, "serial", *sets, start_from=copied).run_dir
    shutil.rmtree(copied)

    result = dingsdk.resume(run, sets=["system.max_env_steps=128"])

    assert result.env_steps >= 128


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--resume", "run"], "give one of them"),
        (
            ["cartpole-dqn", "--keep", "optimizer", "--parts", "a"],
            "expected one of optimizer, counters, found ['optimizer', 'adam']",
        ),
    ],
)
def test_command_line_refuses_contradictions(source: Path, options: list[str], text: str) -> None:
    options = [each.replace("optimizer", "optimizer,adam") for each in options]
    done = CliRunner().invoke(root, ["train", "--from", str(source), *options], obj={})

    assert done.exit_code == 2 or isinstance(done.exception, ConfigError)
    assert text in done.output + str(done.exception)


def test_keep_without_from_is_a_usage_error() -> None:
    done = CliRunner().invoke(root, ["train", "cartpole-dqn", "--keep", "counters"], obj={})

    assert done.exit_code == 2
    assert "give --from RUN too" in done.output


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_statistics_of_the_data_set_are_added_to_those_of_the_first_run(
    source: Path, tmp_path: Path, mode: Any
) -> None:
    rows, path = 20, tmp_path / "data.npz"
    shown = read_dataset(recorded(path, rows)).columns["obs"]
    config = {
        "env": {"env_id": "CartPole-v1", "evaluator_env_num": 1, "n_evaluator_episode": 1},
        "policy": {
            "type": "dqn",
            "normalize": {"obs": True},
            "learn": {"batch_size": 8, "learner": {"train_iterations": 4}},
            "collect": {"collector": {"type": "dataset", "path": str(path)}},
        },
    }
    begun = load_checkpoint(source / "ckpt" / "ckpt_best.safetensors").state["model"]
    config["policy"]["model"] = load_config(source / "config.yaml")["policy"]["model"]

    result = dingsdk.train(config, mode, start_from=source, output=tmp_path)

    found = load_checkpoint(result.checkpoints["latest"]).state["model"]
    before, after = (float(each[f"{STATISTICS}count"]) for each in (begun, found))
    assert after == before + rows
    torch.testing.assert_close(
        found[f"{STATISTICS}mean"] * after,
        begun[f"{STATISTICS}mean"] * before + torch.from_numpy(shown).double().sum(0),
    )
