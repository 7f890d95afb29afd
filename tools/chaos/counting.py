"""Counts what workers are told to be acknowledged, beside all parts of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dingsdk.worker import Coordinator

_NAME = "acknowledged"


def count_acknowledged(folder: Path) -> None:
    """Have every coordinator of this process write down each payload that it acknowledges."""
    acknowledge = Coordinator.deal_with_collector_send_data

    def counted(self: Coordinator, state: Any, meta: Any) -> bool:
        is_taken = acknowledge(self, state, meta)
        if is_taken and self.experience_of(state) is not None:
            with (folder / _NAME).open("a") as file:
                file.write(f"{meta['data_id']} {meta['rows']}\n")
        return is_taken

    Coordinator.deal_with_collector_send_data = counted  # type: ignore[method-assign]


def acknowledged_rows(folder: Path) -> int:
    """Return the rows of all payloads that were written down, each payload counted once."""
    lines = (folder / _NAME).read_text().split("\n")
    # A coordinator may have been killed in the middle of a line.
    rows = dict(line.split() for line in lines if line.count(" ") == 1)
    return sum(map(int, rows.values()))
