from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from dingsdk.errors import PluginLoadError, PluginNotInstalledError, UnknownPluginError
from dingsdk.plugins import PluginManager, Switches
from dingsdk.plugins.discovery import SHIPPED, install_command
from dingsdk.plugins.kinds import NAMES

from .conftest import Install

CHECKOUT = Path(__file__).parents[3]


def test_advertised_name_is_imported_on_access(install: Install) -> None:
    install("acme-ring", {"dingsdk.names": {"Ring": "acme_ring:Ring"}}, acme_ring="class Ring: ...")

    manager = PluginManager()

    assert manager.adverts("names", "Ring")
    assert "acme_ring" not in sys.modules
    assert manager.named("Ring").__name__ == "Ring"


@pytest.mark.parametrize("name", ["NoSuchThing", "__path__", "_private"])
def test_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError):
        PluginManager().named(name)


@pytest.mark.parametrize(("kind", "key"), [each for each in SHIPPED if each[0] != "plugins"])
def test_error_for_a_part_of_an_absent_plugin_says_what_to_install(kind: str, key: str) -> None:
    manager = PluginManager(discover=list)
    with pytest.raises((ImportError, UnknownPluginError), match="pip install") as caught:
        manager.named(key) if kind == NAMES else manager.get(kind, key)

    error = caught.value
    assert isinstance(error, PluginNotInstalledError if kind == NAMES else UnknownPluginError)
    assert error.install == SHIPPED[kind, key]


def test_name_of_a_broken_disabled_or_ambiguous_plugin_says_so(install: Install) -> None:
    install("acme-bad", {"dingsdk.names": {"Bad": "acme_bad:Bad"}}, acme_bad="1 / 0")
    install("acme-a", {"dingsdk.names": {"Twice": "acme_a:Twice"}})
    install("acme-b", {"dingsdk.names": {"Twice": "acme_b:Twice"}})

    def reason(name: str, switches: Switches | None = None) -> str:
        with pytest.raises(PluginLoadError) as caught:
            PluginManager(switches).named(name)
        return str(caught.value.reason)

    assert reason("Bad") == "broken"
    assert reason("Bad", Switches(disabled=("acme-bad",))) == "disabled"
    assert reason("Twice") == "duplicate"


def test_misspelled_type_of_an_absent_plugin_suggests_name_and_install_command() -> None:
    with pytest.raises(UnknownPluginError, match="pip install") as caught:
        PluginManager(discover=list).get("transports", "in_memry")

    assert (caught.value.nearest, caught.value.install) == ("in_memory", "dingsdk-rl-in-memory")


def test_hints_name_exactly_what_the_distributions_of_this_repository_advertise() -> None:
    advertised = {}
    for file in (CHECKOUT / "plugins").glob("*/pyproject.toml"):
        project = tomllib.loads(file.read_text())["project"]
        for group, rows in project["entry-points"].items():
            for key in rows:
                advertised[group.removeprefix("dingsdk."), key] = project["name"]

    assert advertised == SHIPPED


def test_hint_names_the_folder_in_this_checkout_or_in_a_clone(tmp_path: Path) -> None:
    for file in (CHECKOUT / "plugins").glob("*/pyproject.toml"):
        project = tomllib.loads(file.read_text())["project"]
        distribution = project["name"]
        found = (re.match(r"dingsdk-rl-([a-z-]+)", each) for each in project["dependencies"])
        names = [f"dingsdk-{each[1]}" for each in found if each]

        here = install_command(distribution)
        elsewhere = install_command(distribution, checkout=tmp_path)

        folders = [str(CHECKOUT / "plugins" / each) for each in names]
        assert here == " ".join(["pip install", *folders, str(file.parent)])
        places = [f"./plugins/{each}" for each in (*names, file.parent.name)]
        assert elsewhere.startswith(f"pip install {' '.join(places)}, ")
        assert install_command(distribution, "x").endswith(f" '{file.parent}[x]'")
