"""SampleBatch compared with a plain list of dicts."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dingsdk.data import SampleBatch

few = settings(max_examples=40, deadline=None)
DTYPES = st.sampled_from(["?", "i1", "<i4", "<i8", "u1", "<f4", "<f8"])
TAILS = hnp.array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=3) | st.just(())


@st.composite
def forms(draw: st.DrawFn, depth: int = 1) -> dict[str, Any]:
    """Draw a mapping of column names to (dtype, shape of a row) or to a nested mapping."""
    leaf = st.tuples(DTYPES, TAILS)
    value = leaf | forms(depth=depth - 1) if depth else leaf
    return draw(st.dictionaries(st.sampled_from("abcd"), value, min_size=1, max_size=3))


def fill(form: dict[str, Any], rows: int, rng: np.random.Generator) -> dict[str, Any]:
    return {
        key: fill(value, rows, rng)
        if isinstance(value, dict)
        else (100 * rng.random((rows, *value[1]))).astype(value[0])
        for key, value in form.items()
    }


@st.composite
def batches(draw: st.DrawFn, count: int = 1) -> Any:
    form = draw(forms())
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    made = [SampleBatch(fill(form, draw(st.integers(1, 5)), rng)) for _ in range(count)]
    return made[0] if count == 1 else made


def to_rows(batch: SampleBatch) -> list[dict[str, Any]]:
    return [copy.deepcopy(row) for row in batch]


@few
@given(batches())
def test_rows_make_the_same_batch_again(batch: SampleBatch) -> None:
    # Rows of plain dicts are converted to float32 once; after that nothing changes.
    once = SampleBatch.from_rows(to_rows(batch))
    assert len(once) == len(batch)
    assert SampleBatch.from_rows(to_rows(once)) == once
    assert SampleBatch.from_rows(batch) == batch


@few
@given(batches(), st.data())
def test_take_gathers_rows_as_a_list_would(batch: SampleBatch, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(-len(batch), len(batch) - 1), max_size=8))
    rows = to_rows(batch)
    taken = batch.take(indices)
    assert [*taken] == [rows[index] for index in indices]
    before = batch.copy()
    for array in _arrays(taken.columns):
        array[...] = 0
    assert batch == before


@few
@given(batches(), st.slices(5))
def test_slice_has_the_rows_of_a_list_slice(batch: SampleBatch, part: slice) -> None:
    assert [*batch[part]] == to_rows(batch)[part]


@few
@given(batches(count=3))
def test_concat_joins_rows_as_a_list_would(parts: list[SampleBatch]) -> None:
    joined = SampleBatch.concat(parts)
    assert [*joined] == [row for part in parts for row in to_rows(part)]


@few
@given(batches())
def test_copies_and_pickles_are_equal_and_share_no_memory(batch: SampleBatch) -> None:
    for other in (batch.copy(), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):  # noqa: S301
        assert other == batch
        assert not any(
            np.shares_memory(ours, theirs)
            for ours, theirs in zip(_arrays(batch.columns), _arrays(other.columns), strict=True)
        )


def _arrays(columns: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    return [
        array
        for value in columns.values()
        for array in (_arrays(value) if isinstance(value, dict) else [value])
    ]
