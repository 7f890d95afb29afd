"""Sample counts can be added, and inconsistent counts raise an error."""

from __future__ import annotations

import pytest

from dingsdk.errors import SamplesLostError
from dingsdk.worker.sample_counts import SampleCounts


def test_counts_of_two_buffers_are_added_field_by_field() -> None:
    one = SampleCounts(10, 8, 20, 5, {"overwritten": 3})
    two = SampleCounts(4, 4, 1, 1, {"overwritten": 2, "missing": 1})
    both = SampleCounts(14, 12, 21, 6, {"overwritten": 5, "missing": 1})
    assert one + two == both
    assert both.unacknowledged == 2
    for each in (one, two, both):
        each.check()


@pytest.mark.parametrize(
    "wrong",
    [
        SampleCounts(8, 8, 0, 5, {"overwritten": 2}),
        SampleCounts(8, 8, 0, 5, {"overwritten": 4}),
        SampleCounts(7, 8, 0, 5, {"overwritten": 3}),
    ],
)
def test_inconsistent_counts_raise_samples_lost_error(wrong: SampleCounts) -> None:
    with pytest.raises(SamplesLostError) as caught:
        wrong.check()
    assert caught.value.facts["acknowledged"] == 8
    assert str(wrong.live) in str(caught.value)
