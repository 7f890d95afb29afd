"""Commands in detached actors, with a fake Ray."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from click.testing import CliRunner, Result
from dingsdk_ray import cluster, detached

from dingsdk.errors import ConfigError

PATIENCE_S = 30.0


class Ray:
    """A fake of the calls that start and find actors; records their arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[Any, ...]] = []
        self.options: dict[str, Any] = {}
        self.got: list[tuple[Any, float]] = []
        self.killed: list[tuple[Any, bool]] = []
        self.error: Exception | None = None
        self.there: dict[tuple[str, str], Any] = {}
        context = SimpleNamespace(get_node_id=lambda: "1f" * 28, current_actor="me")
        self.killing = threading.Event()
        for name, stand_in in {
            "remote": self.remote,
            "get": self.get,
            "get_actor": lambda name, namespace: self.there[name, namespace],
            "get_runtime_context": lambda: context,
            "kill": self.kill,
        }.items():
            monkeypatch.setattr(ray, name, stand_in)

    def remote(self, **given: Any) -> Any:
        def options(**more: Any) -> Any:
            self.options = given | more
            return SimpleNamespace(remote=self.make)

        return lambda cls: SimpleNamespace(options=options)

    def make(self, *given: Any) -> Any:
        self.made.append(given)
        return SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda: "ready"))

    def get(self, reference: Any, timeout: float) -> None:
        self.got.append((reference, timeout))
        if self.error is not None:
            raise self.error

    def kill(self, actor: Any, no_restart: bool) -> None:
        self.killed.append((actor, no_restart))
        self.killing.set()


def called(*arguments: str) -> Result:
    """Run the command line."""
    return CliRunner().invoke(detached.main, arguments)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Ray:
    return Ray(monkeypatch)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The recorded connects and disconnects of the cluster."""
    seen: list[Any] = []
    monkeypatch.setattr(cluster, "connect", lambda address, **given: seen.append((address, given)))
    monkeypatch.setattr(cluster, "disconnect", lambda: seen.append("left"))
    return seen


@pytest.mark.parametrize(
    ("flags", "address", "is_allowed"),
    [([], "auto", False), (["--address", "h:1", "--allow-insecure-ray"], "h:1", True)],
)
def test_command_is_started_on_this_node_and_its_log_is_named(
    fake: Ray,
    joined: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    address: str,
    is_allowed: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = called(*flags, "start", "pong", "train", "x.yaml", "--seed", "1")
    assert done.exit_code == 0
    assert joined == [(address, {"allow_insecure": is_allowed}), "left"]
    log = tmp_path / "pong.log"
    assert fake.made == [(["train", "x.yaml", "--seed", "1"], tmp_path, log)]
    strategy = fake.options.pop("scheduling_strategy")
    assert (strategy.node_id, strategy.soft) == ("1f" * 28, False)
    assert fake.options == {
        "name": "run-pong",
        "namespace": cluster.NAMESPACE,
        "lifetime": "detached",
        "num_cpus": 0,
    }
    assert fake.got == [("ready", detached.ANSWER_S)]
    assert str(log) in done.stdout


@pytest.mark.parametrize(
    "error",
    [
        ValueError("the name run-pong\n is taken" + "x" * 400),
        ray.exceptions.GetTimeoutError("late"),
    ],
)
def test_command_that_cannot_be_started_is_a_one_line_error(
    fake: Ray, joined: list[Any], error: Exception
) -> None:
    fake.error = error
    done = called("start", "pong", "train")
    assert done.exit_code == 2
    assert joined[1:] == ["left"]
    assert done.stdout == ""
    assert done.stderr.startswith("'pong' cannot be started: ")
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) <= len("'pong' cannot be started: \n") + 300
    with pytest.raises(ConfigError) as caught:
        detached.start("pong", [], Path())
    assert caught.value.path == "pong"


def test_command_is_stopped_by_its_name(fake: Ray, joined: list[Any]) -> None:
    asked: list[str] = []
    actor = SimpleNamespace(stop=SimpleNamespace(remote=lambda: asked.append("stop") or "stopped"))
    fake.there["run-pong", cluster.NAMESPACE] = actor
    assert called("stop", "pong").exit_code == 0
    assert (asked, fake.got, fake.made) == (["stop"], [("stopped", detached.ANSWER_S)], [])
    assert joined == [("auto", {"allow_insecure": False}), "left"]
    fake.error = ValueError("no such actor")
    done = called("stop", "pong")
    assert done.exit_code == 2
    assert "no command 'pong' runs" in done.stderr


def a_command(folder: Path, source: str) -> None:
    """Make ``python -m dingsdk`` run this program in the folder."""
    (folder / "dingsdk.py").write_text(source)


def test_output_of_a_command_is_appended_and_its_end_ends_the_actor(
    fake: Ray, tmp_path: Path
) -> None:
    a_command(
        tmp_path,
        "import os, sys\n"
        "print(os.getcwd(), sys.argv[1:], sys.stdin.read(), flush=True)\n"
        "sys.exit('it ends')\n",
    )
    log = tmp_path / "log"
    log.write_text("before\n")
    run = detached.DetachedRun(["train", "x"], tmp_path, log)
    assert fake.killing.wait(PATIENCE_S)
    assert fake.killed == [("me", True)]
    assert log.read_text() == f"before\n{tmp_path} ['train', 'x'] \nit ends\n"
    assert run._process.returncode == 1


def test_command_is_stopped_as_by_ctrl_c(fake: Ray, tmp_path: Path) -> None:
    a_command(
        tmp_path,
        "import signal, sys\n"
        "print('ready', flush=True)\n"
        "sys.exit(signal.sigwait([signal.SIGINT]) + 40)\n",
    )
    threads = set(threading.enumerate())
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:  # the child starts with the signal blocked, so that the signal cannot arrive too early
        run = detached.DetachedRun([], tmp_path, tmp_path / "log")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    (waiting,) = set(threading.enumerate()) - threads
    assert waiting.daemon  # the actor can end before its command
    run.stop()
    assert fake.killing.wait(PATIENCE_S)
    assert run._process.returncode == 40 + signal.SIGINT


def test_wrong_action_is_refused(joined: list[Any]) -> None:
    done = called("restart", "pong")
    assert done.exit_code == 2
    assert joined == []
    assert "restart" in done.stderr
