"""``dingsdk new plugin`` checks names, and writes a complete package or nothing."""

from __future__ import annotations

import re
import resource
import tomllib
from pathlib import Path

import pytest

from dingsdk.cli import main
from dingsdk.errors import ConfigError, RunFolderError
from dingsdk.plugins import KINDS, TEMPLATES, new_plugin
from dingsdk.plugins.templates import render
from tests.programs import python


@pytest.mark.parametrize("kind", TEMPLATES)
def test_package_has_its_own_name_entry_point_and_files_and_no_placeholder(kind: str) -> None:
    files = render(kind, "own-part")

    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["name"] == "dingsdk-rl-own-part"
    ((group, points),) = project["entry-points"].items()
    assert list(points.values()) == ["dingsdk_own_part"]
    assert group.removeprefix("dingsdk.") in {*KINDS, "plugins"}
    assert files.keys() == {
        "README.md",
        "LICENSE",
        "pyproject.toml",
        ".gitignore",
        ".github/workflows/test.yml",
        "example.yaml",
        "dingsdk_own_part/__init__.py",
        *([] if kind == "observer" else [f"dingsdk_own_part/{kind.replace('-', '_')}.py"]),
        "dingsdk_own_part/py.typed",
        "tests/test_plugin.py",
    }
    for path, text in files.items():
        left = re.search(r"plugin[-_](name|group)|PluginName|PLUGIN_[A-Z]+", path + text)
        assert not left, f"{path}: {left}"


@pytest.mark.parametrize("name", ["a", "own-part", "x" * 40])
def test_packages_pass_their_own_linter(name: str, tmp_path: Path) -> None:
    for kind in TEMPLATES:
        new_plugin(kind, name, tmp_path / kind)

    for command in (["check"], ["format", "--check"]):
        done = python("-m", "ruff", *command, "--no-cache", ".", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


BAD_NAMES = [
    "", "Mine", "9lives", "a b", "a--b", "-a", "a-", "a/b", "../a", "a.b", "class", "none ", "\n",
    "ä", "a" * 41, "null", "on", "true",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, "cannot name a plugin") for name in BAD_NAMES),
        ("dqn", "a policy of that type"),
        ("in-memory", "dingsdk-rl-in-memory is a plugin of dingsdk"),
    ],
)
def test_bad_or_taken_name_is_refused(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        new_plugin("policy", name, tmp_path)

    assert not list(tmp_path.iterdir())


def test_command_with_the_name_of_a_role_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is a command of that type already") as raised:
        render("command", "collector")
    assert raised.value.found == "collector"


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'policy'") as raised:
        render("polcy", "mine")

    assert raised.value.known == sorted(TEMPLATES)


def test_existing_folder_or_link_is_refused_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "dingsdk-rl-mine"
    folder.mkdir()

    (tmp_path / "dingsdk-rl-link").symlink_to("nowhere")

    for name in ("mine", "link"):
        with pytest.raises(RunFolderError, match="exists"):
            new_plugin("policy", name, tmp_path)

    assert {path.name for path in tmp_path.rglob("*")} == {"dingsdk-rl-mine", "dingsdk-rl-link"}


def test_no_files_are_left_if_writing_fails(tmp_path: Path) -> None:
    # Python ignores SIGXFSZ, so writing beyond the limit raises OSError.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(RunFolderError, match="File too large"):
            new_plugin("policy", "mine", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "article", "use"),
    [
        ("policy", "a", "train {}/example.yaml"),
        ("transport", "a", "train {}/example.yaml --mode parallel"),
        ("commander", "a", "train {}/example.yaml --mode parallel"),
        ("observer", "an", "train {}/example.yaml"),
        ("command", "a", "my-own runs/my-own"),
    ],
)
def test_next_steps_end_with_one_that_uses_the_plugin(
    kind: str, article: str, use: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["new", "plugin", kind, "my_own", "--into", str(tmp_path)])

    folder = tmp_path / "dingsdk-rl-my-own"
    out = capsys.readouterr().out
    assert code == 0
    assert f"holds {article} {kind} that works" in out
    assert f"pip install -e '{folder}[test]'\n" in out
    assert "dingsdk check dingsdk-rl-my-own\n" in out
    assert out.endswith(f"dingsdk {use.format(folder)}\n")
