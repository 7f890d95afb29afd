"""Runs in which one inference process computes the actions of all collectors."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from dingsdk.pipeline.train import train
from dingsdk.worker.inference.client import FOLDER

from .clusters import ProcessCluster
from .short_runs import QUICK

SETS = (*QUICK, "system.roles.inference.num=1")


def answered(run_dir: Path) -> tuple[int, int]:
    """Return how many requests the server of a run answered, in how many batches."""
    (file,) = (run_dir / "log" / "inference").glob("inference-0*")
    found = re.search(r"acted for (\d+) requests in (\d+) batches", file.read_text())
    assert found is not None
    return int(found[1]), int(found[2])


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["flask_fs", "shared_memory"])
def test_server_computes_the_actions_of_collectors(transport: str, tmp_path: Path) -> None:
    if transport == "shared_memory":
        pytest.importorskip("dingsdk_shared_memory")
    # Long enough for the server to start. Until then collectors compute their own actions.
    sets = (*SETS, "policy.learn.learner.train_iterations=2500")
    result = train("cartpole-dqn", "parallel", transport, sets=sets, output=tmp_path)

    assert (result.reason, result.train_iter) == ("limit", 2500)
    requests, batches = answered(result.run_dir)
    assert requests > 20
    assert 0 < batches <= requests
    assert list((result.run_dir / FOLDER).glob("*.address")) == []


@pytest.mark.slow
def test_on_policy_run_uses_the_server(tmp_path: Path) -> None:
    sets = (
        "system.roles.inference.num=1",
        "policy.collect.n_sample=128",
        "policy.learn.batch_size=64",
        "policy.learn.epoch_per_collect=1",
        "policy.learn.learner.train_iterations=20",
        "env.stop_value=1000",
    )
    result = train("cartpole-ppo", "parallel", "flask_fs", sets=sets, output=tmp_path)

    assert result.reason == "limit"
    assert result.policy_lag == {"mean": 0.0, "p99": 0, "largest": 0}
    assert answered(result.run_dir)[0] > 20


@pytest.mark.slow
def test_collectors_continue_while_the_server_restarts(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path / "run", ("system.roles.inference.num=1",)) as cluster:
        folder = cluster.run_dir / FOLDER
        cluster.expect(lambda: bool(list(folder.glob("*.address"))))
        address = (folder / "inference-0.address").read_text()
        before = cluster.incarnation("inference-0")

        os.kill(cluster.pid("inference-0"), signal.SIGKILL)
        steps = cluster.env_steps()
        cluster.expect(lambda: cluster.env_steps() > steps + 100)
        cluster.expect(lambda: cluster.incarnation("inference-0") > before)
        cluster.expect(lambda: (folder / "inference-0.address").read_text() != address)
        cluster.expect_training()
