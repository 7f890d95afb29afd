"""The prioritized buffer: metadata of its rows when they are saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.worker.replay_buffer import (
    AdvancedReplayBuffer,
    persistence,
)
from dingsdk.worker.replay_buffer.state import ColumnCopy
from dingsdk.worker.replay_buffer.storage import Where

from .prioritized_rows import batch, column, equal_states, facts, info, make_buffer
from .saved_rows import Disturbed


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


class DisturbedAdvanced(Disturbed, AdvancedReplayBuffer):
    """A prioritized buffer that is changed just before each snapshot."""


@pytest.mark.parametrize("sampler", ["proportional", "rank"])
@pytest.mark.parametrize("limits", [{}, {"max_use": 2}, {"max_staleness": 3}])
def test_saved_state_is_that_of_the_last_snapshot_despite_changes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sampler: str,
    limits: dict[str, Any],
) -> None:
    cfg = {"replay_buffer_size": 100, "sampler": {"type": sampler}, **limits}
    buffer, rng = DisturbedAdvanced({**cfg, "seed": 0}), np.random.default_rng(0)
    looks, sampled = 0, list[dict[str, Any]]()
    copy = ColumnCopy._copy

    def copy_beside_others(self: ColumnCopy, where: Where) -> None:
        copy(self, where)
        if buffer.before and not buffer._lock.locked():
            meddle()

    monkeypatch.setattr(ColumnCopy, "_copy", copy_beside_others)

    def meddle() -> None:
        nonlocal looks
        looks += 1
        if looks > 20:
            buffer.update(sampled[-20])
        buffer.push(batch(*range(looks, looks + 3), collect_iter=np.full(3, looks)), 0)
        sample = buffer.sample(2, looks)
        assert isinstance(sample, SampleBatch)
        sampled.append(info(sample, rng.random(2)))
        sample.columns["replay_buffer_idx"][:] = -1  # the sample is a copy

    for _ in range(40):
        meddle()
    for number in range(3):
        buffer.before[0] = meddle
        persistence.save(tmp_path, buffer, 64)
        buffer.before.clear()
        new = AdvancedReplayBuffer({**cfg, "seed": 1})
        new.resume_data(str(tmp_path))
        assert equal_states(new.state_dict(), buffer.state_dict()), number
        assert not buffer._contents.copies
    assert looks >= 40 + 3 * 4
