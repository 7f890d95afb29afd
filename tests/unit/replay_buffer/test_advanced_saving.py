"""The prioritized buffer: metadata of its rows when they are saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .prioritized_rows import batch, column, facts, make_buffer


def test_loaded_rows_above_max_use_of_the_buffer_leave(tmp_path: Path) -> None:
    old, new = make_buffer(), make_buffer(replay_buffer_size=3, max_use=2)
    old.push(batch(*range(6)), 0)
    for age in (1, 4, 4, 5, 5, 5):
        old.sample(1, 0, slice(age, age + 1))
    old.save_data(str(tmp_path / "rows"))
    left: list[Any] = []
    new.add_remove_listener(lambda rows, reason: left.append((column(rows, "action"), reason)))
    new.load_data(str(tmp_path / "rows"))
    assert left == [([0, 1, 2], "overwritten"), ([4, 5], "used_up")]
    assert (new.count(), new.push_count) == (1, 6)
    assert facts(new, "use") == {3: 1}
