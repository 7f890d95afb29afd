"""Each figure in the comparison page is the median of the runs in its raw file."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "explanation" / "comparison.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if "time_to_solve-" in line]


def test_table_names_every_raw_file() -> None:
    named = sorted(re.findall(r"results/(time_to_solve-[\w-]+\.json)", PAGE))
    found = sorted(path.name for path in (DOCS / "images" / "results").glob("time_to_solve-*"))
    assert named == found
    assert len(ROWS) == len(found) == 4


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip() for row in ROWS])
def test_table_shows_the_medians_of_the_runs(row: str) -> None:
    _, seeds, *seconds, ratio, link = (cell.strip() for cell in row.strip("|").split("|"))
    raw = json.loads((DOCS / "explanation" / link[len("[raw](") : -1]).read_text())
    medians = []
    for contender in ("serial", "in_memory", "sb3"):
        runs = [run for run in raw["runs"] if run["contender"] == contender]
        assert len(runs) == int(seeds)
        assert all(run["solved"] for run in runs)
        medians.append(statistics.median(run["elapsed_s"] for run in runs))
    assert seconds == [f"{each:.1f} s" for each in medians]
    assert float(ratio) == pytest.approx(medians[0] / medians[2], abs=0.006)


def test_text_states_the_medians_of_the_parallel_runs() -> None:
    raw = json.loads((DOCS / "images" / "results" / "parallel-lunarlander-dqn.json").read_text())
    for contender in ("serial", "shared_memory"):
        runs = [run for run in raw["runs"] if run["contender"] == contender]
        assert len(runs) == 5
        assert all(run["reached"] for run in runs)
        steps = statistics.median(run["env_steps"] for run in runs)
        seconds = statistics.median(run["elapsed_s"] for run in runs)
        assert f"{steps:,} env steps and {seconds:.1f} s" in " ".join(PAGE.split())
