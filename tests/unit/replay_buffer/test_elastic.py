"""The elastic buffer: samples from a window of the newest rows, whose size is scheduled."""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.errors import (
    CheckpointCorruptError,
    ConfigError,
    ConfigTypeError,
    UnknownKeyError,
)
from dingsdk.worker.replay_buffer import ElasticReplayBuffer


def make(set_buffer_size: Any, rows: int = 10, capacity: int = 10) -> ElasticReplayBuffer:
    cfg = {"replay_buffer_size": capacity, "set_buffer_size": set_buffer_size, "seed": 0}
    buffer = ElasticReplayBuffer(cfg)
    buffer.push([{"x": i} for i in range(rows)], 0)
    return buffer


def drawn(buffer: ElasticReplayBuffer, size: int) -> list[int] | None:
    rows = buffer.sample(size, 0)
    return None if rows is None else sorted(int(row["x"]) for row in rows)


def test_the_window_is_limited_by_the_capacity_and_the_stored_rows() -> None:
    buffer = make(1000, rows=4)
    assert buffer.window == 10
    assert drawn(buffer, 4) == [0, 1, 2, 3]
    assert drawn(buffer, 5) is None


@pytest.mark.parametrize(("envstep", "window"), [(0, 2), (50, 5), (100, 8), (5000, 8)])
def test_a_linear_schedule_fits_in_a_config_file(envstep: int, window: int) -> None:
    buffer = make({"start": 2, "end": 8, "env_steps": 100})
    buffer.update(envstep)
    assert buffer.window == window


def test_pushes_update_the_window() -> None:
    buffer = make(lambda envstep: 1 + envstep)
    buffer.push({"x": 10}, 3)
    assert buffer.window == 4
    buffer.push({"x": 11}, 1)
    assert buffer.window == 4


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        (0, ConfigError),
        ("many", ConfigTypeError),
        (lambda envstep: 0, ConfigError),
        (lambda envstep: "x", ConfigTypeError),
        ({"start": 1, "end": 2}, ConfigError),
        ({"start": 1, "end": 0, "env_steps": 3}, ConfigError),
        ({"start": 1, "end": 2, "env_steps": 3, "step": 4}, UnknownKeyError),
    ],
)
def test_a_schedule_that_gives_no_size_is_refused(setting: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^(unknown config key )?set_buffer_size"):
        make(setting)


def test_a_bad_update_changes_nothing() -> None:
    buffer = make(lambda envstep: 3 if envstep == 0 else -1)
    for bad in (1, -1, "x", None, 1.5):
        with pytest.raises(ConfigError):
            buffer.update(bad)
    assert drawn(buffer, 3) == [7, 8, 9]
    with pytest.raises(ConfigError, match="window"):
        buffer.sample(1, 0, sample_range=slice(0, 3))


@pytest.mark.parametrize("envstep", [None, -1, 2.0, "2", True])
def test_a_state_with_an_invalid_envstep_is_refused(envstep: Any) -> None:
    buffer, other = make(lambda envstep: 8 + envstep), make(lambda envstep: 3 + envstep, rows=4)
    with pytest.raises(CheckpointCorruptError, match="envstep is"):
        other.load_state_dict({**buffer.state_dict(), "envstep": envstep})
    assert other.window == 3
    assert drawn(other, 3) == [1, 2, 3]
