"""New processes import the script that the parent was started with."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from dingsdk.errors import ConfigError
from dingsdk.runtime.spawn import (
    UNGUARDED,
    check_guarded,
    is_importable,
    leave_if_importing,
    spawn_context,
)


def test_unguarded_script_exits_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_if_importing()
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    monkeypatch.setattr("os._exit", sys.exit)
    for call in (leave_if_importing, lambda: spawn_context("system.collector_num")):
        with pytest.raises(SystemExit) as caught:
            call()
        assert caught.value.code == UNGUARDED


def test_only_the_exit_code_of_an_unguarded_script_raises() -> None:
    for code in (None, 0, 1):
        check_guarded(code, "some.key")
    with pytest.raises(ConfigError, match="__main__") as caught:
        check_guarded(UNGUARDED, "some.key")
    assert caught.value.path == "some.key"


def test_script_without_a_file_cannot_start_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spawn_context("some.key").get_start_method() == "spawn"
    script = ModuleType("__main__")
    script.__file__ = "<stdin>"
    monkeypatch.setitem(sys.modules, "__main__", script)
    with pytest.raises(ConfigError, match=r"^some\.key asks for new processes") as caught:
        spawn_context("some.key")
    assert caught.value.path == "some.key"


FOREIGN_METHOD = """
import multiprocessing.context
from dingsdk.runtime.spawn import spawn_context

class Foreign(multiprocessing.context.SpawnContext):
    _name = "foreign"

if __name__ == "__main__":
    multiprocessing.context._concrete_contexts["foreign"] = Foreign()
    multiprocessing.set_start_method("foreign")
    process = spawn_context("some.key").Process(target=print, args=("started",))
    process.start()
    process.join()
"""


def test_process_can_be_started_where_a_library_has_set_its_own_start_method(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(FOREIGN_METHOD)
    command = [sys.executable, str(script)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("started\n", "")


@pytest.mark.parametrize(
    ("file", "spec", "is_found"),
    [
        pytest.param("script.py", None, True, id="python script.py"),
        pytest.param(None, None, False, id="shell, notebook or python -c"),
        pytest.param("pkg/mod.py", "pkg.mod", True, id="python -m pkg.mod"),
        pytest.param("pkg/__main__.py", "pkg.__main__", False, id="python -m pkg"),
        pytest.param("app.pyz/__main__.py", "__main__", False, id="python app.pyz"),
    ],
)
def test_classes_of_the_script_are_importable_if_multiprocessing_imports_it(
    monkeypatch: pytest.MonkeyPatch, file: str | None, spec: str | None, is_found: bool
) -> None:
    script = ModuleType("__main__")
    script.__spec__ = None if spec is None else ModuleSpec(spec, None)
    if file is not None:
        script.__file__ = file
    script.Own = type("Own", (), {"__module__": "__main__"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert is_importable(script.Own) is is_found
    assert not is_importable(script.Own, has_script=False)


def test_missing_script_cannot_start_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    monkeypatch.setitem(sys.modules, "__main__", script)
    with pytest.raises(ConfigError, match="there is no file"):
        spawn_context("some.key")
    Path(script.__file__).touch()
    spawn_context("some.key")


def test_new_processes_import_nothing_from_the_working_directory(tmp_path: Path) -> None:
    script, stranger, found = (tmp_path / name for name in ("script.py", "stranger", "found"))
    (stranger / "multiprocessing").mkdir(parents=True)
    (stranger / "multiprocessing" / "__init__.py").write_text(f"open({str(found)!r}, 'w')\n")
    script.write_text(
        "import os\n"
        "from dingsdk.runtime.spawn import signals_blocked, spawn_context\n"
        "def check():\n"
        "    assert 'PYTHONSAFEPATH' not in os.environ\n"
        "if __name__ == '__main__':\n"
        "    process = spawn_context('some.key').Process(target=check)\n"
        "    with signals_blocked(), signals_blocked():\n"
        "        process.start()\n"
        "    check()\n"
        "    process.join()\n"
        "    assert process.exitcode == 0, process.exitcode\n"
    )
    subprocess.run([sys.executable, str(script)], cwd=stranger, check=True, timeout=60)
    assert not found.exists()


FORKING = """
import atexit, os, random, signal, sys
import numpy as np
from dingsdk.runtime.spawn import begin_fork_server, process_context

def tell(link, what):
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "leave":
        atexit._run_exitfuncs()
        os._exit(7)
    own = ("torch" in sys.modules, os.environ.get("LATER"), os.getcwd())
    link.send((*own, os.environ.get("PYTHONSAFEPATH"), random.random(), np.random.random()))

def started(what="tell"):
    context = process_context("some.key")
    ours, theirs = context.Pipe()
    process = context.Process(target=tell, args=(theirs, what))
    process.start()
    theirs.close()
    found = ours.recv() if what == "tell" else None
    process.join()
    return context.get_start_method(), process.exitcode, found

if __name__ == "__main__":
    assert started()[0] == "spawn"
    begin_fork_server(["torch", "numpy.random"])
    begin_fork_server(["other"])
    os.environ["LATER"] = "yes"
    os.chdir("/")
    first, second, killed = started(), started(), started("kill")
    assert first[:2] == second[:2] == ("forkserver", 0), first
    assert first[2][:4] == (True, "yes", "/", None), first
    assert first[2][4:] != second[2][4:] and first[2][5] != second[2][5]
    assert killed[1] == -signal.SIGKILL
    assert started("leave")[1] == 7
    assert "torch" not in sys.modules
    os.environ["OMP_NUM_THREADS"] = "3"  # torch has read it already
    assert started()[0] == "spawn"
"""


def test_forked_process_has_the_environment_of_its_parent_and_its_own_randomness(
    tmp_path: Path,
) -> None:
    script = tmp_path / "forking.py"
    script.write_text(FORKING)
    subprocess.run([sys.executable, str(script)], check=True, timeout=120)


KILLING = """
import os, signal, time
from multiprocessing import forkserver
from dingsdk.runtime.spawn import begin_fork_server, process_context

if __name__ == "__main__":
    begin_fork_server([])
    context = process_context("some.key")
    for stop_s in (0, 0.01, 0.05):  # killed, while it may already have the request
        server = forkserver._forkserver._forkserver_pid
        os.kill(server, signal.SIGSTOP)
        if not os.fork():
            time.sleep(0.2 + stop_s)
            os.kill(server, signal.SIGKILL)
            os._exit(0)
        process = context.Process(target=print)
        process.start()
        process.join()
        assert process.exitcode == 0, process.exitcode
        assert forkserver._forkserver._forkserver_pid != server
"""


def test_process_starts_although_the_fork_server_is_killed_meanwhile(tmp_path: Path) -> None:
    script = tmp_path / "killing.py"
    script.write_text(KILLING)
    subprocess.run([sys.executable, str(script)], check=True, timeout=60)
