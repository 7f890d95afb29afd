"""Errors name the part of a plugin that raised them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dingsdk.data import decode_message, encode_message
from dingsdk.errors import ConfigError
from dingsdk.plugins import PluginManager, Switches, use_manager
from dingsdk.plugins.blame import error_text, raised_in, traceback_text


@pytest.fixture(autouse=True)
def manager() -> Iterator[PluginManager]:
    with use_manager(PluginManager(Switches())) as manager:
        yield manager


def core(source: str) -> dict[str, Any]:
    """Run ``source`` as a module of dingsdk and return its names."""
    names: dict[str, Any] = {"__name__": "dingsdk.worker.some"}
    exec(source, names)
    return names


CORE = core("""
class Base:
    def draw(self):
        raise ValueError("of the core")

def call(function):
    return function()
""")


class Part(CORE["Base"]):  # type: ignore[misc]
    def __init__(self, inner: Callable[[], Any] = lambda: None) -> None:
        self.inner = inner

    def decode(self) -> None:
        json.loads("{")

    def ask(self) -> None:
        super().draw()

    def inner_itself(self) -> None:
        self.inner()

    def pass_on(self) -> None:
        CORE["call"](self.inner)


class Other(Part):
    """A second part with the same methods."""


def suffix(function: Callable[[], Any]) -> str:
    try:
        function()
    except Exception as error:
        return raised_in(error)
    raise AssertionError("nothing was raised")


IN_PART = f" (raised in type 'mine' of samplers, from {__name__})"


@pytest.mark.parametrize("function", [Part().decode, Part().ask], ids=["library", "base class"])
def test_error_raised_by_a_call_inside_a_part_names_the_part(
    manager: PluginManager, function: Callable[[], Any]
) -> None:
    assert suffix(function) == ""
    manager.registry("samplers").register("mine", Part)
    assert suffix(function) == IN_PART


def test_dingsdk_error_raised_through_core_code_names_no_part(manager: PluginManager) -> None:
    def refuse() -> None:
        raise ConfigError("what another part returned")

    manager.registry("buffers").register("mine", Part)
    assert suffix(Part(refuse).pass_on) == ""
    assert (
        suffix(Part(refuse).inner_itself) == f" (raised in type 'mine' of buffers, from {__name__})"
    )


def test_innermost_of_two_parts_is_named(manager: PluginManager) -> None:
    manager.registry("samplers").register("mine", type("Inner", (), {"draw": lambda self: 1 / 0}))
    manager.registry("buffers").register("outer", Other)
    inner = manager.registry("samplers").get("mine")()
    assert suffix(Other(inner.draw).pass_on) == IN_PART
    assert "'outer' of buffers" in suffix(Other(CORE["Base"]().draw).pass_on)


def test_text_of_an_error_can_be_sent_whatever_its_message_has() -> None:
    try:
        raise ValueError("no file a\udcff")
    except ValueError as error:
        texts = error_text(error), traceback_text(error)

    for text in texts:
        assert "\\udcff" in text
        assert decode_message(encode_message({"text": text})) == {"text": text}
