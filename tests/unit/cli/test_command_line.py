"""The main command: exit codes, error messages and commands of plugins."""

from __future__ import annotations

import errno
import json
import signal
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest

import dingsdk
from dingsdk.cli import main
from dingsdk.cli.train import summary
from dingsdk.errors import ConfigError, TaskFailedError
from dingsdk.pipeline.context import Evaluation, RunResult
from dingsdk.plugins import PluginManager, use_manager
from tests.programs import python, write_dist


@pytest.fixture
def manager() -> Iterator[PluginManager]:
    manager = PluginManager(discover=lambda: [])
    with use_manager(manager):
        yield manager


def add_command(manager: PluginManager, error: BaseException | None = None, code: int = 0) -> None:
    @click.command("probe")
    def probe() -> int:
        if error is not None:
            raise error
        click.echo("probed")
        return code

    manager.registry("commands").register("probe", probe)


def test_command_of_a_plugin_is_listed_and_run(
    manager: PluginManager, capsys: pytest.CaptureFixture[str]
) -> None:
    add_command(manager, code=5)

    assert main(["--help"]) == 0
    assert "probe" in capsys.readouterr().out
    assert main(["probe"]) == 5
    assert capsys.readouterr().out == "probed\n"


def test_broken_command_does_not_hide_the_others(
    manager: PluginManager, capsys: pytest.CaptureFixture[str]
) -> None:
    manager.registry("commands").declare("broken", "no.such.module:command")

    assert main(["--help"]) == 0

    out = capsys.readouterr().out
    assert "train" in out
    assert "cannot be loaded" in out
    assert sum(line.split()[:1] == ["broken"] for line in out.splitlines()) == 1


def test_command_that_is_no_click_command_is_shown_with_its_plugin(
    manager: PluginManager, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"{__name__}:add_command"
    manager.registry("commands").declare("odd", place, owner="acme")

    assert main(["--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "(cannot be loaded: plugin acme: 'odd' of the commands is" in out
    assert "no click command" in out
    assert main(["odd"]) == 2
    assert main(["plugins", "--check", "--kind", "commands"]) == 1


def test_user_mistake_is_one_line_with_its_notes_below_and_exit_code_2(
    manager: PluginManager, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ConfigError("env.env_id is missing")
    error.add_note("asked for as env")
    add_command(manager, error)

    assert main(["probe"]) == 2
    assert capsys.readouterr().err == "Error: env.env_id is missing\n  (asked for as env)\n"


@pytest.mark.parametrize(
    "arguments", ["--debug outer probe", "outer --debug probe", "outer probe --debug"]
)
def test_debug_option_also_works_for_commands_of_a_group(
    manager: PluginManager, capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    @click.group("outer")
    def outer() -> None: ...

    @outer.command("probe")
    def probe() -> None:
        raise ConfigError("env.env_id is missing")

    manager.registry("commands").register("outer", outer)

    assert main(["outer", "probe"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert main(arguments.split()) == 2
    assert "Traceback" in capsys.readouterr().err


def test_argument_with_a_nul_character_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "a\0b"]) == 2
    assert "NUL character" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ValueError("odd"), "a defect of dingsdk or of a plugin"),
        (SystemExit(0), "a defect of dingsdk or of a plugin"),
        (MemoryError("all"), "Lower the sizes in the config"),
        (OSError(errno.EMFILE, "too many open files"), "Raise the limit of open files"),
    ],
)
def test_unexpected_error_shows_a_traceback_and_exits_with_1(
    manager: PluginManager,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    advice: str,
) -> None:
    add_command(manager, error)

    assert main(["probe"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert f"Error: {type(error).__name__}: {error}" in err
    assert advice in err


def test_failed_task_shows_the_traceback_of_the_worker(
    manager: PluginManager, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = "Traceback (most recent call last):\n  in the worker\nValueError: bad"
    add_command(manager, TaskFailedError("the task failed", traceback=trace))

    assert main(["probe"]) == 1
    err = capsys.readouterr().err
    assert trace in err
    assert err.endswith("\nError: the task failed\n")
    assert "run_guarded" not in err


def test_ctrl_c_before_a_run_exits_with_130(
    manager: PluginManager, capsys: pytest.CaptureFixture[str]
) -> None:
    add_command(manager, KeyboardInterrupt())

    assert main(["probe"]) == 130
    assert "Interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    "module", ["dingsdk.cli.root", "click", "dingsdk.pipeline.train", "msgspec", "torch"]
)
def test_ctrl_c_during_imports_prints_one_line(module: str) -> None:
    code = f"""
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from dingsdk.cli import main
sys.exit(main(["train", "cartpole-dqn"]))
"""

    done = python("-c", code)

    assert done.returncode == 130
    assert done.stderr.split("\n") in (
        ["Interrupted; there was nothing to save.", ""],
        ["", "Interrupted; there was nothing to save.", ""],  # click adds a newline after the ^C
    )


def test_ctrl_c_that_an_import_loses_ends_the_program() -> None:
    code = """
import contextlib, signal, sys
class Losing:
    def find_spec(self, name, path=None, target=None):
        if name == "msgspec":
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Losing())
from dingsdk.cli import main
sys.argv = ["dingsdk", "train", "no-such-example"]
sys.exit(main())
"""

    done = python("-c", code)

    assert (done.returncode, done.stderr) == (130, "Interrupted; there was nothing to save.\n")


def test_little_is_imported_before_ctrl_c_has_a_handler() -> None:
    code = (
        "import sys; before = {*sys.modules};"
        "import dingsdk.cli; print({'logging', 'typing'} & sys.modules.keys() - before)"
    )
    done = python("-S", "-c", code, cwd=Path(dingsdk.__file__).parent.parent)
    assert done.stdout == "set()\n"


def test_command_that_a_program_calls_leaves_ctrl_c_to_the_program() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert before is signal.default_int_handler
    assert main(["examples"]) == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_unknown_command_suggests_the_nearest(
    manager: PluginManager, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trian"]) == 2
    assert "did you mean 'train'?" in capsys.readouterr().err
    assert main(["xyzzy"]) == 2
    err = capsys.readouterr().err
    assert "No such command 'xyzzy'" in err
    assert "did you mean" not in err
    assert main(["plugins", "--no-such-option"]) == 2


def ended(**changes: Any) -> RunResult:
    """Return the result of a run that reached its step limit, with these changes."""
    given: dict[str, Any] = {
        "reached": False,
        "reason": "limit",
        "mode": "serial",
        "best_return": None,
        "last_return": None,
        "env_steps": 1,
        "train_iter": 0,
        "elapsed_s": 1.0,
        "run_dir": Path("r"),
    }
    return RunResult(**given | changes)


@pytest.mark.parametrize(
    ("names", "command"),
    [(("best", "latest"), "eval r"), (("latest",), "eval r --checkpoint latest"), ((), None)],
)
def test_summary_proposes_a_command_that_works(names: tuple[str, ...], command: str | None) -> None:
    result = ended(
        reason="interrupted", checkpoints={name: Path("r/ckpt") / name for name in names}
    )

    proposed = [line for line in summary(result).splitlines() if "dingsdk eval" in line]

    assert [line.partition("dingsdk ")[2] for line in proposed] == ([command] if command else [])


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"reached": True, "reason": "stop_value"}, "Solved: mean return 80.0"),
        (
            {"reason": "stopped", "stopped_by": "enough"},
            "Stopped (enough): mean return 80.0 (best 90.0)",
        ),
        ({}, "Limit reached: mean return 80.0 (best 90.0)"),
        ({"best_return": None, "last_return": None}, "Limit reached: no evaluation (best none)"),
    ],
)
def test_summary_says_how_the_run_ended_and_names_its_files(
    changes: dict[str, Any], outcome: str
) -> None:
    given = {"best_return": 90.0, "last_return": 80.0, "env_steps": 1_234, "train_iter": 56}
    evaluation = Evaluation(6.0, 100, 10, mean=480.0, min=400.0, max=500.0, episodes=5)
    files = {"checkpoints": {"best": Path("r/ckpt/best")}, "evaluations": (evaluation,)}

    lines = summary(ended(**{**given, **files, **changes})).splitlines()

    assert lines[1] == f"{outcome} after 1,234 env steps, 56 iterations, 1.0 s."
    assert lines[3].split() == [
        "config.yaml",
        "result.json",
        "curve.png",
        "log/",
        "ckpt/",
        "(best)",
    ]


@pytest.mark.parametrize(
    ("reason", "folder", "is_told"),
    [
        ("limit", "resume", True),
        ("interrupted", "journal", True),
        ("limit", "", False),
        ("stop_value", "journal", False),
    ],
)
def test_summary_shows_the_resume_command_if_the_run_can_be_resumed(
    tmp_path: Path, reason: str, folder: str, is_told: bool
) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    result = ended(reason=reason, run_dir=tmp_path, env_steps=10, checkpoints={"latest": tmp_path})
    assert (f"train --resume {tmp_path}" in summary(result)) == is_told


def test_plugins_lists_built_in_types_as_a_table_and_as_json(
    manager: PluginManager, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins"]) == 0
    table = capsys.readouterr().out
    assert main(["plugins", "--json", "--kind", "buffers"]) == 0
    rows = json.loads(capsys.readouterr().out)

    assert "replay_buffer" not in table
    assert [line for line in table.splitlines() if line.startswith("policies")]
    assert {row["type_key"] for row in rows} >= {"naive"}
    assert {row["kind"] for row in rows} == {"buffers"}


@pytest.mark.parametrize("has_overwritten", [False, True])
def test_command_line_reports_another_project_with_our_import_package(
    tmp_path: Path, has_overwritten: bool
) -> None:
    write_dist(tmp_path, "dingsdk", version="2.0.0")
    if has_overwritten:  # as after pip install: their files replace ours
        package = tmp_path / "dingsdk"
        package.mkdir()
        for ours in Path(dingsdk.__file__).parent.iterdir():
            (package / ours.name).symlink_to(ours)
        (package / "__init__.py").unlink()
        (package / "__init__.py").write_text("name = 'theirs'\n")

    done = python("-m", "dingsdk", "--version", path=tmp_path, cwd=tmp_path)

    assert done.returncode == 0
    assert done.stdout == f"dingsdk, version {metadata.version('dingsdk-rl')}\n"
    assert done.stderr.startswith("dingsdk 2.0.0 is installed beside dingsdk-rl ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("argument", ["plugins", "--help"])
def test_lists_of_plugins_and_commands_import_no_slow_module(argument: str) -> None:
    code = (
        f"import sys; from dingsdk.cli import main; main([{argument!r}]);"
        "print(sorted({'torch', 'numpy', 'gymnasium', 'msgspec', 'yaml'} & set(sys.modules)))"
    )

    done = python("-c", code, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_doctor_reports_broken_and_conflicting_distributions(tmp_path: Path) -> None:
    write_dist(tmp_path, "acme-broken", {"dingsdk.buffers": {"broken": "no_such_module"}})
    write_dist(tmp_path, "dingsdk")

    done = python("-m", "dingsdk", "doctor", path=tmp_path, timeout=150)

    assert done.returncode == 1, done.stderr
    problems = [line for line in done.stdout.splitlines() if line.startswith("fail")]
    assert any("buffers broken" in line and "no_such_module" in line for line in problems)
    assert any("dingsdk " in line and "another project" in line for line in problems)
    assert "2 problems found" in done.stdout
    assert "pass  ports" in done.stdout


def test_doctor_reports_no_problem_on_a_working_system(
    tmp_path: Path,
    manager: PluginManager,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert "fail" not in told
    rows = ["python", "numpy", "shared memory", "ports", "GPU"]
    assert [row for row in rows if f" {row} " not in told] == []
    # A GPU without a driver for torch is a warning, and no GPU is none.
    assert ("torch cannot use it" in told) is Path("/dev/nvidiactl").exists()


def test_process_at_exit_skips_garbage_collection_and_ignores_ctrl_c() -> None:
    program = (
        "import atexit, gc, signal, sys; before = gc.get_freeze_count();"
        "from dingsdk.cli import main;"
        "ignored = lambda: signal.getsignal(signal.SIGINT) == signal.SIG_IGN;"
        "found = lambda: f'{gc.get_freeze_count() > before} {ignored()}';"
        "main(['--version']); print(found());"
        "atexit.register(lambda: sys.stdout.write(found())); main()"
    )
    lines = python("-c", program, "--version", check=True).stdout.splitlines()
    assert (lines[1], lines[-1]) == ("False False", "True True")
