"""Config values against the defaults of what reads them."""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.errors import ConfigError, ConfigTypeError
from dingsdk.pipeline.records import (
    EnvSection,
    RunConfig,
    SystemSection,
    defaults_of,
    to_record,
)
from dingsdk.pipeline.schema import check_capacity, check_ranges, check_types

NOWHERE: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("value", "default"),
    [
        ("abc", 3),
        (True, 3),
        (2.5, 3),
        (None, 3),
        ("0.1", 0.5),
        (True, 0.5),
        (float("nan"), 0.5),
        (1, True),
        ("yes", False),
        (3, "auto"),
        ("64", [64]),
        (["a"], [64]),
        (5, {"a": 1}),
    ],
)
def test_value_of_another_type_is_refused_with_its_path(value: Any, default: Any) -> None:
    with pytest.raises(ConfigTypeError) as caught:
        check_types({"a": {"b": value}}, {"a": {"b": default}}, "", NOWHERE)

    assert caught.value.path.startswith("a.b")
    assert "a.b" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "default", "expected"),
    [
        (1e6, 3, 1_000_000),
        (1, 0.5, 1),
        (False, True, False),
        ("x", "auto", "x"),
        ([1, 2.0], [64], [1, 2]),
        ("anything", None, "anything"),
        ([], [64], []),
    ],
)
def test_fitting_value_is_kept(value: Any, default: Any, expected: Any) -> None:
    checked = check_types({"a": value}, {"a": default}, "", NOWHERE)

    assert checked == {"a": expected}
    assert type(checked["a"]) is type(expected)


def test_open_section_is_taken_as_it_is() -> None:
    user = {"hook": {"mine": {"priority": "high"}, "freq": "x"}}

    assert check_types(user, {"hook": {"freq": 3}}, "", frozenset({"hook"})) == user


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("policy.learn.batch_size", 0),
        ("policy.collect.n_sample", 0),
        ("policy.discount_factor", 1.5),
        ("policy.learn.learning_rate", 0.0),
        ("policy.other.replay_buffer.replay_buffer_size", -1),
        ("policy.other.replay_buffer.seed", "abc"),
        ("policy.collect.collector.seed", -1),
        ("policy.collect.parallel_collector.print_freq", 0),
        # The run would wait for ever.
        ("policy.learn.learner.train_iterations", 0),
        ("policy.other.commander.collector_task_space", 0),
        ("policy.other.commander.learner_task_space", 0),
        ("env.collector_env_num", 10**12),
    ],
)
def test_value_out_of_range_is_refused(path: str, value: Any) -> None:
    cfg: Any = value
    for key in reversed(path.split(".")):
        cfg = {key: cfg}

    with pytest.raises(ConfigTypeError) as caught:
        check_ranges(cfg)

    assert caught.value.path == path
    assert caught.value.found == value


@pytest.mark.parametrize(("section", "key"), [("learn", "batch_size"), ("collect", "n_sample")])
def test_buffer_too_small_to_work_with_is_refused_before_the_run(section: str, key: str) -> None:
    policy = {section: {key: 64}, "other": {"replay_buffer": {"replay_buffer_size": 63}}}

    with pytest.raises(ConfigError, match=rf"63, less than policy\.{section}\.{key} 64") as caught:
        check_capacity({"policy": policy})

    assert (caught.value.capacity, caught.value.needed) == (63, 64)


def test_buffer_of_exactly_one_batch_is_accepted() -> None:
    policy = {"learn": {"batch_size": 64}, "other": {"replay_buffer": {"replay_buffer_size": 64}}}

    check_capacity({"policy": policy})


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"seed": "abc"}, "seed"),
        ({"seed": -1}, "seed"),
        ({"exp_name": "../elsewhere"}, "exp_name"),
        ({"env": {"env_id": "E", "collector_env_num": -1}}, "env.collector_env_num"),
        ({"env": {"env_id": "E", "stop_value": "high"}}, "env.stop_value"),
        ({"system": {"torch_threads": 0}}, "system.torch_threads"),
        ({"system": {"collector_num": 1.5}}, "system.collector_num"),
    ],
)
def test_run_level_value_that_cannot_work_is_refused(section: dict[str, Any], path: str) -> None:
    whole = {"env": {"env_id": "E"}, "policy": {}, **section}

    with pytest.raises(ConfigTypeError) as caught:
        to_record(whole, RunConfig)

    assert caught.value.path == path


@pytest.mark.parametrize("record", [RunConfig, EnvSection, SystemSection])
def test_every_record_key_is_documented(record: Any) -> None:
    for key in defaults_of(record):
        assert f"\n        {key}: " in record.__doc__


def test_defaults_are_fresh_each_time() -> None:
    defaults_of(SystemSection)["transport"]["type"] = "changed"

    assert defaults_of(SystemSection)["transport"] == {"type": "in_memory"}
