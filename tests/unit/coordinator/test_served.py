"""How a coordinator counts the samples of a replay server, also after a restart."""

from __future__ import annotations

import pytest

from dingsdk.errors import SamplesLostError
from dingsdk.worker.coordinator.experience import ServedExperience
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.sample_counts import SampleCounts

FIGURES = {"pushed": 90, "sampled": 64, "overwritten": 20, "cleared": 0, "count": 70}


def info(step: int) -> dict[str, object]:
    return {"learner_step": step, "lost_payloads": [], "replay": FIGURES}


def test_counts_and_leases_are_restored() -> None:
    state = TaskState("learner", "learner", {}, 0.0)
    old, new = ServedExperience(), ServedExperience()
    assert old.lease(state, 16, 4, 0)["batches"] == [{"batch_size": 16}] * 4
    old.settle(state, info(4))
    old.lease(state, 16, 4, 4)

    new.load_state_dict(old.state_dict())
    new.check()
    assert new.can_sample(70)
    assert not new.can_sample(71)
    assert new.counts() == old.counts()
    assert (new.counts().trained, new.counts().evicted) == (64, {"overwritten": 20})
    assert new.settle(state, info(7))
    assert new.counts().trained == (4 + 3) * 16
    new.lease(state, 16, 4, 7)
    assert new.settle(state, {**info(9), "batches_left": 2})
    assert new.settle(state, info(11))
    assert new.counts().trained == 11 * 16
    assert not new.settle(state)


def test_announced_rows_can_be_sampled_before_the_server_reports_figures() -> None:
    experience = ServedExperience()
    assert not experience.can_sample(1)
    experience.push({"data_id": "a", "rows": 3}, 0)
    assert experience.can_sample(3)
    assert not experience.can_sample(4)


def test_any_rows_can_be_pushed_and_no_columns_are_needed() -> None:
    experience = ServedExperience()
    assert experience.columns == ()
    assert experience.can_push(10**9)
    assert experience.push({"data_id": "a", "rows": 3}, 0)


def test_wrong_row_count_of_the_server_is_an_error() -> None:
    experience = ServedExperience()
    experience.note_figures({**FIGURES, "count": 69})
    with pytest.raises(SamplesLostError):
        experience.check()
    experience.note_figures(None)
    assert experience.count_rows() == 69
    experience.note_figures(FIGURES)
    experience.check()


def test_counts_are_zero_before_the_server_reports_figures() -> None:
    counts = ServedExperience().counts()
    assert counts == SampleCounts()
