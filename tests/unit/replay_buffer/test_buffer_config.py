"""The config of a buffer: defaults, invalid settings, unknown keys."""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError, ConfigTypeError, UnknownKeyError, UnknownPluginError
from dingsdk.worker.replay_buffer import (
    AdvancedReplayBuffer,
    NaiveReplayBuffer,
    SequenceReplayBuffer,
)


def make_buffer(**cfg: Any) -> NaiveReplayBuffer:
    return NaiveReplayBuffer({"replay_buffer_size": 8, "seed": 0, **cfg})


def test_default_config_is_a_copy_with_its_name() -> None:
    cfg = NaiveReplayBuffer.default_config()
    assert cfg.cfg_type == "NaiveReplayBufferDict"
    assert cfg.replay_buffer_size == 10000
    cfg.limiter.min_size = 5
    assert NaiveReplayBuffer.default_config().limiter.min_size == 1
    assert NaiveReplayBuffer(cfg).replay_buffer_size == 10000


@pytest.mark.parametrize(
    ("cfg", "error", "path"),
    [
        ({"replay_buffer_size": 0}, ConfigError, "replay_buffer_size"),
        ({"replay_buffer_size": "9"}, ConfigTypeError, "replay_buffer_size"),
        ({"replay_buffer_size": 2.5}, ConfigTypeError, "replay_buffer_size"),
        ({"deepcopy": 1}, ConfigTypeError, "deepcopy"),
        ({"seed": -1}, ConfigError, "seed"),
        ({"seed": "x"}, ConfigTypeError, "seed"),
        ({"enable_track_used_data": True}, ConfigError, "data_root"),
        ({"periodic_thruput_seconds": 0}, ConfigError, "periodic_thruput_seconds"),
        ({"limiter": {"min_size": 0}}, ConfigError, "limiter.min_size"),
        (
            {"limiter": {"type": "samples_per_insert", "samples_per_insert": float("inf")}},
            ConfigError,
            "limiter.samples_per_insert",
        ),
    ],
)
def test_error_for_an_invalid_setting_names_it(
    cfg: dict[str, Any], error: type[ConfigError], path: str
) -> None:
    with pytest.raises(error) as caught:
        make_buffer(**cfg)
    assert caught.value.path == path


def test_unknown_keys_and_types_are_named() -> None:
    with pytest.raises(UnknownKeyError) as caught:
        make_buffer(replay_bufer_size=5)
    assert caught.value.nearest == "replay_buffer_size"
    with pytest.raises(UnknownKeyError):
        make_buffer(limiter={"min_siz": 1})
    with pytest.raises(UnknownKeyError) as caught:
        make_buffer(limiter={"type": "samples_per_insert", "samples_per_inset": 2})
    assert caught.value.path == "limiter.samples_per_inset"
    with pytest.raises(UnknownPluginError):
        make_buffer(storage={"type": "arry"})


def test_a_push_that_gets_no_memory_raises_config_error_and_changes_nothing() -> None:
    buffer = make_buffer(replay_buffer_size=2**49)
    with pytest.raises(ConfigError) as caught:
        buffer.push(SampleBatch({"x": [1]}), 0)
    assert caught.value.path == "replay_buffer_size"
    assert (buffer.count(), buffer.push_count) == (0, 0)


@pytest.mark.parametrize("cls", [AdvancedReplayBuffer, SequenceReplayBuffer])
def test_error_for_a_capacity_above_the_memory_names_its_key(cls: Any) -> None:
    with pytest.raises(ConfigError, match="more memory than can be allocated") as caught:
        cls({"replay_buffer_size": 10**14})

    assert caught.value.path == "policy.other.replay_buffer.replay_buffer_size"


def test_origins_of_more_rows_than_memory_are_refused() -> None:
    buffer = make_buffer(replay_buffer_size=10**14)
    with pytest.raises(ConfigError, match="more memory than can be allocated"):
        buffer._contents.track_origins()
