from __future__ import annotations

import logging
import sys
import threading

import pytest

from dingsdk.errors import DuplicateTypeError, PluginLoadError, UnknownPluginError
from dingsdk.plugins import PluginManager, Switches, use_manager
from tests.own_plugins import plugin_of

from .conftest import HOOK, Install


def test_plugin_that_raises_on_import_is_named_and_others_still_load(ring: Install) -> None:
    ring("acme-bad", {"dingsdk.buffers": {"bad": "acme_bad"}}, acme_bad="1 / 0")
    manager = PluginManager()

    with pytest.raises(ImportError) as caught:
        manager.get("buffers", "bad")

    assert isinstance(caught.value, PluginLoadError)
    assert caught.value.plugin == "acme-bad"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert manager.get("buffers", "ring").__name__ == "RingBuffer"


def test_message_names_the_line_of_the_plugin_not_of_the_library_it_called(
    install: Install,
) -> None:
    called = "import json\njson.loads('{')\n"
    hook = """
        from dingsdk import hookimpl
        import json
        @hookimpl
        def dingsdk_register_buffers(registry):
            json.loads("{")
    """
    install("acme-bad", {"dingsdk.buffers": {"bad": "acme_bad"}}, acme_bad=called)
    install("acme-odd", {"dingsdk.buffers": {"odd": "acme_odd"}}, acme_odd=hook)
    site = install(
        "acme-syntax", {"dingsdk.buffers": {"syntax": "acme_syntax"}}, acme_syntax="def f(:"
    )
    manager = PluginManager()

    for key, where in (
        ("bad", "acme_bad.py, line 2)"),
        ("odd", "acme_odd.py, line 6)"),
        ("syntax", f"(acme_syntax.py, line 1) in {site / 'acme_syntax.py'}"),
    ):
        with pytest.raises(PluginLoadError) as caught:
            manager.get("buffers", key)
        assert str(caught.value).endswith(where)
    assert str(caught.value).count(", line ") == 1


def test_plugin_that_exits_on_import_does_not_end_the_program(install: Install) -> None:
    install("acme-bad", {"dingsdk.buffers": {"bad": "acme_bad"}}, acme_bad="raise SystemExit(3)")

    with pytest.raises(PluginLoadError):
        PluginManager().get("buffers", "bad")


def test_failed_load_leaves_no_type_no_hook_and_no_announcement(install: Install) -> None:
    install(
        "acme-half",
        {"dingsdk.buffers": {"half": "acme_half"}},
        acme_half="""
            from dingsdk import default_manager, hookimpl
            default_manager().registry("limiters").register("acme_top", dict)
            @hookimpl
            def dingsdk_after_iter(learner):
                pass
            @hookimpl
            def dingsdk_register_buffers(registry):
                registry.register("half", dict)
                registry.register("naive", dict, force_overwrite=True)
            @hookimpl
            def dingsdk_register_storages(registry):
                raise OSError("disk")
        """,
    )
    announced: list[str] = []

    with use_manager(PluginManager()) as manager:
        watcher = plugin_of(plugin_registered=lambda name: announced.append(name))
        manager.register_plugin(watcher, "watcher")
        naive = manager.registry("buffers").entry("naive")
        with pytest.raises(PluginLoadError) as caught:
            manager.get("buffers", "half")

    assert isinstance(caught.value.__cause__, OSError)
    assert "half" not in manager.registry("buffers")
    assert manager.registry("buffers").entry("naive") == naive
    assert "acme_top" not in manager.registry("limiters")
    assert manager.hook.dingsdk_after_iter.get_hookimpls() == []
    assert announced == ["watcher"]
    assert "acme_half" not in sys.modules


def test_plugin_that_takes_a_builtin_name_is_refused_by_name(install: Install) -> None:
    source = HOOK.format(key="naive")
    install("acme-clash", {"dingsdk.buffers": {"clash": "acme_clash"}}, acme_clash=source)

    with pytest.raises(PluginLoadError) as caught:
        PluginManager().get("buffers", "clash")

    assert caught.value.plugin == "acme-clash"
    assert isinstance(caught.value.__cause__, DuplicateTypeError)
    assert caught.value.__cause__.owner == "dingsdk-rl"


def test_unknown_hook_is_refused_with_the_nearest_name_unless_optional(install: Install) -> None:
    source = """
        from dingsdk import hookimpl
        @hookimpl{marks}
        def dingsdk_after_itre(learner):
            pass
        @hookimpl
        def dingsdk_register_buffers(registry):
            registry.register("{key}", dict)
    """
    install(
        "acme-typo",
        {"dingsdk.buffers": {"typo": "acme_typo"}},
        acme_typo=source.format(key="typo", marks=""),
    )
    install(
        "acme-maybe",
        {"dingsdk.buffers": {"maybe": "acme_maybe"}},
        acme_maybe=source.format(key="maybe", marks="(optionalhook=True)"),
    )
    manager = PluginManager()

    with pytest.raises(PluginLoadError) as caught:
        manager.get("buffers", "typo")

    assert (caught.value.reason, caught.value.nearest) == ("unknown hook", "dingsdk_after_iter")
    assert manager.get("buffers", "maybe") is dict


def test_module_without_hooks_is_refused_if_must_provide_is_set(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("acme-idle", {}, acme_idle="VALUE = 1\n")
    manager = PluginManager()

    with pytest.raises(
        PluginLoadError, match=r"plugin acme has no effect: acme_idle.*functions of the module"
    ) as caught:
        manager.load("acme_idle", "acme", must_provide=True)

    assert (caught.value.plugin, caught.value.reason) == ("acme", "no hooks")
    PluginManager(Switches(plugins=("acme_idle",))).load_observers()
    assert "plugin acme_idle has no effect" in caplog.text
    manager.load("acme_idle", "acme")
    assert manager.modules["acme_idle"] == "acme"


@pytest.mark.parametrize(
    ("kind", "words"),
    [("policies", "'odd' of the policies is 42, which cannot be called"),
     ("commands", "'odd' of the commands is 42, no click command")],
)  # fmt: skip
def test_registered_object_that_cannot_be_a_part_is_refused(
    install: Install, kind: str, words: str
) -> None:
    source = f"""
        from dingsdk import hookimpl
        @hookimpl
        def dingsdk_register_{kind}(registry):
            registry.register("odd", 42)
    """
    install("acme-odd", {f"dingsdk.{kind}": {"odd": "acme_odd"}}, acme_odd=source)

    with pytest.raises(PluginLoadError, match=words) as caught:
        PluginManager().get(kind, "odd")

    assert caught.value.plugin == "acme-odd"


def test_plugin_that_does_not_register_its_advertised_type_is_refused(install: Install) -> None:
    install("acme-empty", {"dingsdk.buffers": {"void": "acme_empty"}}, acme_empty="")

    with pytest.raises(PluginLoadError) as caught:
        PluginManager().get("buffers", "void")

    assert (caught.value.plugin, caught.value.reason) == ("acme-empty", "not registered")


@pytest.mark.parametrize("kind", ["buffers", "plugins"])
def test_entry_point_that_names_a_missing_attribute_is_refused(
    install: Install, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    install("acme-a", {f"dingsdk.{kind}": {"mine": "acme_a:Mine"}}, acme_a=HOOK.format(key="mine"))
    manager = PluginManager()

    with pytest.raises(PluginLoadError, match=r"plugin acme-a .*acme_a:Mine.* has no 'Mine'"):
        manager.import_part(kind, "mine")

    (row,) = [row for row in manager.plugins() if row.type_key == "mine"]
    assert row.state == "broken"
    assert "acme_a:Mine" in row.detail
    manager.load_observers()
    assert ("acme_a:Mine" in caplog.text) == (kind == "plugins")


def test_unreadable_entry_points_do_not_affect_other_distributions(
    ring: Install, caplog: pytest.LogCaptureFixture
) -> None:
    site = ring("acme-garbled", {"dingsdk.buffers": {"garbled": "acme_garbled"}})
    broken = site / "acme_garbled-1.0.dist-info" / "entry_points.txt"
    broken.write_bytes(b"[dingsdk.buffers]\ngarbled = \xff\xfe\n")

    manager = PluginManager()

    assert manager.get("buffers", "ring").__name__ == "RingBuffer"
    with pytest.raises(UnknownPluginError):
        manager.get("buffers", "garbled")
    (text,) = {record.getMessage() for record in caplog.records}
    assert text.startswith(f"cannot read the entry points of {broken.parent}: 'utf-8' codec")


def test_misspelt_entry_point_group_is_a_warning_with_the_nearest_name(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("acme-typo", {"dingsdk.buffer": {"x": "acme_x"}})

    PluginManager().adverts()

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "did you mean 'buffers'?" in record.getMessage()


def test_threads_that_load_a_type_at_once_get_the_same_class(ring: Install) -> None:
    manager = PluginManager()
    barrier = threading.Barrier(8)
    got: list[object] = []

    def ask() -> None:
        barrier.wait(10)
        got.append(manager.get("buffers", "ring"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len(got) == 8
    assert len(set(got)) == 1
