"""A third-party role: found by its entry point, run in parallel mode, with a command."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dingsdk.cli import main
from dingsdk.errors import UnknownKeyError, UnknownPluginError
from dingsdk.pipeline.context import RunContext
from dingsdk.pipeline.parallel import parallel_pipeline
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import PluginManager, use_manager
from tests.unit.plugins.conftest import write_dist

from .clusters import JobCluster
from .short_runs import QUICK

MODULE = '''
    from dingsdk import hookimpl
    from dingsdk.worker.comm import CommWorker
    from dingsdk.worker.coordinator import Role


    class Auditor(CommWorker):
        """Counts the payloads of the run whenever it is asked."""

        role = "auditor"
        audits = 0

        @property
        def has_job(self):
            """Its first three audits are one job; it may leave after them."""
            return self.audits < 3

        def _tasks(self):
            return {"audit_task": self._audit}

        def _audit(self, task):
            self.audits += 1
            with (self.run_dir / "audits.jsonl").open("a") as file:
                file.write(f'{{"by": "{task["by"]}", "payloads": {len(self.data_store)}}}\\n')
            return {"count": len(self.data_store)}


    class AuditorRole(Role):
        """Count payloads for a coordinator until the run ends."""

        name = "auditor"
        config = {"pause_s": 0.05}
        _issued = 0

        def create_worker(self, transport, worker_id):
            return Auditor({}, transport, worker_id)

        def next_task(self, commander):
            self._issued += 1
            return {"task_id": f"audit_{self._issued}"}

        def drive(self, coordinator, state, task):
            while not coordinator.must_end(state):
                coordinator.ask(state, {"name": "audit_task", "by": task["auditor_id"]})
                with coordinator.condition:
                    coordinator.condition.wait_for(lambda: coordinator.is_ending, self.cfg.pause_s)


    @hookimpl
    def dingsdk_register_roles(registry):
        registry.register("auditor", AuditorRole)
'''


@pytest.fixture(autouse=True)
def _plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    entry_points = {"dingsdk.roles": {"auditor": "acme_auditor"}}
    site = write_dist(tmp_path / "site", "acme-auditor", entry_points, acme_auditor=MODULE)
    monkeypatch.syspath_prepend(str(site))
    with use_manager(PluginManager()):
        yield
    sys.modules.pop("acme_auditor", None)


def audits(run_dir: Path) -> list[dict[str, object]]:
    file = run_dir / "audits.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize("concurrency", ["greenlets", "threads"])
def test_role_of_a_plugin_works_in_a_parallel_run(tmp_path: Path, concurrency: str) -> None:
    sets = (
        *QUICK,
        f"system.transport.concurrency={concurrency}",
        "system.transport.check_wire=true",
        "system.roles.auditor.num=2",
    )
    cfg = compile_run("cartpole-dqn", "parallel", "in_memory", sets, 3)
    run_dir = tmp_path / "run"
    run_dir.mkdir()

    result = parallel_pipeline(RunContext(cfg=cfg, run_dir=run_dir))

    assert (result.reason, result.train_iter) == ("limit", 200)
    assert {audit["by"] for audit in audits(run_dir)} == {"auditor-0", "auditor-1"}
    assert any(audit["payloads"] for audit in audits(run_dir))


def test_role_of_a_plugin_has_a_command_that_joins_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    cluster = JobCluster(run_dir, None, "system.roles.auditor.num=0")

    def end_after_an_audit() -> None:
        cluster.expect(lambda: bool(audits(run_dir)))
        cluster.close()

    ending = threading.Thread(target=end_after_an_audit)
    ending.start()
    options = ["--config", "cartpole-dqn", "--transport", "flask_fs", "--data", str(run_dir)]
    code = main(["auditor", *options, "--coordinator", cluster.address, "--id", "mine"])
    ending.join(60.0)

    assert code == 0
    assert audits(run_dir)[0]["by"] == "mine"
    assert f"mine joined {cluster.address}" in capsys.readouterr().out


def test_command_line_lists_the_role_and_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "auditor" in capsys.readouterr().out
    assert main(["auditor", "--help"]) == 0
    assert "Count payloads for a coordinator until the run ends." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "error", "told"),
    [
        ("system.roles.auditer.num=1", UnknownPluginError, "auditor"),
        ("system.roles.auditor.nun=1", UnknownKeyError, "system.roles.auditor.nun"),
    ],
)
def test_mistake_in_a_role_is_found_before_the_run(
    setting: str, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        compile_run("cartpole-dqn", "parallel", "in_memory", (setting,), 0)
