"""A space that is written into a config is read back equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from dingsdk.config import load_config, save_config
from dingsdk.envs.space_description import describe_space, make_space
from dingsdk.errors import ConfigError

SPACES = [
    spaces.Box(0, 255, (84, 84, 4), np.uint8),
    spaces.Box(np.array([-4.8, -np.inf], np.float32), np.array([4.8, np.inf], np.float32)),
    spaces.Box(-0.1, 0.3, (), np.float64),
    spaces.Discrete(3),
    spaces.Discrete(3, start=-1),
    spaces.Discrete(3, dtype=np.int32),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, -3]]),
    spaces.MultiBinary([2, 3]),
    spaces.Dict(
        {"image": spaces.Box(0, 1, (2, 2)), "rest": spaces.Dict({"n": spaces.Discrete(2)})}
    ),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_space_is_read_back_equal_from_a_config_file(space: spaces.Space, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    save_config({"space": describe_space(space)}, path)

    found = make_space(load_config(path)["space"], "space")

    assert found == space
    assert found.dtype == space.dtype


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Dict({"words": spaces.Text(3), "n": spaces.Discrete(2)}),
        spaces.Box(np.arange(5000.0, dtype=np.float32), np.full(5000, 9999, np.float32)),
    ],
    ids=["text", "dict", "large"],
)
def test_unsupported_spaces_have_no_description(space: spaces.Space) -> None:
    assert describe_space(space) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"type": "tree"},
        {"type": "box", "shape": [2], "dtype": "float32", "low": 0},
        {"type": "box", "shape": [2], "dtype": "float33", "low": 0, "high": 1},
        {"type": "box", "shape": [2], "dtype": "float32", "low": [0, 0, 0], "high": 1},
        {"type": "discrete", "n": 0, "start": 0, "dtype": "int64"},
    ],
)
def test_invalid_description_is_refused_with_its_path(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"env\.action_space describes no space") as raised:
        make_space(wrong, "env.action_space")
    assert raised.value.path == "env.action_space"


def test_error_names_an_unknown_space_type() -> None:
    tree = {"type": "tree", "dtype": "int64"}
    with pytest.raises(ConfigError, match="no type 'tree'"):
        make_space({"type": "dict", "spaces": {"a": tree}}, "env.action_space")
