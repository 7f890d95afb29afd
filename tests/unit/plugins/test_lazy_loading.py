from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from dingsdk.errors import ConfigError, ConfigTypeError, PluginLoadError, UnknownPluginError
from dingsdk.plugins import PluginManager

from .conftest import Install


def test_import_names_come_first_and_register_by_decorator_or_by_hook(
    ring: Install, tmp_path: Path
) -> None:
    (tmp_path / "site" / "acme_mine.py").write_text(
        "from dingsdk import hookimpl\n"
        "@hookimpl\n"
        "def dingsdk_register_buffers(registry):\n"
        "    registry.register('mine', dict)\n"
    )
    (tmp_path / "site" / "acme_top.py").write_text(
        "from dingsdk import default_manager\n"
        "default_manager().registry('buffers').register('acme_top', list)\n"
    )
    from dingsdk.plugins import use_manager

    with use_manager(PluginManager()) as manager:
        assert manager.get("buffers", "mine", ["acme_mine"]) is dict
        assert manager.get("buffers", "acme_top", ["acme_mine", "acme_top"]) is list
        entry = manager.registry("buffers").entry("acme_top")

    assert entry is not None
    assert entry.owner == "acme_top"


def test_error_of_a_missing_import_name_gives_its_config_path() -> None:
    with pytest.raises(PluginLoadError) as caught:
        PluginManager().get("buffers", "naive", ["acme_absent"], "policy.other.replay_buffer")

    assert caught.value.plugin == "acme_absent"
    assert "policy.other.replay_buffer.import_names" in caught.value.__notes__[0]


@pytest.mark.parametrize("import_names", ["acme_ring", [3], {"a": 1}])
def test_import_names_that_are_no_list_of_text_are_refused(import_names: Any) -> None:
    with pytest.raises(ConfigTypeError) as caught:
        PluginManager().get("buffers", "naive", import_names)

    assert caught.value.path == "import_names"


def test_unknown_type_lists_known_names_sorted_and_the_nearest(ring: Install) -> None:
    with pytest.raises(KeyError) as caught:
        PluginManager().get("buffers", "rign", config_path="policy.other.replay_buffer")

    error = caught.value
    assert isinstance(error, UnknownPluginError)
    assert error.path == "policy.other.replay_buffer.type"
    assert error.known == sorted(error.known)
    assert {"naive", "ring"} <= set(error.known)
    assert (error.nearest, error.install) == ("ring", None)


def test_error_for_a_type_of_another_kind_names_that_kind(ring: Install) -> None:
    with pytest.raises(UnknownPluginError, match="one among the buffers"):
        PluginManager().get("storages", "ring")


def test_plugin_installed_after_the_first_search_is_found(install: Install, tmp_path: Path) -> None:
    manager = PluginManager()
    package = tmp_path / "site" / "acme_parts"
    package.mkdir()
    (package / "__init__.py").touch()
    with pytest.raises(UnknownPluginError):
        manager.get("buffers", "late")
    assert importlib.util.find_spec("acme_parts.late") is None
    looked_at = package.stat()

    install(
        "acme-late",
        {"dingsdk.buffers": {"late": "acme_parts.late"}},
        **{
            "acme_parts/late": """
            from dingsdk import hookimpl
            @hookimpl
            def dingsdk_register_buffers(registry):
                registry.register("late", dict)
            """
        },
    )
    # As on a file system whose clock has not advanced since then.
    os.utime(package, ns=(looked_at.st_atime_ns, looked_at.st_mtime_ns))

    assert manager.get("buffers", "late") is dict


def test_config_without_type_or_that_is_no_section_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        PluginManager().create("buffers", {"size": 3}, config_path="a.b")
    assert caught.value.path == "a.b.type"
    assert "naive" in caught.value.known

    with pytest.raises(ConfigTypeError) as wrong:
        PluginManager().create("buffers", "naive", config_path="a.b")  # type: ignore[arg-type]
    assert (wrong.value.path, wrong.value.found) == ("a.b", "naive")
    assert wrong.value.expected == "the section of one of the buffers"


@pytest.mark.parametrize("error", [KeyError("capacity"), TypeError("bad keyword"), OSError(5, "x")])
def test_error_in_a_constructor_passes_unchanged_with_a_note(error: Exception) -> None:
    manager = PluginManager()

    @manager.registry("buffers").register("bad")
    def build(cfg: object) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        manager.create("buffers", {"type": "bad"}, config_path="policy.other.replay_buffer")

    assert caught.value is error
    (note,) = error.__notes__
    assert "'bad'" in note
    assert __name__ in note
    assert "policy.other.replay_buffer" in note
