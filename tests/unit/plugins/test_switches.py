from __future__ import annotations

import sys

import pytest

from dingsdk.errors import ConfigError, PluginLoadError
from dingsdk.plugins import PluginManager, Switches, use_manager

from .conftest import OBSERVER, Install


def loaded_observers(manager: PluginManager) -> list[str]:
    manager.load_observers()
    return [impl.plugin_name for impl in manager.hook.dingsdk_after_iter.get_hookimpls()]


def test_environment_is_read_into_switches() -> None:
    switches = Switches.from_environ(
        {
            "DINGSDK_DISABLE_PLUGIN_AUTOLOAD": "1",
            "DINGSDK_PLUGINS": "acme-ring, acme_b,",
            "DINGSDK_DISABLED_PLUGINS": "x",
            "DINGSDK_STRICT_PLUGINS": "yes",
        }
    )

    assert switches == Switches(False, ("acme-ring", "acme_b"), ("x",), True)
    assert Switches.from_environ({}) == Switches()
    assert Switches.from_environ({"DINGSDK_STRICT_PLUGINS": "0"}) == Switches()


def test_switch_that_is_neither_on_nor_off_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError) as caught:
        Switches.from_environ({"DINGSDK_STRICT_PLUGINS": "maybe"})

    assert caught.value.path == "DINGSDK_STRICT_PLUGINS"


def test_misspelled_variable_is_an_error_with_the_nearest_name() -> None:
    nearest = r"; did you mean 'DINGSDK_DISABLED_PLUGINS'\? Known: "
    with pytest.raises(ConfigError, match=nearest) as caught:
        Switches.from_environ({"DINGSDK_DISABLE_PLUGINS": "acme-ring"})

    assert caught.value.path == "DINGSDK_DISABLE_PLUGINS"
    assert caught.value.nearest == "DINGSDK_DISABLED_PLUGINS"
    with pytest.raises(ConfigError, match=r"is no switch of dingsdk\. Known: ") as caught:
        Switches.from_environ({"DINGSDK_FOLDER_OF_ALL_MY_OWN_PLUGINS_AND_DATA": "x"})
    assert caught.value.nearest is None
    assert Switches.from_environ({"DINGSDK_SECRET": "s", "MY_PLUGINS": "x"}) == Switches()


@pytest.mark.parametrize(
    ("switches", "variable"),
    [
        (Switches(disabled=("acme-rign",)), "DINGSDK_DISABLED_PLUGINS"),
        (Switches(plugins=("acme-ring", "acme-rign")), "DINGSDK_PLUGINS"),
    ],
)
def test_switch_with_an_unknown_plugin_is_an_error_that_names_the_nearest(
    ring: Install, switches: Switches, variable: str
) -> None:
    with pytest.raises(ConfigError, match=variable) as caught:
        PluginManager(switches).known("buffers")

    assert (caught.value.path, caught.value.asked) == (variable, "acme-rign")
    assert caught.value.nearest == "acme-ring"
    assert str(caught.value).endswith("; did you mean 'acme-ring'?")
    with pytest.raises(ConfigError, match=r"; take it out, or install it\.$"):
        PluginManager(Switches(disabled=("nothing_like_it",))).known("buffers")


@pytest.mark.parametrize("name", ["acme-ring", "Acme_Ring", "acme_ring", "ACME..ring"])
def test_disabled_plugin_is_not_imported_and_says_why(ring: Install, name: str) -> None:
    manager = PluginManager(Switches(disabled=(name,)))

    assert "ring" not in manager.known("buffers")
    with pytest.raises(PluginLoadError, match="DINGSDK_DISABLED_PLUGINS") as caught:
        manager.get("buffers", "ring")

    assert (caught.value.plugin, caught.value.reason) == ("acme-ring", "disabled")
    assert "acme_ring" not in sys.modules


def test_disabled_module_is_refused_in_import_names_too(ring: Install) -> None:
    with pytest.raises(PluginLoadError, match="DINGSDK_DISABLED_PLUGINS") as caught:
        PluginManager(Switches(disabled=("acme_ring",))).get("buffers", "x", ["acme_ring"])

    assert (caught.value.plugin, caught.value.reason) == ("acme_ring", "disabled")
    assert caught.value.__notes__ == ["named in import_names"]

    assert "acme_ring" not in sys.modules


def test_without_autoload_only_listed_plugins_are_used(ring: Install) -> None:
    with pytest.raises(PluginLoadError, match="DINGSDK_DISABLE_PLUGIN_AUTOLOAD"):
        PluginManager(Switches(autoload=False)).get("buffers", "ring")

    listed = PluginManager(Switches(autoload=False, plugins=("acme-ring",)))
    assert listed.get("buffers", "ring").__name__ == "RingBuffer"


def test_switches_do_not_affect_builtins() -> None:
    manager = PluginManager(Switches(autoload=False, disabled=("dingsdk",)))
    manager.registry("buffers").declare("text", "collections:OrderedDict")

    assert manager.get("buffers", "text").__name__ == "OrderedDict"
    assert "naive" in manager.known("buffers")


def test_observers_load_by_autoload_or_when_listed(install: Install) -> None:
    install("acme-eye", {"dingsdk.plugins": {"eye": "acme_eye"}}, acme_eye=OBSERVER)

    assert loaded_observers(PluginManager()) == ["acme_eye"]
    assert loaded_observers(PluginManager(Switches(autoload=False))) == []
    assert loaded_observers(PluginManager(Switches(autoload=False, plugins=("acme-eye",)))) == [
        "acme_eye"
    ]
    assert loaded_observers(PluginManager(Switches(disabled=("acme-eye",)))) == []


def test_broken_observer_is_logged_by_name_and_left_out_or_raises_when_strict(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("acme-bad", {"dingsdk.plugins": {"bad": "acme_bad"}}, acme_bad="1 / 0")
    install("acme-eye", {"dingsdk.plugins": {"eye": "acme_eye"}}, acme_eye=OBSERVER)

    assert loaded_observers(PluginManager()) == ["acme_eye"]
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "acme-bad" in record.getMessage()

    with pytest.raises(PluginLoadError):
        loaded_observers(PluginManager(Switches(strict=True)))


def test_observer_without_any_hookimpl_is_logged(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    forgotten = "def dingsdk_after_iter(learner):\n    pass\n"
    registers = "from dingsdk import default_manager as m\n"
    registers += "m().registry('buffers').register('acme_loose', dict)\n"
    install("acme-eye", {"dingsdk.plugins": {"eye": "acme_eye"}}, acme_eye=forgotten)
    install("acme-other", {}, acme_loose=registers)

    with use_manager(PluginManager(Switches(plugins=("acme_loose",)))) as manager:
        assert loaded_observers(manager) == []
        assert manager.get("buffers", "acme_loose") is dict

    (record,) = caplog.records
    assert "acme-eye" in record.getMessage()
    assert "@dingsdk.hookimpl" in record.getMessage()
    with pytest.raises(PluginLoadError) as caught:
        loaded_observers(PluginManager(Switches(strict=True)))
    assert (caught.value.plugin, caught.value.reason) == ("acme-eye", "not marked")
