"""``dingsdk config``, ``dingsdk plugins --check`` and ``dingsdk doctor``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import dingsdk.cli.doctor as doctor_module
import dingsdk.cli.plugins as plugins_module
from dingsdk.cli import main
from dingsdk.config import load_config
from dingsdk.plugins import PluginManager, Switches, use_manager
from dingsdk.testing import check_plugin
from tests.programs import write_dist

BROKEN = {
    "dingsdk.buffers": {"broken": "no_such_module"},
    "dingsdk.plugins": {"watch": "acme_idle"},
}
LIMITER = """
from dingsdk import hookimpl
from dingsdk.worker.replay_buffer import Limiter

class OtherCall(Limiter): ...

@hookimpl
def dingsdk_register_limiters(registry):
    registry.register("other_call", OtherCall)
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    write_dist(tmp_path, "acme-broken", BROKEN, acme_idle="VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with use_manager(PluginManager()):
        yield
    sys.modules.pop("acme_idle", None)


def rows_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, str]]:
    main(["plugins", "--json", *arguments])
    rows = json.loads(capsys.readouterr().out)
    return {row["type_key"]: row for row in rows if row["distribution"] == "acme-broken"}


def test_plugins_command_imports_plugins_only_with_check(
    broken: None, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = rows_of(capsys)
    checked = rows_of(capsys, "--check")

    assert [listed[key]["state"] for key in ("broken", "watch")] == ["available"] * 2
    assert [checked[key]["state"] for key in ("broken", "watch")] == ["broken"] * 2
    assert "no_such_module" in checked["broken"]["detail"]
    assert "implements no hook" in checked["watch"]["detail"]


def test_all_commands_refuse_a_part_that_check_refuses(broken: None, tmp_path: Path) -> None:
    points = {"dingsdk.limiters": {"other_call": "acme_limiter"}}
    write_dist(tmp_path, "acme-limits", points, acme_limiter=LIMITER)
    steps = check_plugin("limiters:other_call").steps
    (finding,) = [each for each in doctor_module._plugins() if "other_call" in each.what]
    (row,) = [each for each in PluginManager().plugins() if each.type_key == "other_call"]
    row = plugins_module._imported(row)
    sys.modules.pop("acme_limiter")

    assert (steps[-1].name, finding.state, row.state) == ("interface", "fail", "broken")
    text = "acme_limiter.OtherCall lacks can_sample"
    assert all(text in detail for detail in (steps[-1].detail, finding.detail, row.detail))


def test_doctor_distinguishes_importable_and_broken_plugins(broken: None) -> None:
    found = {each.what: each for each in doctor_module._plugins()}

    state, _, detail, fix = found["buffers broken"]
    assert (state, fix) == ("fail", "repair it, or pip uninstall acme-broken")
    assert detail.startswith("acme-broken 1.0: ")
    version = metadata.version("dingsdk-rl-in-memory")
    good = ("pass", "transports in_memory", f"dingsdk-rl-in-memory {version}", "")
    assert found["transports in_memory"] == good
    assert "buffers naive" not in found


@pytest.fixture
def disabled(broken: None) -> Iterator[None]:
    with use_manager(PluginManager(Switches(disabled=("acme-broken",)))):
        yield


def test_disabled_plugin_is_not_imported_by_a_check(
    disabled: None, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = rows_of(capsys, "--check")
    assert [checked[key]["state"] for key in ("broken", "watch")] == ["disabled"] * 2
    found = [each for each in doctor_module._plugins() if "acme-broken" in each.detail]
    assert [(each.state, each.what) for each in found] == [
        ("warn", "buffers broken"),
        ("warn", "plugins watch"),
    ]
    assert {each.fix for each in found} == {"take the switch away to use it"}
    assert "DINGSDK_DISABLED_PLUGINS" in found[0].detail


def test_shown_config_is_complete_and_can_be_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ["--set", "policy.nstep=3", "--set", "system.replay.path=één"]
    assert main(["config", "show", "cartpole-dqn", *sets]) == 0
    text = capsys.readouterr().out
    (tmp_path / "shown.yaml").write_text(text)

    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert yaml.safe_load(text)["policy"]["nstep"] == 3
    assert load_config(tmp_path / "shown.yaml")["policy"]["learn"]["grad_clip_norm"] == 10.0
    assert load_config(tmp_path / "shown.yaml")["system"]["replay"]["path"] == "één"


def test_validate_checks_all_configs_even_if_one_is_invalid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("env: {env_id: CartPole-v1}\npolicy: {type: dqn, nstpe: 1}\n")

    assert main(["config", "validate", str(wrong), "cartpole-dqn"]) == 2
    told = capsys.readouterr()
    assert told.out == "cartpole-dqn: ok\n"
    assert len(told.err.splitlines()) == 1
    assert "policy.nstpe" in told.err
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.yaml"]


def test_validate_checks_the_config_for_the_given_mode(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["config", "validate", "cartpole-dqn", "--set", "system.transport.type=absent"]

    assert main([*arguments, "--mode", "serial"]) == 0
    assert main([*arguments, "--mode", "parallel"]) == 2


def test_too_old_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dist(tmp_path, "pluggy", version="1.4.9")
    monkeypatch.syspath_prepend(str(tmp_path))

    found = {each.what: each for each in doctor_module._packages()}

    assert found["pluggy"] == ("fail", "pluggy", "1.4.9", "pip install 'pluggy>=1.5'")
    for name in ("dingsdk-rl", "numpy"):
        assert found[name] == ("pass", name, metadata.version(name), "")
