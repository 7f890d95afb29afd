"""Config sections as types: accepted, completed, refused and derived values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
import pytest
from easydict import EasyDict

from dingsdk.config import (
    Configurable,
    Count,
    Part,
    PartSection,
    Positive,
    Section,
    Share,
    complete,
    config_type,
    defaults_of,
    preset,
    read_section,
)
from dingsdk.errors import ConfigError, ConfigTypeError, UnknownKeyError


class Inner(Section, frozen=True, kw_only=True):
    """A section in a section.

    Attributes:
        rate: A share
            of something.
        mode: How.
    """

    rate: Share = 0.5
    mode: Literal["fast", "slow"] = "fast"


class Outer(PartSection, frozen=True, kw_only=True):
    """A section.

    Attributes:
        size: How many.
        limit: At most; None for no limit.
        widths: Of layers.
        inner: More.
        tail: Which rows leave.
        free: Anything.
    """

    type: str = "outer"
    size: Count = 10
    limit: Positive | None = None
    widths: list[Count] = msgspec.field(default_factory=lambda: [64])
    inner: Inner = Inner()
    tail: Annotated[dict[str, Any], Part("removers")] = preset("fifo")
    free: dict[str, Any] = msgspec.field(default_factory=dict)


class Pair(Section, frozen=True, kw_only=True):
    low: int = 0
    high: int = 1

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, above high {self.high}")


class Fifo(Configurable):
    class Config(PartSection, frozen=True, kw_only=True):
        """Attributes:
        step: Rows at once.
        """

        type: str = "fifo"
        step: Count = 1


class Plain:
    """A class of the reference style: its config is a plain dict."""

    config: ClassVar[dict[str, Any]] = {
        "step": 3,
        "name": "x",
        "extra": {"deep": 1.5},
        "none": None,
    }


class Open:
    """A class without a config."""


CLASSES = {"fifo": Fifo, "plain": Plain, "open": Open}


def find(kind: str, type_key: str, import_names: Sequence[str], path: str) -> Any:
    assert kind == "removers"
    assert path == "outer.tail"
    return CLASSES[type_key]


def completed(given: dict[str, Any]) -> dict[str, Any]:
    return complete(Outer, given, find, "outer")


@pytest.mark.parametrize(
    ("given", "key", "expected"),
    [
        ({"size": 1e6}, "size", 1_000_000),
        ({"size": np.int64(7)}, "size", 7),
        ({"limit": 2}, "limit", 2.0),
        ({"limit": np.float32(0.5)}, "limit", 0.5),
        ({"limit": float("inf")}, "limit", float("inf")),
        ({"widths": (32, 2.0)}, "widths", [32, 2]),
        ({"type": PurePosixPath("a/b")}, "type", "a/b"),
        ({"inner": None}, "inner", {"rate": 0.5, "mode": "fast"}),
        ({"tail": None}, "tail", {"type": "fifo", "import_names": [], "step": 1}),
    ],
)
def test_compatible_value_is_converted_to_the_type_of_the_field(
    given: dict[str, Any], key: str, expected: Any
) -> None:
    value = completed(given)[key]

    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("given", "path", "expected"),
    [
        ({"size": 0}, "outer.size", "a whole number >= 1"),
        ({"size": "3"}, "outer.size", "a whole number"),
        ({"size": True}, "outer.size", "a whole number"),
        ({"size": 2.5}, "outer.size", "a whole number"),
        ({"size": None}, "outer.size", "a whole number"),
        ({"size": 10**16}, "outer.size", "a whole number <= 1000000000000000"),
        ({"limit": 0}, "outer.limit", "a number > 0.0"),
        ({"limit": "x"}, "outer.limit", "a number or null"),
        ({"limit": float("nan")}, "outer.limit", "a number > 0.0"),
        ({"widths": 3}, "outer.widths", "a list"),
        ({"widths": [64, "a"]}, "outer.widths[1]", "a whole number"),
        ({"inner": 3}, "outer.inner", "a section with the keys rate, mode"),
        ({"inner": {"rate": 1.5}}, "outer.inner.rate", "a number <= 1.0"),
        ({"inner": {"mode": "warp"}}, "outer.inner.mode", "one of fast, slow"),
        ({"tail": []}, "outer.tail", "the section of one of the removers"),
        ({"tail": {"step": 0}}, "outer.tail.step", "a whole number >= 1"),
        ({"tail": {"type": "plain", "step": "a"}}, "outer.tail.step", "a whole number"),
        ({"tail": {"type": "plain", "extra": {"deep": "a"}}}, "outer.tail.extra.deep", "a number"),
        ({"free": 1}, "outer.free", "a section"),
    ],
)
def test_wrong_value_is_refused_with_path_and_expected_type(
    given: dict[str, Any], path: str, expected: str
) -> None:
    with pytest.raises(ConfigTypeError) as caught:
        completed(given)

    assert (caught.value.path, caught.value.expected) == (path, expected)
    assert str(caught.value).startswith(f"{path}: expected {expected}, found ")


def test_whole_number_without_bounds_is_limited_to_1e15() -> None:
    assert read_section(Pair, {"high": 10**15}, "pair").high == 10**15
    for number in (10**15 + 1, -(10**15) - 1):
        with pytest.raises(ConfigTypeError) as caught:
            read_section(Pair, {"low": number}, "pair")
        assert (caught.value.path, caught.value.found) == ("pair.low", number)
        assert caught.value.expected == "a whole number up to 1e+15"


class Chosen(Section, frozen=True, kw_only=True):
    """A section with a key that has one possible value.

    Attributes:
        nstep: The targets of this policy are of one step.
    """

    rate: int | float = 1.0
    nstep: Literal[1] = 1
    unit: Literal["gru", "lstm"] | None = None
    columns: list[Literal["env", "step"]] = msgspec.field(default_factory=list)


@pytest.mark.parametrize(
    ("given", "path", "expected"),
    [
        ({"rate": "fast"}, "chosen.rate", "a number"),
        ({"nstep": 30}, "chosen.nstep", "1"),
        ({"unit": "rnn"}, "chosen.unit", "one of gru, lstm"),
        ({"columns": ["step", "stop"]}, "chosen.columns[1]", "one of env, step"),
    ],
)
def test_alternatives_are_described_as_shortly_as_possible(
    given: dict[str, Any], path: str, expected: str
) -> None:
    with pytest.raises(ConfigTypeError) as caught:
        read_section(Chosen, given, "chosen")
    assert (caught.value.path, caught.value.expected) == (path, expected)
    assert ("The targets of this policy are of one step" in str(caught.value)) == (expected == "1")


class Points(Section, frozen=True, kw_only=True):
    at: list[float] = msgspec.field(default_factory=list)
    grid: list[list[float]] = msgspec.field(default_factory=list)


@pytest.mark.parametrize("given", [{"at": [1.0, math.nan]}, {"grid": [[1.0], [2.0, math.nan]]}])
def test_nan_is_refused_in_lists_too(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigTypeError, match="expected a number") as caught:
        read_section(Points, given, "points")

    assert caught.value.path == f"points.{next(iter(given))}"
    assert read_section(Points, {"at": [1, math.inf]}, "points").at == [1, math.inf]


@pytest.mark.parametrize(
    ("given", "path", "nearest", "elsewhere"),
    [
        ({"sise": 1}, "outer.sise", "size", None),
        ({"rate": 1}, "outer.rate", None, "outer.inner.rate"),
        ({"step": 1}, "outer.step", None, "outer.tail.step"),
        ({"inner": {"size": 3}}, "outer.inner.size", None, "outer.size"),
        ({"tail": {"steb": 3}}, "outer.tail.steb", "step", None),
        ({"tail": {"type": "plain", "nam": 3}}, "outer.tail.nam", "name", None),
        ({"qqq": 1}, "outer.qqq", None, None),
    ],
)
def test_unknown_key_is_refused_with_the_nearest_key_or_its_right_path(
    given: dict[str, Any], path: str, nearest: str | None, elsewhere: str | None
) -> None:
    with pytest.raises(UnknownKeyError) as caught:
        completed(given)

    error = caught.value
    assert (error.path, error.nearest, error.elsewhere) == (path, nearest, elsewhere)


def test_preset_for_another_type_keeps_only_keys_of_the_chosen_type() -> None:
    class Preset(Section, frozen=True, kw_only=True):
        tail: Annotated[dict[str, Any], Part("removers")] = preset("fifo", step=5)

    same = complete(Preset, {}, find, "outer")
    other = complete(Preset, {"tail": {"type": "plain"}}, find, "outer")

    assert same["tail"]["step"] == 5
    assert other["tail"]["step"] == 5
    assert set(other["tail"]) == {"type", "import_names", "step", "name", "extra", "none"}


def test_required_key_that_is_absent_is_named_with_its_meaning() -> None:
    class Needs(Section, frozen=True, kw_only=True):
        """Attributes:
        env_id: The environment.
        """

        env_id: str
        size: int

    for given, path, text in (
        ({}, "env.env_id", "The environment."),
        ({"env_id": "x"}, "env.size", "Set it, as in --set env.size=VALUE."),
    ):
        with pytest.raises(ConfigError) as caught:
            complete(Needs, given, path="env")
        assert str(caught.value) == f"{path} is missing. {text}"
        assert caught.value.path == path


def test_complete_neither_changes_nor_shares_the_given_section() -> None:
    given = {"widths": [1], "free": {"x": [1]}, "tail": {"type": "open", "deep": [1]}}
    before = {"widths": [1], "free": {"x": [1]}, "tail": {"type": "open", "deep": [1]}}

    full = completed(given)
    full["widths"].append(2)
    full["tail"]["deep"].append(2)

    assert given == before


def test_section_is_read_into_its_type_with_its_parts_as_dicts() -> None:
    section = read_section(Outer, EasyDict(size=3, tail=EasyDict(step=2), cfg_type="OuterDict"))

    assert isinstance(section, Outer)
    assert (section.size, section.inner.rate) == (3, 0.5)
    assert section.tail == {"type": "fifo", "step": 2}


# Configurable


def test_config_of_a_class_is_made_from_its_type() -> None:
    assert Fifo.config == {"type": "fifo", "import_names": [], "step": 1}
    assert Fifo.default_config() == {**Fifo.config, "cfg_type": "FifoDict"}
    assert isinstance(Fifo.default_config(), EasyDict)


def test_plain_config_of_a_subclass_overrides_defaults_and_adds_typed_keys() -> None:
    class Larger(Fifo):
        config: ClassVar[dict[str, Any]] = {"step": 4, "share": 0.5, "deep": {"on": True}}

    assert Larger.config == {
        "type": "fifo",
        "import_names": [],
        "step": 4,
        "share": 0.5,
        "deep": {"on": True},
    }
    assert Larger.read({"step": 2}).step == 2
    for wrong in ({"step": 0}, {"share": "x"}, {"deep": {"on": 1}}):
        with pytest.raises(ConfigTypeError):
            Larger.read(wrong)
    with pytest.raises(UnknownKeyError):
        Larger.read({"deep": {"off": True}})
    assert Fifo.config["step"] == 1


def test_plain_config_of_a_subclass_may_choose_another_part() -> None:
    class Holder(Configurable):
        Config: ClassVar[type[Outer]] = Outer

    class Other(Holder):
        config: ClassVar[dict[str, Any]] = {"tail": {"type": "plain"}, "inner": {"rate": 0.25}}

    full = complete(Other.Config, {}, find, "outer")

    assert full["tail"] == {"type": "plain", "import_names": [], **Plain.config}
    assert full["inner"] == {"rate": 0.25, "mode": "fast"}
    assert Holder.config["inner"]["rate"] == 0.5


def test_default_config_of_a_foreign_class_is_used() -> None:
    class Reference:
        @classmethod
        def default_config(cls) -> EasyDict:
            return EasyDict(step=3, cfg_type="ReferenceDict")

    assert defaults_of(config_type(Reference)) == {"type": "", "import_names": [], "step": 3}


class PlainConfig:
    size = 3


@pytest.mark.parametrize("declared", [{"type": "mine"}, None, PlainConfig])
def test_config_of_a_part_that_is_no_section_is_refused_with_the_class(declared: Any) -> None:
    with pytest.raises(
        ConfigTypeError, match=r"Mine\.Config is .*must be a subclass of the base's"
    ):
        type("Mine", (Configurable,), {"Config": declared})
