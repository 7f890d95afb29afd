"""The memory watch logs each doubling of a worker's memory, and detects an exceeded limit."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from dingsdk.pipeline.worker import LOOK_S, SETTLED_S, MemoryWatch, resident_bytes

MB = 10**6


class Site:
    """A memory watch with a fake clock and a fake memory reading."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.now = 100.0
        self.used = 300 * MB
        self.looks = 0
        self.watch = MemoryWatch("collector-0", limit_bytes, lambda: self.now, self._read)

    def _read(self) -> int:
        self.looks += 1
        return self.used

    def after(self, seconds: float, used: int) -> bool:
        self.now += seconds
        self.used = used
        return self.watch.is_over_limit()


@pytest.mark.parametrize(
    ("pause_s", "sizes", "grown"),
    [
        (SETTLED_S, (500, 590, 999, 1000, 1999, 2000), [("500", "1,000"), ("1,000", "2,000")]),
        (LOOK_S, (1, 600, 2000), []),  # at the start it imports
        (SETTLED_S, (200, 468), []),  # less than 256 MiB
        (SETTLED_S, (200, 469), [("200", "469")]),
    ],
)
def test_each_doubling_is_logged_once_with_both_sizes(
    pause_s: float, sizes: tuple[int, ...], grown: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    site = Site()
    for used in sizes:
        site.after(pause_s, used * MB)

    assert re.findall(r"collector-0 grew from ([\d,]+) to ([\d,]+) MB", caplog.text) == grown


def test_limit_is_exceeded_only_while_more_than_the_limit_is_used() -> None:
    site = Site(limit_bytes=400 * MB)

    assert not site.after(LOOK_S, 400 * MB)
    assert site.after(LOOK_S, 400 * MB + 1)
    assert site.after(LOOK_S / 2, 0)
    assert not site.after(LOOK_S / 2, 0)


def test_memory_of_child_processes_is_counted() -> None:
    alone = resident_bytes()
    code = "x = bytearray(b'x') * 80_000_000; print(len(x), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with_child = resident_bytes()
        child.communicate("\n")

    assert alone > 10 * MB
    assert with_child - alone > 75 * MB
