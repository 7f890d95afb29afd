"""Learners started by torchrun, or by hand with the environment variables of torchrun."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from pathlib import Path

import pytest

from dingsdk.cli import main
from dingsdk.worker.learner.checkpoint import load_checkpoint

from .commands import Program, Site, iterations, read_until

pytestmark = pytest.mark.slow
PATIENCE_S = 120.0
SETS = (
    "system.learner_num=2",
    "env.stop_value=.inf",
    "env.collector_env_num=2",
    "system.transport.lost_after_s=5",
    "system.learner.send_policy_freq=5",
)


def site_of(folder: Path, train_iterations: int) -> Site:
    limit = f"policy.learn.learner.train_iterations={train_iterations}"
    return Site(folder, *(part for each in (*SETS, limit) for part in ("--set", each)))


def begin(site: Site) -> tuple[Program, str]:
    """Start a coordinator and a collector; return the coordinator and its address."""
    coordinator = site.start("coordinator")
    address = read_until(coordinator, r"^coordinator: (\S+)$")[1]
    site.start_worker("collector", address)
    return coordinator, address


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_torchrun_starts_learners_that_train_together(tmp_path: Path) -> None:
    with closing(site_of(tmp_path, 300)) as site:
        coordinator, address = begin(site)
        options = ("--nproc-per-node", "2", "--master-addr", "127.0.0.1")
        options += ("--master-port", free_port(), "-m")
        learners = site.start_worker("learner", address, before=("torch.distributed.run", *options))
        _, err = coordinator.communicate(timeout=PATIENCE_S)
        assert coordinator.returncode == 0, err
        out, err = learners.communicate(timeout=PATIENCE_S)
        assert learners.returncode == 0, err
        assert out.count("the run is over") == 2
        assert json.loads((site.data / "result.json").read_text())["train_iter"] == 300
        assert load_checkpoint(site.data / "ckpt").iteration == 300


def test_rank_that_is_killed_and_started_again_joins_the_run(tmp_path: Path) -> None:
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    with closing(site_of(tmp_path, 1_000_000)) as site:
        coordinator, address = begin(site)
        first, other = (site.start_worker("learner", address, RANK=rank, **place) for rank in "01")
        iterations(coordinator, 20)
        other.kill()
        other.wait()
        trained = json.loads((site.data / "status.json").read_text())["train_iter"]
        again = site.start_worker("learner", address, RANK="1", **place)
        iterations(coordinator, trained + 40)
        coordinator.terminate()
        said = coordinator.communicate(timeout=PATIENCE_S)
        for learner in (first, again):
            said += learner.communicate(timeout=PATIENCE_S)
        assert [each.returncode for each in (first, again)] == [0, 0], said
        assert "rank 1 of the learner is gone" in "".join(said)


def test_torchrun_does_not_start_whole_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert main(["train", "cartpole-dqn"]) == 2
    assert "torchrun starts one run several times" in capsys.readouterr().err
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")  # WORLD_SIZE alone, as other launchers set it
    assert main(["train", "no such example"]) == 2
    assert "torchrun" not in capsys.readouterr().err
