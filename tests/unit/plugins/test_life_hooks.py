from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from dingsdk.plugins import KINDS, PluginManager, Registry, hookimpl, hookspec
from tests.own_plugins import plugin_of


class Lifeline:
    def __init__(self) -> None:
        self.events: list[Any] = []

    @hookimpl
    def dingsdk_plugin_registered(self, name: str) -> None:
        self.events.append(("registered", name))

    @hookimpl
    def dingsdk_configure(self, config: Mapping[str, Any]) -> None:
        self.events.append(("configure", config["seed"]))

    @hookimpl
    def dingsdk_unconfigure(self) -> None:
        self.events.append("unconfigure")


def test_every_registration_hook_gets_the_registry_of_its_kind() -> None:
    command = click.Command("acme")

    def part_of(kind: str) -> Any:
        return command if kind == "commands" else dict

    def implement(kind: str) -> Callable[..., None]:
        def impl(registry: Registry) -> None:
            registry.register(f"acme_{kind}", part_of(kind))

        return hookimpl(impl)

    plugin = SimpleNamespace(**{f"dingsdk_register_{kind}": implement(kind) for kind in KINDS})
    manager = PluginManager()

    manager.register_plugin(plugin, "acme")

    assert all(manager.get(kind, f"acme_{kind}") is part_of(kind) for kind in KINDS)


def test_plugin_is_told_about_all_plugins_including_itself() -> None:
    manager, lifeline = PluginManager(), Lifeline()
    manager.register_plugin(SimpleNamespace(tag=1), "before")
    manager.register_plugin(lifeline, "lifeline")
    manager.register_plugin(SimpleNamespace(tag=2), "after")

    names = [event[1] for event in lifeline.events]
    assert names == ["before", "lifeline", "after"]


def test_configure_reaches_late_plugins_and_unconfigure_fires_once_each() -> None:
    manager, early, late = PluginManager(), Lifeline(), Lifeline()
    manager.register_plugin(early, "early")
    manager.configure({"seed": 1})
    manager.register_plugin(late, "late")
    manager.configure({"seed": 2})
    manager.unconfigure()
    manager.unconfigure()

    runs = [("configure", 1), "unconfigure", ("configure", 2), "unconfigure"]
    assert [event for event in early.events if event[0] != "registered"] == runs
    assert [event for event in late.events if event[0] != "registered"] == runs


def test_observers_get_copies_of_the_config() -> None:
    def change(config: Any) -> None:
        config["policy"]["learning_rate"] = 99

    manager, config = PluginManager(), {"policy": {"learning_rate": 1}}
    manager.register_plugin(plugin_of(configure=change, run_started=change), "changing")
    manager.configure(config)
    manager.register_plugin(plugin_of(configure=change, run_started=change), "late")
    manager.observers.run_started(config=config, run_dir=Path())

    assert config == {"policy": {"learning_rate": 1}}


def test_failing_life_hook_is_logged_and_the_others_are_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise OSError("disk")

    manager, lifeline = PluginManager(), Lifeline()
    manager.register_plugin(lifeline, "lifeline")
    manager.register_plugin(plugin_of(configure=fail), "failing")  # the last is called first

    manager.configure({"seed": 1})

    assert ("configure", 1) in lifeline.events
    assert "failing" in caplog.text


class AcmeSpecs:
    @hookspec
    def dingsdk_acme_moved(self, where: str) -> None:
        """A hook that a plugin adds."""


def test_hook_that_two_plugins_add_is_one_hook() -> None:
    class Acme:
        @hookimpl
        def dingsdk_addhooks(self, manager: PluginManager) -> None:
            manager.add_hookspecs(AcmeSpecs)

        @hookimpl
        def dingsdk_acme_moved(self, where: str) -> None:
            moved.append((self, where))

    moved: list[tuple[Acme, str]] = []
    manager, one, other = PluginManager(), Acme(), Acme()
    manager.register_plugin(one, "one")
    manager.register_plugin(other, "other")
    manager.hook.dingsdk_acme_moved(where="home")

    assert moved == [(other, "home"), (one, "home")]  # the one registered last is called first
