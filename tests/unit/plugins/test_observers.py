from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest

from dingsdk.plugins import Observers, PluginManager, hookimpl, hookspecs, observe, use_manager
from tests.own_plugins import plugin_of

OBSERVE_HOOKS = [name for name in vars(Observers) if name[0] != "_" and name != "call"]


@pytest.mark.parametrize("name", OBSERVE_HOOKS)
def test_method_passes_its_arguments_to_the_hook_of_the_same_name(name: str) -> None:
    seen: list[dict[str, Any]] = []
    spec = vars(hookspecs)[f"dingsdk_{name}"]
    arguments = {each: f"some {each}" for each in inspect.signature(spec).parameters}
    source = f"def dingsdk_{name}({', '.join(arguments)}):\n    seen.append(locals())\n"
    scope: dict[str, Any] = {"seen": seen}
    exec(source, scope)
    plugin = type(
        "Plugin", (), {f"dingsdk_{name}": staticmethod(hookimpl(scope[f"dingsdk_{name}"]))}
    )

    manager = PluginManager()
    manager.register_plugin(plugin(), "plugin")
    getattr(manager.observers, name)(**arguments)

    assert seen == [arguments]


class Failing:
    @hookimpl(tryfirst=True)
    def dingsdk_after_iter(self, iteration: int) -> None:
        raise ValueError(f"at {iteration}")


class Counting:
    def __init__(self) -> None:
        self.seen: list[int] = []

    @hookimpl
    def dingsdk_after_iter(self, iteration: int) -> None:
        self.seen.append(iteration)


def test_failing_observer_breaks_neither_the_run_nor_the_other_observers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counting = Counting()
    with use_manager(PluginManager()) as manager:
        manager.register_plugin(Failing(), "failing")
        manager.register_plugin(counting, "counting")
        with caplog.at_level(logging.DEBUG):
            for iteration in range(3):
                observe().after_iter(learner=None, iteration=iteration, log_vars={})

    assert counting.seen == [0, 1, 2]
    assert [record.levelname for record in caplog.records] == ["ERROR", "DEBUG", "DEBUG"]
    assert all("failing" in record.getMessage() for record in caplog.records)
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False]


def test_keyboard_interrupt_in_an_observer_is_not_suppressed() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    manager = PluginManager()
    manager.register_plugin(plugin_of(after_iter=interrupt))

    with pytest.raises(KeyboardInterrupt):
        manager.observers.after_iter(learner=None, iteration=0, log_vars={})


def test_unregistered_observer_is_not_called() -> None:
    manager, counting = PluginManager(), Counting()
    name = manager.register_plugin(counting)
    manager.observers.after_iter(learner=None, iteration=0, log_vars={})

    manager.unregister_plugin(name)
    manager.observers.after_iter(learner=None, iteration=1, log_vars={})

    assert counting.seen == [0]
    manager.register_plugin(counting)  # again
    manager.observers.after_iter(learner=None, iteration=2, log_vars={})
    assert counting.seen == [0, 2]
