"""Commands that start single processes of a run: their arguments and their output."""

from __future__ import annotations

import inspect
import os
import re
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.cli import main
from dingsdk.config import save_config
from dingsdk.envs.bench import EnvSpeed
from dingsdk.errors import ConfigError
from dingsdk.pipeline.context import RunResult
from dingsdk.pipeline.run_folder import CONFIG_NAME
from dingsdk.pipeline.train import compile_run
from dingsdk.worker.coordinator.roles import CollectorRole

OF_A_RUN = ("--config", "cartpole-dqn", "--transport", "flask_fs")
ADDRESS = "http://127.0.0.1:7777"
OF_A_SERVER = ("--coordinator", ADDRESS, "--config", "cartpole-dqn")


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[bool]]:
    """The calls of the fake ``run_worker``, and its return values: whether to restart it."""
    told: list[Any] = []
    answers: list[bool] = []

    def run_worker(*given: Any) -> bool:
        told.append(given)
        given[6]()  # report that it has joined
        if not answers:
            os.kill(os.getpid(), signal.SIGTERM)
        return bool(answers) and answers.pop()

    monkeypatch.setattr("dingsdk.pipeline.worker.run_worker", run_worker)
    return told, answers


@pytest.mark.parametrize("host", ["::", "null", "1.5", "true", "a: b"])
def test_coordinator_takes_its_host_as_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str
) -> None:
    told: list[Any] = []

    def run_coordinator(cfg: Any, *given: Any, progress: bool) -> RunResult:
        told.append(cfg.system.transport.host)
        raise ConfigError("enough", path="x")

    monkeypatch.setattr("dingsdk.pipeline.train.run_coordinator", run_coordinator)
    main(["coordinator", *OF_A_RUN, "--data", str(tmp_path / "run"), "--host", host])
    assert told == [host]


def test_worker_command_passes_its_options_and_reports_how_it_ended(
    work: tuple[list[Any], list[bool]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, answers = work
    monkeypatch.chdir(tmp_path)
    command = ["collector", *OF_A_RUN, "--set", "policy.discount_factor=0.5", "--data", "run"]
    command += ["--coordinator", ADDRESS, "--id", "c-7"]

    answers.append(False)
    assert main(command) == 0
    ((role, cfg, address, name, folder, stop, _, place),) = told
    assert (role, address, name) == ("collector", ADDRESS, "c-7")
    assert (folder, place, stop.is_set()) == (tmp_path / "run", None, False)
    assert cfg.policy.discount_factor == 0.5
    assert capsys.readouterr().out == f"c-7 joined {ADDRESS}\nc-7: the run is over\n"

    answers.append(True)
    assert main(command) == 75
    assert capsys.readouterr().err == "c-7 left, over its memory limit; start it again\n"

    assert main(command) == 128 + signal.SIGTERM
    assert told[-1][5].is_set()
    told_last = capsys.readouterr()
    assert told_last.out.endswith("c-7 left\n")
    assert "leaving the run" in told_last.err


def test_worker_whose_config_is_not_that_of_its_run_names_the_keys(
    work: tuple[list[Any], list[bool]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_config(compile_run("cartpole-dqn", "parallel", "flask_fs", seed=4), tmp_path / CONFIG_NAME)
    command = ["collector", *OF_A_RUN, "--data", str(tmp_path), "--coordinator", ADDRESS]
    of_a_worker = ["--set", "system.worker_memory_limit=9000000000", "--set", "exp_name=own"]
    work[1].extend([False, False])
    assert main([*command, *of_a_worker]) == 0
    assert caplog.messages == []

    assert main([*command, "--id", "c-7", "--set", "policy.discount_factor=0.5"]) == 0
    assert caplog.messages == [
        "the config of c-7 is not that of the run, so give it that one: it has "
        "policy.discount_factor: 0.5, and the run has 0.99"
    ]


def test_worker_of_a_transport_within_one_process_is_refused(
    work: tuple[list[Any], list[bool]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["collector", *OF_A_RUN, "--data", str(tmp_path), "--coordinator", ADDRESS]
    assert main([*command, "--transport", "in_memory"]) == 2
    assert "runs workers as threads, not as processes" in capsys.readouterr().err
    assert work[0] == []


def test_folder_of_the_run_must_not_be_a_file(
    work: tuple[list[Any], list[bool]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").touch()
    command = ["collector", *OF_A_RUN, "--data", str(tmp_path / "run"), "--coordinator", ADDRESS]
    assert main(command) == 2
    assert "'--data'" in capsys.readouterr().err
    assert work[0] == []


def test_worker_without_an_id_gets_a_name_of_role_host_and_process(
    work: tuple[list[Any], list[bool]], tmp_path: Path
) -> None:
    told, answers = work
    answers.append(False)
    command = ["collector", *OF_A_RUN, "--data", str(tmp_path), "--coordinator", ADDRESS]
    assert main(command) == 0
    assert re.fullmatch(rf"collector-[A-Za-z0-9_-]{{1,40}}-{os.getpid()}", told[0][3])


def test_help_of_a_worker_command_contains_the_docstring_of_its_role(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["collector", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert " ".join(str(inspect.getdoc(CollectorRole)).split()) in told
    assert "--coordinator" in told


def test_learner_gets_its_rank_and_the_config_must_set_learner_num(
    work: tuple[list[Any], list[bool]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, answers = work
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    options = ["--data", str(tmp_path), "--coordinator", ADDRESS]
    assert main(["learner", *OF_A_RUN, *options]) == 2
    assert "learner_num" in capsys.readouterr().err
    assert told == []

    answers += [False, False]
    sets = ["--set", "system.learner_num=2"]
    assert main(["learner", *OF_A_RUN, *options, *sets]) == 0
    assert main(["collector", *OF_A_RUN, *options, *sets]) == 0
    assert (told[0][7].rank, told[0][7].world_size) == (1, 2)
    assert told[1][7] is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--coordinator", ADDRESS], "--coordinator and --config go together"),
        (["--config", "cartpole-dqn"], "--coordinator and --config go together"),
        (["--transport", "flask_fs"], "--transport is for --coordinator"),
        ([*OF_A_SERVER, "--host", "0.0.0.0"], "--host is for a server without --coordinator"),
        ([*OF_A_SERVER, "--port", "0"], "--port is for a server without --coordinator"),
    ],
)
def test_conflicting_options_of_a_replay_server_are_refused(
    options: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay-server", "--data", str(tmp_path / "data"), *options]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_bench_env_shows_all_measurements_and_a_config_for_the_fastest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    best = EnvSpeed("vector", 64, 123456.7)

    def bench(*given: Any) -> Any:
        told.append(given)
        return best, [best, EnvSpeed("subprocess", 8, 0.0, "cannot be pickled")]

    monkeypatch.setattr("dingsdk.envs.bench.bench_env", bench)
    command = ["bench-env", "CartPole-v1", "--kwargs", "{a: 1}", "--seconds", "3"]
    assert main([*command, "--wrapper", "clip_reward"]) == 0

    assert told == [("CartPole-v1", {"a": 1}, ("clip_reward",), 3.0)]
    assert capsys.readouterr().out == (
        "env manager   envs    threads   env steps/s\n"
        "vector          64                  123,457\n"
        "subprocess       8              cannot be pickled\n"
        "\nFor the config:\n\n"
        "env:\n  collector_env_num: 64\nenv_manager:\n  type: vector\n"
    )


def test_replay_server_prints_its_address_and_serves_until_a_signal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().wait(timeout)

    monkeypatch.setattr("dingsdk.cli.replay_server.threading", SimpleNamespace(Event=Stop))
    monkeypatch.chdir(tmp_path)
    sets = ["--set", "replay_buffer_size=50", "--set", "limiter.min_size=2"]
    command = ["replay-server", "--data", "served", "--host", "127.0.0.2", *sets]
    assert main(command) == 128 + signal.SIGTERM
    address, secret, rows = capsys.readouterr().out.splitlines()
    assert address.startswith("replay server: 127.0.0.2:")
    assert secret.startswith("secret: ")
    assert str(tmp_path / "served") in secret
    assert rows == "rows: 0"
