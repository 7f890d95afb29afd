"""What a config names and what a command may import and call: nothing else is executed."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dingsdk
from dingsdk.cli import main
from dingsdk.config import load_config, save_config
from dingsdk.data import encode_safetensors
from dingsdk.errors import UnknownEnvError
from dingsdk.pipeline.resume import RESUME_FOLDER, STATE_NAME, find_save
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.runtime import Folder
from tests.integration.short_runs import QUICK

LIMIT = ("policy.learn.learner.train_iterations=4", "system.save_every=0.001")
TRAP = """
from pathlib import Path
(Path(__file__).parent / "imported").touch()
def trap(*args, **kwargs):
    (Path(__file__).parent / "called").touch()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dingsdk.train(
        "cartpole-dqn", sets=[*QUICK, *LIMIT], output=str(tmp_path_factory.mktemp("runs"))
    ).run_dir


@pytest.fixture
def traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the module path with a module of a package, whose import and call leave marks."""
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "trap_package.py").write_text(TRAP)
    monkeypatch.syspath_prepend(package)
    yield package
    sys.modules.pop("trap_package", None)


def _stranger(trained: Path, folder: Path, **env: Any) -> Path:
    """Copy a run, with another env in its config and in its newest save."""
    shutil.copytree(trained, folder)
    config = load_config(folder / "config.yaml")
    config["env"] |= env
    save_config(config, folder / "config.yaml")
    save = find_save(trained)
    save.state.config["env"] |= env
    with Folder(folder / RESUME_FOLDER / save.path.name) as opened:
        opened.write_atomic(STATE_NAME, [encode_safetensors("run-state", save.state.plain())])
    return folder


COMMANDS = (
    "eval RUN",
    "eval RUN/ckpt/ckpt_best.safetensors",
    "train RUN/config.yaml",
    "train --resume RUN --set system.max_env_steps=100000",
    "train RUN/config.yaml --mode parallel",
    "config validate RUN/config.yaml",
    "coordinator --config RUN/config.yaml --data OUT",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_does_not_call_what_is_not_known_to_be_an_env(
    trained: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    kwargs = {"args": ["mkdir", str(made)]}
    run = _stranger(trained, tmp_path / "run", env_id="subprocess:run", kwargs=kwargs)
    text = command.replace("RUN", str(run)).replace("OUT", str(tmp_path / "out"))

    assert main(text.split()) == 2

    assert "@dingsdk.envs.factory" in capsys.readouterr().err
    assert not made.exists()


@pytest.mark.parametrize(
    "sets",
    [
        ("env.env_id=trap_package:trap",),
        (
            "env.env_id=pettingzoo.classic.tictactoe.tictactoe:env",
            "env.eval_opponents=['trap_package:trap']",
            *("policy.collect.collector.type=sample_1v1", "env_manager.type=base"),
            "policy.other.serial_commander.type=one_vs_one",
        ),
        (
            *("policy.eval.evaluator.type=metric", "policy.eval.evaluator.eval_freq=5"),
            "policy.eval.evaluator.data=trap_package:trap",
        ),
    ],
    ids=["env", "opponent", "data"],
)
def test_functions_of_packages_are_imported_by_a_run_and_by_validate_but_not_called(
    traps: Path, sets: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    example = "tictactoe-selfplay" if len(sets) > 3 else "cartpole-dqn"
    if example == "tictactoe-selfplay":
        pytest.importorskip("pettingzoo")
        sets = sets[1:2]
    arguments = [each for assignment in sets for each in ("--set", assignment)]

    assert main(["config", "show", example, *arguments]) == 0
    assert "observation_space: null" in capsys.readouterr().out
    assert not (traps / "imported").exists()

    assert main(["config", "validate", example, *arguments]) == 2
    assert "@dingsdk.envs.factory" in capsys.readouterr().err
    assert (traps / "imported").exists()
    assert not (traps / "called").exists()


def test_status_imports_nothing_and_load_policy_only_import_names(
    trained: Path, tmp_path: Path, traps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (traps / "policy_names.py").write_text("")
    run = _stranger(trained, tmp_path / "run", env_id="trap_package:trap")
    config = load_config(run / "config.yaml")
    config["policy"]["import_names"] = ["policy_names"]
    save_config(config, run / "config.yaml")

    assert main(["status", str(run)]) == 0
    assert "policy_names" not in sys.modules

    policy = dingsdk.load_policy(run)
    assert policy.observation_space.shape == (4,)
    assert not (traps / "imported").exists()
    with pytest.raises(UnknownEnvError, match=r"@dingsdk\.envs\.factory"):
        policy.make_env()
    assert not (traps / "called").exists()


@pytest.mark.parametrize("manager", ["in_process", "subprocess"])
def test_function_given_in_python_is_not_judged_nor_in_the_processes_of_its_run(
    tmp_path: Path, traps: Path, manager: str
) -> None:
    (traps / "acme_makers.py").write_text(
        "import gymnasium\ndef create(): return gymnasium.make('CartPole-v1')\n"
    )
    create = importlib.import_module("acme_makers").create
    sets = [*QUICK, *LIMIT, f"env_manager.type={manager}"]
    run = dingsdk.train("cartpole-dqn", sets=sets, output=str(tmp_path), env=create).run_dir

    # Another program, to which nobody gave the function:
    with (
        use_manager(PluginManager()),
        pytest.raises(UnknownEnvError, match=r"@dingsdk\.envs\.factory"),
    ):
        dingsdk.evaluate(run)
    assert dingsdk.evaluate(run, env=create).mean > 0
