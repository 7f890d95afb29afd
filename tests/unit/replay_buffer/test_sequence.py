"""The sequence buffer: sequences from one trajectory, each valid start equally likely."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    CheckpointCorruptError,
    ConfigError,
    SchemaMismatchError,
)
from dingsdk.worker.replay_buffer import SequenceReplayBuffer

Trajectories = list[list[int]]


def make(capacity: int = 50, storage: str = "auto", **sampler: Any) -> SequenceReplayBuffer:
    return SequenceReplayBuffer(
        {
            "replay_buffer_size": capacity,
            "seed": 0,
            "storage": {"type": storage},
            "sampler": {"type": "sequence", **sampler},
        }
    )


def fill(buffer: SequenceReplayBuffer, lengths: list[int], chunk: int = 7) -> Trajectories:
    """Push trajectories of these lengths; return the row numbers of each that are stored."""
    rows, trajectories, number = [], [], 0
    for length in lengths:
        trajectories.append(list(range(number, number + length)))
        rows += [{"x": number + i, "done": i == length - 1} for i in range(length)]
        number += length
    for start in range(0, number, chunk):
        buffer.push(rows[start : start + chunk], 0)
    oldest = number - buffer.count()
    held = [[x for x in numbers if x >= oldest] for numbers in trajectories]
    return [numbers for numbers in held if numbers]


def starts_of(
    trajectories: Trajectories, whole: Trajectories, length: int, stride: int = 1
) -> set[int]:
    """Return the expected starts: those of all sequences inside one trajectory."""
    first = {x: numbers[0] for numbers in whole for x in numbers}
    return {
        x
        for numbers in trajectories
        for x in numbers
        if x + length - 1 <= numbers[-1] and (x - first[x]) % stride == 0
    }


LENGTHS = [[60], [10, 1, 9, 30, 3, 20], [5] * 12, [1] * 30, [33, 33, 33], [49, 2]]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("length", "stride", "burn_in"), [(4, 1, 0), (5, 3, 0), (2, 7, 3)])
@pytest.mark.parametrize("storage", ["auto", "object"])
def test_every_valid_start_and_no_other_is_drawn(
    lengths: list[int], length: int, stride: int, burn_in: int, storage: str
) -> None:
    buffer = make(storage=storage, stride=stride, burn_in=burn_in)
    held = fill(buffer, lengths)
    whole = [[*range(sum(lengths[:i]), sum(lengths[: i + 1]))] for i in range(len(lengths))]
    expected = starts_of(held, whole, length + burn_in, stride)

    assert buffer.count_starts(length) == len(expected)
    found: set[int] = set()
    for _ in range(200):
        batch = buffer.sample(4, length, 0)
        if not expected:
            assert batch is None
            continue
        assert batch is not None
        for sequence in batch if isinstance(batch, list) else batch.columns["x"]:
            numbers = [int(x["x"]) if isinstance(x, dict) else int(x) for x in sequence]
            assert numbers == list(range(numbers[0], numbers[0] + length + burn_in))
            found.add(numbers[0])
    assert found == expected


def test_rare_starts_are_equally_likely() -> None:
    buffer = make(capacity=3000)
    fill(buffer, [*([3] * 900), 20, *([2] * 50)], chunk=500)
    drawn = Counter[int]()
    for _ in range(400):
        batch = buffer.sample(4, 18, 0)
        assert isinstance(batch, SampleBatch)
        drawn.update(batch.columns["x"][:, 0].tolist())
    assert sorted(drawn) == [2700, 2701, 2702]
    assert all(abs(n - 1600 / 3) < 5 * np.sqrt(1600 / 3) for n in drawn.values())


def test_ages_of_drawn_sequences_are_recorded() -> None:
    buffer = make()
    fill(buffer, [6])
    buffer.sample(1, 6, 0)
    assert buffer.sampled_stats() == {"age_mean": 2.5, "age_min": 0, "age_max": 5}


def test_padded_sequences_are_zero_outside_the_trajectory() -> None:
    buffer = make(capacity=12, pad=True, burn_in=2)
    fill(buffer, [5, 5, 5])  # held: 3, 4 | 5..9 | 10..14
    seen = set()
    for _ in range(300):
        batch = buffer.sample(3, 4, 0)
        assert isinstance(batch, SampleBatch)
        for numbers, mask, done in zip(
            *(batch.columns[name].tolist() for name in ("x", "mask", "done")), strict=True
        ):
            inside = [x for x, held in zip(numbers, mask, strict=True) if held]
            start = numbers[2]
            assert mask[2]
            first = max(start - start % 5, 3)
            assert inside == list(range(max(start - 2, first), min(start + 4, start // 5 * 5 + 5)))
            assert not any(x for x, held in zip(numbers, mask, strict=True) if not held)
            assert not any(end for end, held in zip(done, mask, strict=True) if not held)
            seen.add(start)
    assert seen == set(range(3, 15))


def test_padded_objects_come_as_shorter_lists() -> None:
    buffer = make(storage="object", pad=True)
    fill(buffer, [3])
    batch = buffer.sample(5, 4, 0, replace=True)
    assert isinstance(batch, list)
    assert all([row["x"] for row in rows] == list(range(rows[0]["x"], 3)) for rows in batch)


def test_rows_without_an_end_form_blocks() -> None:
    buffer = make(capacity=40, block_length=10)
    buffer.push([{"x": i} for i in range(65)], 0)
    assert buffer.count_starts(10) == 3  # held: 25..64; whole blocks start at 30, 40 and 50
    assert buffer.count_starts(11) == 0
    assert buffer.sample(1, 11, 0) is None


def test_a_change_of_trajectory_ends_a_sequence() -> None:
    buffer = make(trajectory="env")
    for env in (0, 1, 1, 0):
        buffer.push([{"x": i, "env": env, "done": False} for i in range(5)], 0)
    # 0 | 1 1 | 0: the second push continues in the third.
    assert buffer.count_starts(5) == 1 + 6 + 1


def test_a_trajectory_continues_in_the_next_push() -> None:
    buffer = make(trajectory="env")
    for envs in ((0, 0, 1), (1, 1, 0), (0,)):
        buffer.push([{"x": 0, "env": env, "done": False} for env in envs], 0)
    # 0 0 | 1 1 1 | 0 0
    assert [buffer.count_starts(length) for length in (1, 2, 3, 4)] == [7, 4, 1, 0]


@pytest.mark.parametrize(
    ("rows", "expected", "found"),
    [
        ([{"x": 1}], "a value of 'done'", "none"),
        ([{"x": 1, "done": True}, {"x": 1}], "one value a row", "none in 1 of 2 rows"),
        ([{"x": 1, "done": np.zeros(2, bool)}], "one value a row", "an array"),
        (
            SampleBatch({"x": np.arange(2), "done": np.zeros((2, 3), bool)}),
            *("one value a row", [2, 3]),
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("storage", ["auto", "object"])
def test_rows_without_a_valid_done_are_refused(
    storage: str, rows: Any, expected: str, found: Any
) -> None:
    buffer = make(storage=storage)
    fill(buffer, [10])
    with pytest.raises(SchemaMismatchError) as caught:
        buffer.push(rows, 0)
    error = caught.value
    assert (error.key, error.expected, error.found) == ("done", expected, found)
    assert str(error).startswith("'done'")
    assert buffer.count() == 10
    assert buffer.count_starts(10) == 1


@pytest.mark.parametrize(
    ("sampler", "row", "key", "expected", "found"),
    [
        ({}, {"x": 1, "done": False}, "done", "none", "a value of 'done'"),
        ({"trajectory": "env"}, {"x": 1}, "env", "a value in every row", "none"),
        ({"pad": True}, {"x": 1, "mask": 1}, "mask", "another name", "mask"),
    ],
)
def test_error_for_missing_or_reserved_columns_says_what_is_expected(
    sampler: dict[str, Any], row: dict[str, Any], key: str, expected: str, found: str
) -> None:
    buffer = make(**sampler)
    if not sampler:
        buffer.push({"x": 1}, 0)
    for rows in ([row], SampleBatch.from_rows([row])):
        with pytest.raises(SchemaMismatchError) as caught:
            buffer.push(rows, 0)
        error = caught.value
        assert (error.key, error.expected, error.found) == (key, expected, found)
    assert buffer.count() == (not sampler)


def test_invalid_settings_are_refused() -> None:
    for bad in ({"stride": 0}, {"burn_in": -1}, {"pad": "yes"}, {"block_length": 0}):
        with pytest.raises(ConfigError):
            make(**bad)
    with pytest.raises(ConfigError, match="SequenceSampler"):
        SequenceReplayBuffer({"sampler": {"type": "uniform"}})


def steps(*numbers: int, done: bool | None = False) -> SampleBatch:
    ends = {} if done is None else {"done": np.full(len(numbers), done)}
    return SampleBatch({"x": np.array(numbers), **ends})


def pairs(buffer: SequenceReplayBuffer) -> set[tuple[int, ...]]:
    """Return the sequences of two rows that are drawn."""
    batch = buffer.sample(300, 2, 0, replace=True)
    assert isinstance(batch, SampleBatch)
    return set(map(tuple, batch.columns["x"].tolist()))


@pytest.mark.parametrize("done", [False, None])
def test_sequences_do_not_cross_an_end_of_trajectory(done: bool | None) -> None:
    buffer = make()
    buffer.end_trajectory()  # there is no row yet
    buffer.push(steps(0, 1, 2, done=done), 0)
    for _ in range(2):
        buffer.end_trajectory()
    buffer.push(steps(3, done=done), 0)
    buffer.push(steps(4, 5, done=done), 0)

    assert pairs(buffer) == {(0, 1), (1, 2), (3, 4), (4, 5)}
    assert [buffer.count_starts(length) for length in (3, 4)] == [2, 0]


def test_strides_start_again_after_an_end_of_trajectory() -> None:
    buffer = make(stride=2)
    buffer.push(steps(0, 1, 2), 0)
    buffer.end_trajectory()
    buffer.push(steps(3, 4, 5, 6), 0)
    assert pairs(buffer) == {(0, 1), (3, 4), (5, 6)}


def test_ends_of_overwritten_rows_are_forgotten() -> None:
    buffer = make(capacity=4)
    for number in range(0, 60, 2):
        buffer.push(steps(number, number + 1), 0)
        buffer.end_trajectory()
    assert pairs(buffer) == {(56, 57), (58, 59)}
    assert buffer.state_dict()["sampler"]["early_ends"].tolist() == [1, 3]


@pytest.mark.parametrize("way", ["state", "saved", "into-another"])
def test_loaded_rows_keep_the_ends_of_their_trajectories(tmp_path: Path, way: str) -> None:
    with make(capacity=6) as buffer:
        buffer.push(steps(0, 1, 2, 3), 0)
        buffer.end_trajectory()
        buffer.push(steps(4, 5, 6, 7), 0)
        buffer.end_trajectory()
        state = buffer.state_dict()
        buffer.save_data(str(tmp_path / "saved"))
    with make(capacity=20 if way == "into-another" else 6) as buffer:
        if way == "state":
            buffer.load_state_dict(state)
        else:
            buffer.load_data(str(tmp_path / "saved"))
        buffer.push(steps(8), 0)
        expected = {(4, 5), (5, 6), (6, 7)}  # the oldest row was 2, or is 3
        if way == "into-another":
            expected |= {(2, 3)}
        assert pairs(buffer) == expected


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("early_ends", [3, 3]), ("early_ends", [-1]), ("early_ends", "x"), ("first_since", -1)],
    ids=str,
)
def test_a_wrong_sampler_state_is_refused(key: str, wrong: Any) -> None:
    buffer = make()
    buffer.push(steps(0, 1, 2, 3, 4), 0)
    state = buffer.state_dict()
    state["sampler"][key] = wrong
    with pytest.raises(CheckpointCorruptError, match=key):
        buffer.load_state_dict(state)
    assert buffer.count() == 5
