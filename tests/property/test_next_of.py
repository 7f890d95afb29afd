"""Storage option ``next_of``: rows come back bit by bit, with shared following observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dingsdk.data import SampleBatch
from dingsdk.errors import SchemaMismatchError
from dingsdk.worker.replay_buffer import NaiveReplayBuffer

NEXT_OF = {"type": "array", "next_of": "obs"}


class Envs:
    """Makes transitions of envs in turn; with few kinds of observations, many are equal."""

    def __init__(self, seed: int, envs: int, kinds: int, nested: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.kinds = kinds
        self.nested = nested
        self.now = [self.observe() for _ in range(envs)]
        self.turn = 0

    def observe(self) -> Any:
        pos = self.rng.integers(0, self.kinds, 3).astype(np.float32) - 1
        # Zeros of both signs and a NaN: equal or unequal as numbers, but not as bytes.
        pos = np.where(pos == 0, self.rng.choice([0.0, -0.0, np.nan]), pos).astype(np.float32)
        if not self.nested:
            return pos
        return {"pos": pos, "seen": {"on": bool(self.rng.integers(2)), "no": np.zeros(0)}}

    def rows(self, n: int) -> list[dict[str, Any]]:
        rows = []
        for _ in range(n):
            env = self.turn = (self.turn + 1) % len(self.now)
            obs, after = self.now[env], self.observe()
            done = self.rng.random() < 0.2
            rows.append({"obs": obs, "next_obs": after, "reward": self.rng.random(), "end": done})
            self.now[env] = self.observe() if done else after
        return rows


def content(batch: SampleBatch | list[Any]) -> Any:
    assert isinstance(batch, SampleBatch)
    return to_bytes(batch.columns)


def to_bytes(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: to_bytes(value) for key, value in tree.items()}
    return tree.dtype.str, tree.shape, tree.tobytes()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    capacity=st.integers(1, 40),
    envs=st.integers(1, 64),
    kinds=st.sampled_from([1, 2, 50]),
    nested=st.booleans(),
    pushes=st.lists(st.tuples(st.integers(0, 90), st.booleans()), min_size=1, max_size=12),
)
def test_rows_come_back_bit_by_bit(
    seed: int, capacity: int, envs: int, kinds: int, nested: bool, pushes: list[tuple[int, bool]]
) -> None:
    source = Envs(seed, envs, kinds, nested)
    cfg = {"replay_buffer_size": capacity, "seed": seed}
    plain = NaiveReplayBuffer({**cfg, "storage": {"type": "array"}})
    linked = NaiveReplayBuffer({**cfg, "storage": NEXT_OF})
    for n, as_batch in pushes:
        rows = source.rows(n)
        for buffer in (plain, linked):
            if n == 1:
                buffer.push(rows[0], 0)
            else:
                buffer.push(SampleBatch.from_rows(rows) if as_batch and rows else rows, 0)
        size = plain.count()
        if size:
            whole, same = plain.sample(size, 0), linked.sample(size, 0)
            assert whole is not None
            assert same is not None
            assert content(same) == content(whole)
    again = NaiveReplayBuffer({**cfg, "storage": NEXT_OF})
    again.load_state_dict(linked.state_dict())
    if again.count():
        one, other = again.sample(again.count(), 0), plain.sample(plain.count(), 0)
        assert one is not None
        assert other is not None
        assert content(one) == content(other)


def own_count(buffer: NaiveReplayBuffer) -> int:
    following: Any = buffer._contents.storage._following  # type: ignore[union-attr]
    return int(np.count_nonzero(following._links[: buffer.count()] < 0))


@pytest.mark.parametrize("envs", [1, 7, 64])
@pytest.mark.parametrize("chunk", [1, 5, 64, 300])
def test_only_rows_without_a_follower_store_their_next_observation(envs: int, chunk: int) -> None:
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(envs):
        obs = rng.integers(0, 255, (41, 6, 5), np.uint8)
        episodes.append([{"obs": obs[i], "next_obs": obs[i + 1]} for i in range(40)])
    rows = [row for turn in zip(*episodes, strict=True) for row in turn]
    buffer = NaiveReplayBuffer({"replay_buffer_size": len(rows), "storage": NEXT_OF})
    for start in range(0, len(rows), chunk):
        buffer.push(rows[start : start + chunk], 0)
    assert own_count(buffer) == envs
    assert content(buffer.sample(len(rows), 0)) == content(SampleBatch.from_rows(rows))  # type: ignore[arg-type]


def test_rows_of_several_steps_share_the_observation_after_them() -> None:
    # Pieces of four steps with n-step returns of three: the last three rows of a piece lead to the
    # first observation of the next one.
    obs = np.random.default_rng(0).integers(0, 255, (2, 25, 6), np.uint8)
    rows = [
        {"obs": obs[env, step], "next_obs": obs[env, min(step + 3, piece + 4)]}
        for piece in range(0, 24, 4)
        for env in range(2)
        for step in range(piece, piece + 4)
    ]
    buffer = NaiveReplayBuffer({"replay_buffer_size": 48, "storage": NEXT_OF})
    for start in range(0, 48, 8):
        buffer.push(rows[start : start + 8], 0)
    assert own_count(buffer) == 6  # the last three rows of each env
    assert content(buffer.sample(48, 0)) == content(SampleBatch.from_rows(rows))


def test_rows_that_waited_too_long_keep_their_own_observation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dingsdk.worker.replay_buffer.storage.next_of._MOST_WAITING", 3)
    obs = np.arange(18.0).reshape(9, 2)
    rows = [{"obs": obs[i], "next_obs": obs[8 - i]} for i in range(9)]
    buffer = NaiveReplayBuffer({"replay_buffer_size": 9, "storage": NEXT_OF})
    for row in rows:
        buffer.push(row, 0)
    # Rows 3 and 2 are followed by 5 and 6; rows 1 and 0 no longer wait for rows 7 and 8.
    assert own_count(buffer) == 7
    assert content(buffer.sample(9, 0)) == content(SampleBatch.from_rows(rows))


def test_overwriting_frees_the_next_observation_of_a_row() -> None:
    rng = np.random.default_rng(1)
    buffer = NaiveReplayBuffer({"replay_buffer_size": 10, "storage": NEXT_OF})
    for _ in range(50):
        buffer.push([{"obs": rng.random(4), "next_obs": rng.random(4)} for _ in range(3)], 0)
        assert own_count(buffer) == buffer.count()


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"obs": np.zeros(2)}, "next_obs"),
        ({"next_obs": np.zeros(2)}, "obs"),
        ({"obs": np.zeros(2), "next_obs": np.zeros(3)}, "next_obs"),
        ({"obs": {"a": np.zeros(2)}, "next_obs": {"b": np.zeros(2)}}, "next_obs.a"),
    ],
)
def test_rows_without_a_pair_of_observations_are_refused(row: dict[str, Any], key: str) -> None:
    buffer = NaiveReplayBuffer({"replay_buffer_size": 10, "storage": NEXT_OF})
    with pytest.raises(SchemaMismatchError) as caught:
        buffer.push(row, 0)
    assert caught.value.key == key
    assert buffer.count() == 0
