"""Parallel runs whose replay buffer is in a replay server."""

from __future__ import annotations

import json
import multiprocessing
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from dingsdk import ReplayServer, resume, train
from dingsdk.errors import AuthError, ConfigError, ServerLostError, TaskFailedError
from dingsdk.pipeline.context import RunContext, RunResult
from dingsdk.pipeline.parallel import parallel_pipeline
from dingsdk.pipeline.supervisor import Supervisor
from dingsdk.pipeline.train import compile_run, run_pipeline
from dingsdk.worker.replay_server.served_buffer import ServedBuffer

from ..unit.replay_server.serving import ServerProcess
from . import short_runs

SERVED = ("system.replay.type=server", "system.validate_state=true")


def context_of(
    tmp_path: Path, *sets: str, transport: str = "in_memory", **options: Any
) -> RunContext:
    sets = (*short_runs.QUICK, *SERVED, *sets)
    cfg = compile_run("cartpole-dqn", mode="parallel", transport=transport, sets=sets, seed=3)
    return RunContext(cfg=cfg, run_dir=tmp_path / "run", **options)


def run(tmp_path: Path, *sets: str, **options: Any) -> tuple[RunResult, Any]:
    (tmp_path / "run").mkdir()
    context = context_of(tmp_path, *sets, **options)
    result = parallel_pipeline(context)
    return result, context.status().samples


@pytest.mark.parametrize("concurrency", ["greenlets", "threads"])
def test_run_trains_from_its_own_server_and_accounts_for_each_row(
    tmp_path: Path, concurrency: str
) -> None:
    result, samples = run(
        tmp_path, f"system.transport.concurrency={concurrency}", "system.transport.check_wire=true"
    )

    assert (result.reason, result.train_iter) == ("limit", 200)
    assert samples.trained == 200 * 16
    assert samples.acknowledged >= 16
    assert samples.acknowledged == samples.live + sum(samples.evicted.values())
    assert samples.live <= 500
    assert not (tmp_path / "run" / "replay").exists()
    assert not list((tmp_path / "run").rglob("*.log"))


SLOW_TO_TRAIN = (
    "system.max_env_steps=200",
    "policy.learn.update_per_collect=40",
    "policy.learn.learner.train_iterations=1000000",
)
"""A learner that is behind when the env steps are used up: 40 iterations for 16 rows."""


def test_run_trains_on_what_was_collected_before_it_ends(tmp_path: Path) -> None:
    result, samples = run(tmp_path, *SLOW_TO_TRAIN, "system.transport.concurrency=threads")

    assert (result.reason, samples.trained) == ("limit", 16 * result.train_iter)
    assert result.train_iter == (samples.acknowledged - 16) * 40 // 16


def test_run_ends_although_a_shared_server_always_gives_batches(tmp_path: Path) -> None:
    with ReplayServer({}, {"type": "naive"}, tmp_path / "served") as server:
        own = (
            f"system.replay.address={server.address}",
            f"system.replay.path={tmp_path / 'served'}",
        )
        result, samples = run(tmp_path, *SLOW_TO_TRAIN, *own)

    assert result.reason == "limit"
    assert result.train_iter >= (samples.acknowledged - 16) * 40 // 16


def served_rows(folder: Path) -> tuple[int, list[float]]:
    """Return the number of rows pushed to a server, and its priorities."""
    with ServedBuffer({"type": "advanced", "replay_buffer_size": 500}, folder) as buffer:
        state = buffer.table.state_dict()
        return buffer.table.push_count, state["sampler"]["priorities"].tolist()


def test_resumed_run_keeps_rows_priorities_and_counters(tmp_path: Path) -> None:
    sets = (
        "system.journal.enabled=true",
        "policy.other.replay_buffer.type=advanced",
        "policy.priority=true",
    )
    folder = tmp_path / "run" / "replay"
    (tmp_path / "run").mkdir()
    context = context_of(tmp_path, *sets)
    first = run_pipeline(context, "parallel")
    before = context.status().samples
    pushed, priorities = served_rows(folder)
    assert before is not None
    assert (first.reason, first.train_iter, before.trained) == ("limit", 200, 200 * 16)
    assert pushed >= before.acknowledged  # collectors may insert after the learner has ended
    assert len(set(priorities)) > 16  # set by training

    iterations = "policy.learn.learner.train_iterations"
    with pytest.raises(ConfigError, match="replay"):
        resume(tmp_path / "run", sets=["system.replay.type=learner"])
    second = resume(tmp_path / "run", sets=[f"{iterations}=300"])
    after = json.loads((tmp_path / "run" / "result.json").read_text())["samples"]
    assert (second.reason, second.train_iter) == ("limit", 300)
    assert second.env_steps > first.env_steps
    assert after["trained"] == 300 * 16
    assert after["acknowledged"] == after["live"] + sum(after["evicted"].values())
    assert served_rows(folder)[0] > pushed


def test_run_that_reached_its_stop_value_leaves_no_rows(tmp_path: Path) -> None:
    result, _ = run(tmp_path, "system.journal.enabled=true", "env.stop_value=1")
    assert result.reason == "stop_value"
    assert not (tmp_path / "run" / "replay").exists()
    assert not (tmp_path / "run" / "journal").exists()


@pytest.mark.slow
def test_two_runs_share_a_server_and_the_end_of_one_does_not_stop_the_other(tmp_path: Path) -> None:
    limiter = {
        "type": "samples_per_insert",
        "samples_per_insert": 4.0,
        "min_size": 64,
        "error_buffer": 1024.0,
    }
    limits = (f"limiter.{key}={value}" for key, value in limiter.items())
    buffer = ("type=naive", "replay_buffer_size=5000", *limits)
    results: dict[str, RunResult] = {}
    with ServerProcess(tmp_path / "served", *buffer) as server, server.client() as client:
        sets = (
            f"system.replay.address={server.address}",
            f"system.replay.path={server.path}",
        )

        def train_in(name: str, iterations: int) -> None:
            (tmp_path / name).mkdir()
            limit = f"policy.learn.learner.train_iterations={iterations}"
            results[name], _ = run(tmp_path / name, *sets, limit)

        threads = [
            threading.Thread(target=train_in, args=each) for each in (("a", 100), ("b", 400))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(150.0)
        stats = client.stats()
        assert server.end(signal.SIGTERM) == 143
    assert {name: each.train_iter for name, each in results.items()} == {"a": 100, "b": 400}
    steps = sum(each.env_steps for each in results.values())
    assert 0 < stats["pushed"] <= steps + 2 * 5 * 16  # no row is pushed twice
    assert stats["sampled"] >= 500 * 16
    assert abs(stats["sampled"] - 4 * (stats["pushed"] - 64)) <= 1024 + 4 * 64 + 16
    assert stats["pushed"] == stats["count"] + stats["overwritten"]


def test_unusable_server_is_reported_before_the_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [*SERVED, "system.replay.timeout_s=0.2", f"system.replay.path={tmp_path / 'served'}"]
    with ReplayServer({}, {"type": "naive"}, tmp_path / "served") as server:
        sets.append(f"system.replay.address={server.address}")
        monkeypatch.setenv("DINGSDK_SECRET", "another-secret-of-32-characters!")
        options: dict[str, Any] = {"mode": "parallel", "output": tmp_path / "runs", "sets": sets}
        with pytest.raises(AuthError, match="refused the secret"):
            train("cartpole-dqn", **options)
    with pytest.raises(ServerLostError, match="cannot be reached") as caught:
        train("cartpole-dqn", **options)
    assert caught.value.is_user_mistake
    assert not list(tmp_path.glob("runs/*"))


def test_run_ends_with_a_user_error_when_an_external_server_is_gone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with ReplayServer({}, {"type": "naive"}, tmp_path / "served") as server:
        sets = (
            f"system.replay.address={server.address}",
            f"system.replay.path={tmp_path / 'served'}",
            "system.replay.timeout_s=0.5",
            "policy.learn.learner.train_iterations=1000000",
        )
        context = context_of(tmp_path, *sets)
        is_over = threading.Event()

        def close() -> None:
            while not is_over.wait(0.01) and context.status().train_iter < 20:
                pass
            server.close()

        thread = threading.Thread(target=close)
        thread.start()
        try:
            with pytest.raises(TaskFailedError, match="replay server") as caught:
                parallel_pipeline(context)
        finally:
            is_over.set()
            thread.join()
    assert caught.value.is_user_mistake
    assert context.status().train_iter >= 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["replay-server-0", "learner-0", "coordinator"])
def test_run_continues_after_a_process_is_killed(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    own = (
        "policy.learn.learner.train_iterations=600",
        "policy.learn.learner.hook.save_ckpt_after_iter=10",
    )
    context = context_of(tmp_path, *own, transport="flask_fs")
    is_over, killed = threading.Event(), []

    def kill() -> None:
        while not is_over.wait(0.01):
            if context.status().train_iter >= 20:
                (victim,) = (p for p in multiprocessing.active_children() if p.name == name)
                victim.kill()
                killed.append(name)
                return

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        result = Supervisor(context).run()
    finally:
        is_over.set()
        thread.join()
    samples = context.status().samples
    assert killed == [name]
    assert (result.reason, result.train_iter) == ("limit", 600)
    assert samples is not None
    assert samples.acknowledged == samples.live + sum(samples.evicted.values())


@pytest.mark.parametrize(
    ("sets", "mode", "word"),
    [
        ([], "serial", "serial"),
        (["system.roles.replay-server.num=1"], "parallel", "replay-server"),
        (["policy.other.replay_buffer.type=episode"], "parallel", "episodes"),
        (
            [
                "policy.collect.n_episode=9",
                "policy.collect.collector={type: episode, get_train_sample: true}",
            ],
            "parallel",
            "n_episode counts episodes",
        ),
        (["system.replay.type=serve"], "parallel", "server"),
        (["system.replay.type=learner", "system.replay.address=h:1"], "parallel", "learner"),
        (["policy.on_policy=true"], "parallel", "newest"),
    ],
)
def test_settings_that_a_replay_server_cannot_use_are_refused(
    sets: list[str], mode: Any, word: str
) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        compile_run("cartpole-dqn", mode=mode, sets=["system.replay.type=server", *sets])
    assert "replay" in str(caught.value.path)
