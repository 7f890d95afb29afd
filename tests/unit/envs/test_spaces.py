"""Single actions and observations, and columns of them, are checked against their spaces."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dingsdk.data.pytree import part_of
from dingsdk.envs.spaces import ActionChecker, ObservationSchema
from dingsdk.envs.vector import info_row
from dingsdk.errors import ConfigError, NonFiniteError, PolicyOutputError, SchemaMismatchError

BOX = gym.spaces.Box(np.array([-1, 2], np.float32), np.array([1, 3], np.float32))
NESTED = gym.spaces.Dict({"box": BOX, "inner": gym.spaces.Dict({"n": gym.spaces.Discrete(9)})})


@pytest.mark.parametrize(
    ("space", "inside", "outside"),
    [
        (gym.spaces.Discrete(3), [0, 2], [-1, 3]),
        (gym.spaces.Discrete(3, start=4), [4, 6], [3, 7]),
        (gym.spaces.Discrete(10_000), [0, 9999], [-1, 10_000]),
        (BOX, [[-1, 2], [1, 3]], [[-1.1, 2], [0, 1.9], [0, 3.1]]),
        (gym.spaces.MultiDiscrete([2, 3], start=[0, 5]), [[0, 5], [1, 7]], [[2, 5], [0, 4]]),
        (gym.spaces.MultiBinary(2), [[0, 0], [1, 1]], [[0, 2], [-1, 0]]),
    ],
    ids=str,
)
def test_actions_inside_the_space_are_accepted_and_others_refused(
    space: Any, inside: list[Any], outside: list[Any]
) -> None:
    checker = ActionChecker(space)
    batch = checker.batch(inside, len(inside))
    assert batch.tolist() == inside
    assert batch.dtype == space.dtype
    for action in inside:
        single = checker.single(action)
        assert single.tolist() == action
        assert space.contains(single)
    for action in outside:
        for refuse in (
            lambda action=action: checker.single(action),
            lambda action=action: checker.batch([inside[0], action], 2),
            lambda action=action: checker.batch(np.array([inside[0], action]), 2),
        ):
            with pytest.raises(PolicyOutputError, match="the policy's action is"):
                refuse()
    filler = checker.filler(3)
    assert filler.shape == (3, *space.shape)
    assert all(space.contains(action) for action in filler)
    filler[0] = 1  # the caller may write to it


def test_a_batch_in_the_dtype_of_the_space_is_not_copied() -> None:
    actions = np.array([0, 2, 1])
    assert ActionChecker(gym.spaces.Discrete(3)).batch(actions, 3) is actions
    actions = np.full((2, 2), [0, 2], np.float32)
    assert ActionChecker(BOX).batch(actions, 2) is actions


def test_error_says_what_is_wrong_with_an_action() -> None:
    checker = ActionChecker(BOX)
    with pytest.raises(NonFiniteError, match="with NaN") as caught:
        checker.batch([[0, 2], [np.nan, 2]], 2)
    assert caught.value.key == "action"
    assert caught.value.facts["found"] == "float64[2, 2] with NaN"
    with pytest.raises(NonFiniteError, match="with infinity"):
        checker.single([np.inf, 2])
    with pytest.raises(PolicyOutputError) as refused:
        checker.batch([[0, 2], [0]], 2)
    assert refused.value.facts["found"].startswith("list (")
    assert refused.value.facts["expected"].startswith("float32[2, 2] in Box")
    with pytest.raises(PolicyOutputError, match=r"float64\[2\] with \[4\.0, 5\.0\]"):
        checker.single([4, 5.0])


def test_action_outside_only_by_rounding_is_accepted() -> None:
    high = np.float32(0.1)
    checker = ActionChecker(gym.spaces.Box(-high, high, (1,), np.float32))
    assert checker.single(np.array([float(high) + 1e-12]))[0] == high


def test_non_array_spaces_have_no_batched_form() -> None:
    checker = ActionChecker(gym.spaces.Text(3))
    assert checker.single("abc") == "abc"
    with pytest.raises(PolicyOutputError) as refused:
        checker.single("abcd")
    assert refused.value.expected == f"an action of {checker.space}"
    assert refused.value.found == "'abcd'"
    for use in (lambda: checker.batch(["abc"], 1), lambda: checker.filler(1)):
        with pytest.raises(ConfigError, match="no columns") as caught:
            use()
        assert caught.value.path == "env.wrappers"


def test_observations_become_copies_in_the_dtype_of_the_space() -> None:
    schema = ObservationSchema(NESTED)
    box = np.array([0.5, 2.5])
    made = schema.conform({"box": box, "inner": {"n": 3}})
    box[0] = 9
    assert made["box"].tolist() == [0.5, 2.5]
    assert made["box"].dtype == np.float32
    assert (made["inner"]["n"], made["inner"]["n"].dtype) == (3, np.int64)


@pytest.mark.parametrize(
    ("obs", "key", "found"),
    [
        ({"box": np.zeros(3), "inner": {"n": 0}}, "obs.box", "float64[3]"),
        ({"box": [np.nan, 2], "inner": {"n": 0}}, "obs.box", "float64[2] with NaN"),
        ({"box": "text", "inner": {"n": 0}}, "obs.box", "<U4[]"),
        ({"box": [[1], 2], "inner": {"n": 0}}, "obs.box", "list ("),
        ({"box": np.zeros(2), "inner": {"m": 0}}, "obs.inner", "a dict with ['m']"),
        ({"box": np.zeros(2), "inner": 3}, "obs.inner", "int"),
        ({"box": np.zeros(2)}, "obs", "a dict with ['box']"),
    ],
)
def test_error_names_the_path_of_an_invalid_observation(obs: Any, key: str, found: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        ObservationSchema(NESTED).conform(obs)
    assert caught.value.key == key
    assert caught.value.facts["found"].startswith(found)


@pytest.mark.parametrize(
    ("space", "held", "lost"),
    [
        (
            gym.spaces.Box(0, 255, (2,), np.uint8),
            [[0.0, 255.0], [True, False], np.array([3, 4], np.int64)],
            [
                [0.5, 1],
                [300, 1],
                [-1, 2],
                [2.7, 1],
                [np.nan, 1],
                [np.inf, 1],
                [None, 1],
                ["1", "2"],
            ],
        ),
        (
            gym.spaces.Box(-1, 1, (2,), np.float32),
            [np.array([0.1, 1e-60]), [2**24 + 1, -7], [np.inf, 0.0]],
            [np.array([1e300, 0]), np.array([1j, 0]), [np.nan, 0]],
        ),
        (
            gym.spaces.Box(-1, 1, (2,), np.float16),
            [np.array([0.1, 65504]), [-np.inf, 0]],
            [np.array([1e5, 0]), [70000, 0], np.array([-(2**31), 0], np.int32)],
        ),
        (gym.spaces.Discrete(3, start=4), [4, np.uint8(6), np.array(5), 6.0], [3, 7, 4.5, 2**70]),
        (gym.spaces.MultiDiscrete([2, 3]), [[1, 2], [1.0, 0.0]], [[2, 0], [0, -1], [0.5, 0]]),
        (gym.spaces.MultiBinary(2), [[0, 1], [True, False]], [[0, 2], [0, -1], [0.5, 0]]),
    ],
    ids=["bytes", "floats", "halves", "Discrete", "MultiDiscrete", "MultiBinary"],
)
def test_value_that_a_cast_would_change_is_refused(
    space: Any, held: list[Any], lost: list[Any]
) -> None:
    """Rounding of floats does not count."""
    schema = ObservationSchema(gym.spaces.Dict({"part": space}))
    for value in held:
        made = schema.conform({"part": value})["part"]
        np.testing.assert_array_equal(made, np.asarray(value).astype(space.dtype))
        columns = schema.conform_columns({"part": np.array([value, value])}, 2)["part"]
        np.testing.assert_array_equal(columns, [made, made])
    for value in lost:
        for use in (
            lambda value=value: schema.conform({"part": value}),
            lambda value=value: schema.conform_columns({"part": [held[0], value]}, 2),
        ):
            with (
                warnings.catch_warnings(record=True, action="always") as said,
                pytest.raises(SchemaMismatchError) as caught,
            ):
                use()
            assert caught.value.key == "obs.part"
            assert not said, "the error is enough"
    with pytest.raises(SchemaMismatchError) as caught:
        ObservationSchema(gym.spaces.Box(0, 255, (2,), np.uint8)).conform([0, 300])
    facts = caught.value.facts
    assert (facts["found"], facts["expected"]) == (
        "int64[2] with 300",
        "Box(0, 255, (2,), uint8)",
    )


def test_part_beyond_the_bounds_of_its_box_is_named() -> None:
    schema = ObservationSchema(NESTED)
    assert schema.beyond(columns(2)) is None
    wide = columns(2)
    wide["box"][1] = [-5, 2]
    assert schema.beyond(wide) == f"obs.box holds -5.0 to 2.0, and its space is {NESTED['box']}"
    assert schema.beyond({**part_of(columns(1), 0), "box": np.array([0, 4])}) == (
        f"obs.box holds 0 to 4, and its space is {NESTED['box']}"
    )
    for space, obs in ((gym.spaces.Discrete(3), 7), (gym.spaces.Text(3), "long")):
        assert ObservationSchema(space).beyond(obs) is None


def columns(count: int) -> dict[str, Any]:
    return {
        "box": np.tile(np.array([0, 2], np.float32), (count, 1)),
        "inner": {"n": np.arange(count)},
    }


def test_columns_are_checked_in_shape_keys_and_values() -> None:
    schema = ObservationSchema(NESTED)
    unfit = columns(3)
    unfit["box"][1, 0] = np.nan
    for wrong, key, found in (
        (columns(2), "obs.box", "float32[2, 2]"),
        (unfit, "obs.box", "float32[3, 2] with NaN in rows [1]"),
        ({**columns(3), "more": 1}, "obs", "a dict with ['box', 'inner', 'more']"),
        ({**columns(3), "inner": {"n": np.zeros((3, 1))}}, "obs.inner.n", "float64[3, 1]"),
    ):
        with pytest.raises(SchemaMismatchError) as caught:
            schema.conform_columns(wrong, 3)
        assert (caught.value.key, caught.value.facts["found"]) == (key, found)


def test_rows_are_stacked_replaced_and_read_back() -> None:
    schema = ObservationSchema(NESTED)
    rows = [part_of(columns(4), index) for index in range(4)]
    made = schema.stack(rows)
    np.testing.assert_equal(made, columns(4))
    sevens = {"box": np.array([7, 7]), "inner": {"n": 7}}
    replaced = schema.replace(made, [1, 3], [sevens] * 2)
    assert replaced["inner"]["n"].tolist() == [0, 7, 2, 7]
    assert replaced["box"][:, 1].tolist() == [2, 7, 2, 7]
    np.testing.assert_equal(made, columns(4))


def test_error_names_the_space_that_has_no_columns() -> None:
    space = gym.spaces.Dict({"box": BOX, "text": gym.spaces.Text(3)})
    with pytest.raises(ConfigError, match=r"at obs\.text has no columns"):
        ObservationSchema(space).require_columns()
    ObservationSchema(NESTED).require_columns()


def test_infos_of_a_vector_env_are_split_by_env() -> None:
    infos = {
        "steps": np.array([3, 4]),
        "name": ["a", "b"],
        "lost": np.array([1.5, 0.0]),
        "_lost": np.array([True, False]),
        "inner": {"n": np.array([7, 8]), "_n": np.array([False, True])},
        "_private": np.array([5, 6]),
        "version": "1.0",
        "short": np.array([1]),
    }
    first, second = info_row(infos, 0), info_row(infos, 1)
    assert first == {
        "steps": 3, "name": "a", "lost": 1.5, "inner": {}, "_private": 5, "version": "1.0",
        "short": 1,
    }  # fmt: skip
    assert {k: v for k, v in second.items() if k != "short"} == {
        "steps": 4, "name": "b", "inner": {"n": 8}, "_private": 6, "version": "1.0",
    }  # fmt: skip
    assert type(first["steps"]) is int
    nested = {"box": np.array([[1.0], [2.0]]), "inner": {"n": [3, 4]}}
    assert part_of(nested, 1) == {"box": np.array([2.0]), "inner": {"n": 4}}
