"""The status of a run is written while it lasts, read from beside it, and printed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from dingsdk.cli.status import SILENT_S, status
from dingsdk.errors import RunFolderError
from dingsdk.pipeline import status_file
from dingsdk.pipeline.context import RunContext, RunStatus, TaskStatus
from dingsdk.pipeline.run_folder import STATUS_NAME
from dingsdk.pipeline.status_file import StatusFile, read_status
from dingsdk.worker.sample_counts import SampleCounts

TASK = TaskStatus("t1", "collector", "c0", 40, 12.5, False, 2, "room for 8 rows")
STATUS = RunStatus(
    env_steps=40,
    best_return=math.inf,
    buffer_capacity=64,
    workers=2,
    samples=SampleCounts(50, 40, 100, 30, {"overwritten": 9, "missing": 1}),
    tasks=(TASK,),
)


def context_of(run_dir: Path, *, has_begun: bool = True) -> RunContext:
    return RunContext(cfg=None, run_dir=run_dir, has_begun=has_begun, status=lambda: STATUS)


def shown(run: Path, *options: str) -> str:
    result = CliRunner().invoke(status, [str(run), *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_status_of_a_run_under_way_can_be_read_and_printed(tmp_path: Path) -> None:
    StatusFile(context_of(tmp_path), "parallel").write()
    found = read_status(tmp_path)
    assert found["samples"] == {
        "collected": 50, "acknowledged": 40, "trained": 100, "live": 30,
        "evicted": {"overwritten": 9, "missing": 1},
    }  # fmt: skip
    assert found["best_return"] is None
    assert found["reason"] is None
    assert json.loads(shown(tmp_path, "--json")) == found
    lines = shown(tmp_path).splitlines()
    assert lines[0].startswith("run           under way (process ")
    assert lines[5:] == [
        "collected     50 samples",
        "acknowledged  40, 10 not",
        "trained on    100 (2.50 times each)",
        "in the buffer 30 of 64",
        "evicted       9 overwritten, 1 missing",
        "task          collector c0, 12.5 a second, waits for room for 8 rows",
    ]


def test_run_that_was_killed_is_told_from_one_under_way(tmp_path: Path) -> None:
    StatusFile(context_of(tmp_path), "serial", clock=lambda: 1_000.0).write()
    assert "not heard of for" in shown(tmp_path)
    assert SILENT_S > 5 * status_file.INTERVAL_S


def test_status_is_written_again_and_again_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_file, "INTERVAL_S", 0.01)
    seen = []
    with StatusFile(context_of(tmp_path), "serial") as written:
        while len(set(seen)) < 3:
            if (tmp_path / STATUS_NAME).exists():
                seen.append(read_status(tmp_path)["written_at"])
        written.reason = "limit"
    assert read_status(tmp_path)["reason"] == "limit"
    assert shown(tmp_path).splitlines()[0] == "run           over: limit"


def test_run_that_never_began_leaves_no_status(tmp_path: Path) -> None:
    with StatusFile(context_of(tmp_path, has_begun=False), "serial"):
        pass
    with pytest.raises(RunFolderError, match="no run folder, or the run has not begun"):
        read_status(tmp_path)


def test_status_that_cannot_be_written_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / STATUS_NAME).mkdir()
    written = StatusFile(context_of(tmp_path), "serial")
    written.write()
    written.write()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("content", ["", "[]", '{"format": 99}', "{"])
def test_file_that_is_no_status_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / STATUS_NAME).write_text(content)
    with pytest.raises(RunFolderError, match=STATUS_NAME):
        read_status(tmp_path)
