"""The JSON Schema accepts and refuses the same configs as ``compile_config``."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from dingsdk.cli.root import root
from dingsdk.config import LARGEST_INT, apply_set, load_config, to_plain
from dingsdk.errors import ConfigError
from dingsdk.pipeline.compile import compile_config
from dingsdk.pipeline.json_schema import config_schema


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return config_schema()


def is_valid(config: dict[str, Any], schema: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(config)


def test_schema_is_a_valid_json_schema(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)


def test_example_and_its_compiled_form_are_valid(schema: dict[str, Any]) -> None:
    user = load_config("cartpole-dqn")
    compiled = to_plain(compile_config(user, mode="parallel"))

    jsonschema.Draft202012Validator(schema).validate(user)
    jsonschema.Draft202012Validator(schema).validate(compiled)
    jsonschema.validate(compiled, config_schema(compiled))  # checks this schema too


@pytest.mark.parametrize(
    "assignment",
    [
        "policy.learn.batchsize=3",
        "policy.learn.batch_size=0",
        "policy.learn.batch_size=text",
        "policy.other.eps.type=stairs",
        "policy.other.replay_buffer.sampler.type=3",
        "system.coordinator.lease_s=0",
        "env.env_id=3",
        "unknown=1",
    ],
)
def test_config_that_compiling_refuses_is_invalid(schema: dict[str, Any], assignment: str) -> None:
    config = apply_set(load_config("cartpole-dqn"), assignment)

    with pytest.raises(ConfigError):
        compile_config(config, mode="parallel")
    assert not is_valid(config, schema)


def test_key_has_description_type_bounds_and_default(schema: dict[str, Any]) -> None:
    policies = {each["title"]: each for each in schema["properties"]["policy"]["anyOf"]}
    learn = policies["policies: dqn"]["properties"]["learn"]["properties"]

    assert learn["target_update_freq"] == {
        "description": "Iterations between two copies to the target network.",
        "type": "integer",
        "minimum": 1,
        "maximum": LARGEST_INT,
        "default": 100,
    }
    number, schedule = learn["learning_rate"]["anyOf"]
    assert number == {"type": "number", "exclusiveMinimum": 0, "maximum": LARGEST_INT}
    assert schedule["required"] == ["start", "end", "env_steps"]


def test_command_prints_the_schema_of_a_config() -> None:
    printed = CliRunner().invoke(root, ["config", "schema", "cartpole-dqn"], obj={})

    assert printed.exit_code == 0
    transport = json.loads(printed.stdout)["properties"]["system"]["properties"]["transport"]
    assert transport["properties"]["type"] == {"const": "in_memory"}
    assert transport["properties"]["concurrency"]["enum"] == ["greenlets", "threads"]
