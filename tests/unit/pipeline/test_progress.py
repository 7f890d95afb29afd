"""Progress says why a run stands still."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dingsdk.pipeline.context import RunStatus
from dingsdk.pipeline.progress import ConsoleProgress


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_says_what_holds_a_run_up(is_terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=300)
    with ConsoleProgress(console, lambda: RunStatus(held_up_by="cannot write: ENOSPC"), 500.0):
        pass
    assert "held up: cannot write: ENOSPC" in out.getvalue()
    with ConsoleProgress(console, RunStatus, 500.0):
        out.truncate(0)
    assert "held up" not in out.getvalue()
