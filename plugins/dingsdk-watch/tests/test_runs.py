"""Reading the files of a run folder."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from dingsdk_watch.runs import SILENT_S, TAIL_BYTES, Run

from dingsdk.errors import RunFolderError

from .run_folders import STATUS, write_run


def test_running_run_shows_its_status(run_folder: Path) -> None:
    found = Run(run_folder).status()

    assert (found["name"], found["state"], found["reason"]) == ("cartpole", "under way", None)
    assert found["status"]["env_steps"] == 1200
    assert found["evaluations"] == STATUS["evaluations"]
    assert found["error"] == ""


def test_run_that_wrote_nothing_for_long_is_silent(run_folder: Path) -> None:
    written_at = json.loads((run_folder / "status.json").read_text())["written_at"]

    def state(age_s: float) -> tuple[str, float]:
        found = Run(run_folder, clock=lambda: written_at + age_s).status()
        return found["state"], found["age_s"]

    assert state(SILENT_S) == ("under way", pytest.approx(SILENT_S))
    assert state(SILENT_S + 1)[0] == "silent"
    assert state(-5.0) == ("under way", 0.0)


def test_run_without_a_status_has_not_begun(run_folder: Path) -> None:
    (run_folder / "status.json").unlink()
    found = Run(run_folder).status()
    assert (found["state"], found["status"], found["evaluations"]) == ("not begun", {}, [])


BAD = [
    "",
    "{",
    "[]",
    '{"format": 1, "columns": 3}',
    '{"format": 2}',
    "\xff",
    "[" * 100_000,
    '{"format": 1, "env_steps": 1' + "0" * 400 + "}",
]


@pytest.mark.parametrize("content", BAD, ids=range(len(BAD)))
def test_file_that_cannot_be_read_is_named_and_the_rest_is_shown(
    run_folder: Path, content: str
) -> None:
    (run_folder / "status.json").write_text(content, encoding="latin-1")
    run = Run(run_folder)

    assert "status.json" in run.status()["error"]
    assert run.status()["state"] == "unreadable"
    assert run.curves()["env_steps"] == [0, 100, 200]


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"not a run folder: it has neither config\.yaml"):
        Run(tmp_path)
    with pytest.raises(RunFolderError, match="there is no run folder"):
        Run(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match="too long"):
        Run(tmp_path / ("x" * 300))


def test_curves_have_one_list_per_name_with_nested_values_flattened(run_folder: Path) -> None:
    with (run_folder / "progress.jsonl").open("a") as file:
        row = {"elapsed_s": 9.0, "env_steps": 900, "loss": None, "columns": {"gpu": 2, "note": "x"}}
        file.write("not json\n[]\n{}\n" + "[" * 100_000 + '\n{"elapsed_s": "1"}\n')
        file.write(json.dumps(row) + '\n{"elapsed_s": 10.0, "env_')

    assert Run(run_folder).curves() == {
        "elapsed_s": [0.0, 1.0, 2.0, 9.0],
        "env_steps": [0, 100, 200, 900],
        "loss": [1.0, 0.5, 1 / 3, None],
        "exploration/eps": [0.5, 0.5, 0.5, None],
        "columns/gpu": [None, None, None, 2],
    }


def test_long_curves_are_thinned_evenly_with_both_ends(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "run", lines=1000))

    found = run.curves(points=10)["elapsed_s"]

    assert (len(found), found[0], found[-1]) == (10, 0.0, 999.0)
    assert all(105 <= after - before <= 117 for before, after in itertools.pairwise(found))
    assert len(run.curves(points=1000)["elapsed_s"]) == 1000
    assert len(run.curves()["elapsed_s"]) == 400


def test_logs_are_listed_newest_first_and_tailed_from_a_whole_line(run_folder: Path) -> None:
    other = run_folder / "log" / "serial"
    (other / "serial_tb_logger").mkdir(parents=True)
    (other / "serial_tb_logger" / "not_this.txt").write_text("x")
    (other / "old.txt").write_text("line\n" * 10_000)
    os.utime(other / "old.txt", (1, 1))
    run = Run(run_folder)

    assert run.logs() == ["learner/learner_logger.txt", "serial/old.txt"]
    assert run.tail("learner/learner_logger.txt") == "first line\nlast line\n"
    tail = run.tail("serial/old.txt")
    assert tail is not None
    assert tail.startswith("line\n")
    assert TAIL_BYTES - 10 < len(tail) <= TAIL_BYTES


def test_nothing_outside_the_run_folder_is_read(run_folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text('{"format": 1, "secret": 1}')
    (run_folder / "log" / "link.txt").symlink_to(secret)
    os.mkfifo(run_folder / "log" / "fifo.txt")
    (run_folder / "status.json").unlink()
    (run_folder / "status.json").symlink_to(secret)
    run = Run(run_folder)

    assert run.logs() == ["learner/learner_logger.txt"]
    for name in ("link.txt", "../../secret.txt", "../config.yaml", str(secret), "absent.txt"):
        assert run.tail(name) is None
    assert "status.json" in run.status()["error"]
    (run_folder / "log").rename(tmp_path / "log")
    (run_folder / "log").symlink_to(tmp_path / "log")
    assert run.logs() == []
    assert run.tail("learner/learner_logger.txt") is None
