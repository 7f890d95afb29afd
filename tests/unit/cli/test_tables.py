"""Tables on the console and in pipes."""

from __future__ import annotations

import io
import sys

import pytest

from dingsdk.cli.tables import show_table

ROWS = [("ok", "a longer name", "a b c"), ("failed", "b", "words that\nfill a line " * 4)]


def test_columns_are_aligned_and_rows_are_single_lines_in_a_pipe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_table(ROWS, ("state", "name", "why"))

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "state   name           why"
    assert lines[1] == "ok      a longer name  a b c"
    assert lines[2].startswith("failed  b              words that fill a line words")
    assert len(lines) == 3


class Terminal(io.StringIO):
    """Text written to a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "is_wrapped"), [("60", True), ("43", True), ("42", False)])
def test_last_column_is_wrapped_if_a_terminal_has_20_columns_left_for_it(
    columns: str, is_wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)

    show_table(ROWS)

    lines = terminal.getvalue().splitlines()
    assert (len(lines) > 2) == is_wrapped
    if is_wrapped:
        assert max(map(len, lines)) <= int(columns)
        assert all(line.startswith(" " * 23) for line in lines[2:])
