"""A worker imports only modules that its own config allows, whatever a task names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dingsdk.errors import TaskFailedError, UntrustedImportError
from dingsdk.pipeline.parallel import worker_config
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.worker import make_transport
from dingsdk.worker.comm import Master
from dingsdk.worker.comm.allowed_imports import check_imports, named_modules
from dingsdk.worker.commander.tasks import collector_task, learner_task
from dingsdk.worker.coordinator import create_role
from tests.runs import SMALL

CANARY = "canary_of_received_names"
Edit = Callable[[dict[str, Any]], object]


class Bench:
    """A master, and one worker with its own config."""

    def __init__(self, run_dir: Path, role: Any, transport: str, *sets: str) -> None:
        self.cfg = _config(run_dir, transport)
        self.transport = make_transport(self.cfg, run_dir)
        self.master = Master(self.transport.master_end(), self.transport.scheduler)
        self.master.start()
        local = _config(run_dir, transport, *sets)
        self.worker = create_role(role, local).create_worker(self.transport, "w0")
        self.worker.start(self.master.address)

    def ask(self, name: str, **data: Any) -> Any:
        return self.master.ask("w0", {"name": name, **data}, 30.0)

    def close(self) -> None:
        self.worker.close()
        self.master.close()
        self.transport.close()


def _config(run_dir: Path, transport: str, *sets: str) -> Any:
    cfg = compile_run("cartpole-dqn", "parallel", transport, (*SMALL, *sets), 3)
    return worker_config(cfg, run_dir)


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """Make an importable module; return a function that tells whether it was imported."""
    fired = tmp_path / "fired"
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / f"{CANARY}.py").write_text(
        f"import pathlib\npathlib.Path({str(fired)!r}).touch()\n"
        "import gymnasium\n"
        "gymnasium.register('Canary-v0', 'gymnasium.envs.classic_control:CartPoleEnv',"
        " max_episode_steps=100)\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    yield fired.exists
    sys.modules.pop(CANARY, None)


def _collector_task(cfg: Any, number: int) -> dict[str, Any]:
    names = (f"task{number}", "buffer", "policy")
    return collector_task(cfg, *names, number=number, collect_setting={"eps": 0.5})


def _learner_task(cfg: Any, number: int) -> dict[str, Any]:
    task = learner_task(cfg, f"task{number}", "buffer", "policy", number=number)
    return {**task, "home": {"pace": None, "counts": None, "trained_rows": 0}}


COLLECTOR_EDITS: list[Edit] = [
    lambda cfg: cfg["collector_cfg"].update(import_names=[CANARY]),
    lambda cfg: cfg["collector_cfg"]["env"].update(env_id=f"{CANARY}:CartPole-v1"),
    lambda cfg: cfg["collector_cfg"]["env"].update(
        wrappers=[{"type": "x", "import_names": [CANARY]}]
    ),
    lambda cfg: cfg["collector_cfg"]["env_manager"].update(import_names=[CANARY]),
    lambda cfg: cfg["collector_cfg"]["policy"].update(import_names=[CANARY]),
]
LEARNER_EDITS: list[Edit] = [
    lambda cfg: cfg["learner_cfg"].update(import_names=[CANARY]),
    lambda cfg: cfg["learner_cfg"]["hook"].update(
        evil={"type": "x", "position": "after_iter", "import_names": [CANARY]}
    ),
    lambda cfg: cfg["policy"].update(import_names=[CANARY]),
    lambda cfg: cfg["replay_buffer_cfg"].update(
        storage={"type": "array", "import_names": [CANARY]}
    ),
]


@pytest.mark.parametrize(
    ("role", "transport", "edits"),
    [
        ("collector", "in_memory", COLLECTOR_EDITS),
        ("collector", "flask_fs", COLLECTOR_EDITS),
        ("learner", "in_memory", LEARNER_EDITS),
    ],
)
def test_task_that_imports_a_forbidden_module_fails_and_the_worker_survives(
    tmp_path: Path, canary: Callable[[], bool], role: str, transport: str, edits: list[Edit]
) -> None:
    bench = Bench(tmp_path / "run", role, transport)
    make = _collector_task if role == "collector" else _learner_task
    for number, edit in enumerate(edits):
        task = make(bench.cfg, number)
        edit(task)
        with pytest.raises(TaskFailedError, match=f"asks to import '{CANARY}'") as caught:
            bench.ask(f"{role}_start_task", task_info=task)
        assert "UntrustedImportError" in caught.value.traceback
        assert caught.value.is_user_mistake
        assert not canary()
    bench.ask(f"{role}_start_task", task_info=make(bench.cfg, 99))
    bench.close()


def test_module_that_the_local_config_allows_is_imported(
    tmp_path: Path, canary: Callable[[], bool]
) -> None:
    env_id = f"{CANARY}:Canary-v0"
    bench = Bench(
        tmp_path / "run", "collector", "in_memory", f"system.collector.allowed_modules=[{CANARY}]"
    )
    task = _collector_task(bench.cfg, 0)
    task["collector_cfg"]["env"]["env_id"] = env_id
    bench.ask("collector_start_task", task_info=task)
    assert canary()
    bench.close()


@pytest.mark.parametrize("name", ["../escaped", "/tmp/dingsdk-escaped", "a/../../escaped"])
def test_worker_ignores_the_folder_that_a_task_names(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path / "run", "collector", "in_memory")
    task = _collector_task(bench.cfg, 0)
    task["collector_cfg"]["exp_name"] = name
    bench.ask("collector_start_task", task_info=task)
    bench.close()
    assert list((tmp_path / "run" / "log" / "collector").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not Path(name).exists()


def test_modules_are_found_wherever_a_config_names_them() -> None:
    config = {
        "import_names": ["a", "b.c"],
        "env": {"env_id": "d.e:Env-v0", "wrappers": [{"import_names": ("f",)}, "plain"]},
        "eval": {"env": [{"env_id": "Plain-v0"}, {"import_names": "g"}]},
        "env_id": 3,
        "deep": [[{"x": {"import_names": [1, None, "h"]}}]],
    }
    assert named_modules(config) == {"a", "b.c", "d.e", "f", "g", "h"}


def test_error_names_the_forbidden_and_the_allowed_modules() -> None:
    task = {"x": {"import_names": ["os.path", "mine"]}, "env_id": "other:E"}
    with pytest.raises(UntrustedImportError) as caught:
        check_imports(task, ["mine", "yours"])
    assert caught.value.modules == ["os.path", "other"]
    assert caught.value.allowed == ["mine", "yours"]
    check_imports(task, ["mine", "os.path", "other"])
