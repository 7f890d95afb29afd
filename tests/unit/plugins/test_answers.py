from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dingsdk.errors import ConfigError, PluginHookError, PluginLoadError
from dingsdk.plugins import (
    Answers,
    Observers,
    PluginManager,
    hookimpl,
    hookspecs,
)
from tests.own_plugins import plugin_of

STATUS: dict[str, Any] = {"env_steps": 1}


def manager_of(*plugins: Any) -> PluginManager:
    manager = PluginManager()
    for index, each in enumerate(plugins):
        manager.register_plugin(each, f"acme-{index}")
    return manager


def stopping(reason: str | None, seen: list[Any]) -> Any:
    def should_stop(status: Mapping[str, Any]) -> str | None:
        seen.append((reason, status))
        return reason

    return plugin_of(should_stop=should_stop)


def test_answers_has_one_method_per_decide_and_report_hook_and_observers_one_per_other() -> None:
    source, observed = inspect.getsource(hookspecs).split("# observe:")
    _, answered = source.split("# decide:")
    decide, observe = (
        {
            name.removeprefix("dingsdk_")
            for name in vars(hookspecs)
            if name.startswith("dingsdk_") and f"def {name}(" in phase
        }
        for phase in (answered, observed)
    )

    assert decide == {name for name in vars(Answers) if name[0] != "_"}
    assert len(decide) == 7
    assert observe == {name for name in vars(Observers) if name[0] != "_"} - {"call"}


def test_first_answer_counts_and_the_others_are_not_asked() -> None:
    seen: list[Any] = []
    manager = manager_of(stopping("late", seen), stopping("enough", seen), stopping(None, seen))

    assert manager.answers.should_stop(run_dir=Path(), status=STATUS) == "enough"
    assert seen == [(None, STATUS), ("enough", STATUS)]


@pytest.mark.parametrize("error", [ValueError("no number"), SystemExit(3)])
def test_error_of_a_decide_hook_names_plugin_hook_and_line_of_the_plugin(
    error: BaseException,
) -> None:
    def should_stop(status: Mapping[str, Any]) -> str | None:
        raise error

    line = inspect.getsourcelines(should_stop)[1] + 1
    with pytest.raises(PluginHookError) as caught:
        manager_of(plugin_of(should_stop=should_stop)).answers.should_stop(
            run_dir=Path(), status=STATUS
        )

    assert (caught.value.plugin, caught.value.hook) == ("acme-0", "dingsdk_should_stop")
    assert caught.value.__cause__ is error
    assert f"({__file__}, line {line})" in str(caught.value)


def test_dingsdk_error_in_a_decide_hook_is_raised_with_a_note() -> None:
    def create_component(cfg: Any) -> object:
        raise ConfigError("buffers.size is -1", path="size")

    manager = manager_of(plugin_of(create_component=create_component))
    with pytest.raises(ConfigError, match="size is -1") as caught:
        manager.create("buffers", {"type": "naive"})

    (note,) = caught.value.__notes__
    assert "acme-0, dingsdk_create_component" in note
    assert __file__ in note


def test_create_component_replaces_the_registered_class() -> None:
    asked: list[Any] = []

    def create_component(
        kind: str, type_key: str, cls: Any, cfg: Any, args: Any, kwargs: Any
    ) -> object:
        asked.append((kind, type_key, cls.__name__, cfg.replay_buffer_size, args, kwargs))
        return mine if cfg.replay_buffer_size == 8 else None

    class Wrapper:
        """Passes on all methods, as a wrapper of a part may do."""

        def __getattr__(self, name: str) -> Any:
            raise NotImplementedError

    mine = Wrapper()
    manager = manager_of(plugin_of(create_component=create_component))
    cfg = {"type": "naive", "replay_buffer_size": 8}

    assert manager.create("buffers", cfg, "log", exp_name="x") is mine
    assert asked == [("buffers", "naive", "NaiveReplayBuffer", 8, ("log",), {"exp_name": "x"})]
    other = manager.create("buffers", {**cfg, "replay_buffer_size": 9}, exp_name="x")
    assert type(other).__name__ == "NaiveReplayBuffer"
    other.close()


def test_values_of_all_plugins_are_merged_and_conflicts_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = plugin_of(progress_columns=lambda run_dir: {"gpu": 1, "ram": 2})
    second = plugin_of(progress_columns=lambda run_dir: {"gpu": 3})
    silent = plugin_of(progress_columns=lambda run_dir: None)
    answers = manager_of(first, second, silent).answers

    for _ in range(2):
        found = answers.progress_columns(run_dir=Path())

    assert found == {"gpu@acme-0": 1, "ram": 2, "gpu@acme-1": 3}
    (record,) = caplog.records
    assert record.getMessage() == (
        "dingsdk_progress_columns: acme-0, acme-1 give 'gpu' a value; kept as name@plugin"
    )


@pytest.mark.parametrize("answer", [lambda: 1 / 0, lambda: [("gpu", 1)]])
def test_failed_report_is_logged_once_and_other_reports_are_kept(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bad = plugin_of(progress_columns=answer)
    answers = manager_of(bad, plugin_of(progress_columns=lambda: {"ram": 2})).answers

    for _ in range(3):
        assert answers.progress_columns(run_dir=Path()) == {"ram": 2}

    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "acme-0" in record.getMessage()
    assert "progress_columns" in record.getMessage()


def test_unmarked_hook_is_refused_even_if_other_hooks_are_marked() -> None:
    class Half:
        @hookimpl
        def dingsdk_after_iter(self) -> None: ...

        def dingsdk_should_stop(self) -> None: ...

    with pytest.raises(PluginLoadError) as caught:
        PluginManager().register_plugin(Half(), "acme")

    line = inspect.getsourcelines(Half.dingsdk_should_stop)[1]
    assert (caught.value.reason, caught.value.hook) == ("not marked", "dingsdk_should_stop")
    assert f"({__file__}, line {line})" in str(caught.value)


def with_a_default(iteration: int = 2) -> None: ...
def by_keyword(*, iteration: int) -> None: ...
def unknown_argument(iteratoin: int) -> None: ...
async def later(iteration: int) -> None: ...
def generator(iteration: int) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("function", "reason", "words"),
    [
        (with_a_default, "argument", "the argument 'iteration' of dingsdk_after_iter"),
        (by_keyword, "argument", "the argument 'iteration' of dingsdk_after_iter"),
        (later, "no plain function", "write a plain def"),
        (generator, "no plain function", "write a plain def"),
        (unknown_argument, "broken", "'iteratoin'"),
    ],
)
def test_hook_function_that_would_not_be_called_as_it_expects_is_refused(
    function: Any, reason: str, words: str
) -> None:
    with pytest.raises(PluginLoadError, match=re.escape(words)) as caught:
        PluginManager().register_plugin(plugin_of(after_iter=function), "acme")

    assert (caught.value.plugin, caught.value.reason) == ("acme", reason)


@pytest.mark.parametrize(
    ("hook", "answer", "words"),
    [
        ("should_stop", False, "returned False; return the reason to stop as a str"),
        ("should_stop", 0, "returned 0; return the reason"),
        ("write_checkpoint", "yes", "returned 'yes'; return True once"),
        ("write_checkpoint", True, "returned True; but there is no file"),
        ("read_checkpoint", b"", "returned b''; return the contents"),
        ("create_component", 5, "returned 5; the buffers have clear, close"),
    ],
)
def test_answer_that_cannot_be_used_is_an_error_that_names_the_plugin(
    hook: str, answer: object, words: str, tmp_path: Path
) -> None:
    facts: dict[str, dict[str, Any]] = {
        "should_stop": {"run_dir": tmp_path, "status": STATUS},
        "write_checkpoint": {"path": tmp_path / "a", "contents": {}},
        "read_checkpoint": {"path": tmp_path / "a"},
        "create_component": dict.fromkeys(("type_key", "cls", "cfg", "args", "kwargs"))
        | {"kind": "buffers"},
    }
    answers = manager_of(plugin_of(**{hook: lambda: answer})).answers

    with pytest.raises(PluginHookError, match=re.escape(words)) as caught:
        getattr(answers, hook)(**facts[hook])

    assert (caught.value.plugin, caught.value.hook) == ("acme-0", f"dingsdk_{hook}")
    assert str(caught.value).startswith(f"plugin acme-0, dingsdk_{hook} ({__file__}, line ")
