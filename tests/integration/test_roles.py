"""Roles started by hand, each in its own process, as on several hosts."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dingsdk.cli import main
from dingsdk.worker.learner.checkpoint import load_checkpoint

from .commands import Site, iterations, read_until

PATIENCE_S = 90.0
"""Time limit where no figure is documented."""
SETS = [
    "--set", "env.evaluator_env_num=2", "--set", "env.n_evaluator_episode=2",
    "--set", "policy.learn.batch_size=32", "--set", "policy.collect.n_sample=32",
    "--set", "env.stop_value=.inf",
]  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with closing(Site(tmp_path, *SETS)) as made:
        yield made


@pytest.mark.slow
def test_replay_server_started_by_hand_holds_the_rows(site: Site) -> None:
    served = ("--set", "system.replay.type=server")
    coordinator = site.start("coordinator", "--set", "system.max_env_steps=600", *served)
    address = read_until(coordinator, r"^coordinator: (http\S+)$")[1]
    workers = [
        site.start_worker(role, address, *served)
        for role in ("replay-server", "learner", "collector")
    ]
    _, err = coordinator.communicate(timeout=PATIENCE_S)
    assert coordinator.returncode == 0, err
    for worker in workers:
        out, err = worker.communicate(timeout=PATIENCE_S)
        assert (worker.returncode, err) == (0, "")
        assert "the run is over" in out
    found = json.loads((site.data / "result.json").read_text())["samples"]
    assert found["acknowledged"] == found["live"] + sum(found["evicted"].values()) > 0
    assert (site.data / "replay" / "checkpoint.json").is_file()


@pytest.mark.slow
def test_workers_leave_and_others_take_over(site: Site) -> None:
    coordinator = site.start("coordinator")
    address = read_until(coordinator, r"^coordinator: (\S+)$")[1]
    first = site.start_worker("learner", address, "--id", "first")
    collector = site.start_worker("collector", address)
    read_until(coordinator, r"[1-9]\d* iterations")

    left_at = time.monotonic()
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - left_at < 10
    assert (first.returncode, "Traceback" in err) == (130, False)
    assert "first left" in out
    saved = load_checkpoint(site.data / "ckpt").iteration
    assert saved > 0

    second = site.start_worker("learner", address, "--id", "second")
    read_until(second, "joined")
    iterations(coordinator, saved)

    collector.send_signal(signal.SIGTERM)
    assert collector.wait(PATIENCE_S) == 143
    coordinator.send_signal(signal.SIGINT)
    assert coordinator.wait(PATIENCE_S) == 130
    assert second.wait(PATIENCE_S) == 0
    assert load_checkpoint(site.data / "ckpt").iteration > saved


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["collector", "--coordinator", "http://127.0.0.1:9"], "in_memory"),
        (["coordinator", "--port", "70000"], "70000"),
        (["coordinator", "--transport", "flask_fs", "--host", "0.0.0.0"], "secret"),
        (["learner", "--coordinator", "nonsense", "--transport", "flask_fs"], "nonsense"),
        (
            ["learner", "--transport", "flask_fs", "--coordinator", "http://h:1", "--id", "a/b"],
            "--id",
        ),
    ],
)
def test_mistakes_are_reported_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    role, *rest = arguments
    code = main([role, "--config", "cartpole-dqn", "--data", str(tmp_path / "run"), *rest])

    err = capsys.readouterr().err
    assert code == 2, err
    assert told in err
    assert "Traceback" not in err
