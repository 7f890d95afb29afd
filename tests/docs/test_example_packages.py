"""The example packages are built, installed, used from a config and removed again.

The tests of the packages run in test_documented_code.py, with the pages that show them.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tools.release_check import ROOT, CheckFailedError, build, new_environment, run

EXAMPLES = ROOT / "docs" / "examples"
POLICY_PAGE = ROOT / "docs" / "how-to" / "write-a-policy.md"
SHORT = ["--set", "system.max_env_steps=300", "-q"]
USES = {
    "dingsdk-example-buffer": (
        "buffers",
        "recent",
        ["cartpole-dqn", "--set", "policy.other.replay_buffer.type=recent"],
    ),
    "dingsdk-example-policy": (
        "policies",
        "reinforce",
        [str(EXAMPLES / "dingsdk-example-policy" / "example.yaml")],
    ),
    "dingsdk-example-transport": (
        "transports",
        "unix_socket",
        ["cartpole-dqn", "--mode", "parallel", "--transport", "unix_socket"],
    ),
}


def blocks_of(page: Path) -> dict[str, str]:
    text = page.read_text(encoding="utf-8")
    return dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def test_every_example_package_is_used() -> None:
    assert sorted(USES) == sorted(path.parent.name for path in EXAMPLES.glob("*/pyproject.toml"))


def test_plugin_directory_lists_every_distribution() -> None:
    page = (ROOT / "docs" / "how-to" / "find-a-plugin.md").read_text(encoding="utf-8")
    projects = [*ROOT.glob("plugins/*/pyproject.toml"), *EXAMPLES.glob("*/pyproject.toml")]
    assert len(projects) > 4
    for project in projects:
        name = re.search(r'^name = "(.+)"', project.read_text(encoding="utf-8"), re.MULTILINE)
        assert name is not None
        assert f"| `{name[1]}` |" in page


@pytest.mark.parametrize("kind", ["buffer", "transport"])
def test_tutorial_shows_every_file(kind: str) -> None:
    folder = EXAMPLES / f"dingsdk-example-{kind}"
    files = {
        path.relative_to(EXAMPLES).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    page = ROOT / "docs" / "tutorial" / f"write-a-{kind}.md"
    assert blocks_of(page) == files
    described = tomllib.loads(files[f"{folder.name}/pyproject.toml"])
    assert described["project"]["dependencies"] == ["dingsdk-rl"]


def test_example_policy_equals_the_code_in_its_page() -> None:
    folder, shown = EXAMPLES / "dingsdk-example-policy", blocks_of(POLICY_PAGE)
    package = folder / "dingsdk_example_policy" / "__init__.py"
    _, _, code = package.read_text(encoding="utf-8").partition("\n\n")
    assert code == shown["reinforce.py"]
    tests = (folder / "tests" / "test_reinforce.py").read_text(encoding="utf-8")
    tests = tests.replace("from dingsdk_example_policy", "from reinforce")
    assert sorted(tests.splitlines()) == sorted(shown["test_reinforce.py"].splitlines())


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(USES))
def test_package_is_installed_used_and_removed(
    name: str, wheels: list[Path], tmp_path: Path
) -> None:
    kind, key, arguments = USES[name]
    (wheel,) = build(tmp_path / "dist", [EXAMPLES / name])
    python = new_environment(tmp_path / "venv", [*wheels, wheel])
    dingsdk = [python, "-m", "dingsdk"]

    assert name in run([*dingsdk, "plugins", "--kind", kind], cwd=tmp_path)
    run([*dingsdk, "train", *arguments, *SHORT], cwd=tmp_path)
    (result,) = (tmp_path / "runs").glob("*/config.yaml")
    assert key in result.read_text(encoding="utf-8")

    run([sys.executable, "-m", "pip", "--python", python, "uninstall", "--yes", "--quiet", name])
    assert name not in run([*dingsdk, "plugins", "--kind", kind], cwd=tmp_path)
    module = name.replace("-", "_")
    assert not [*python.parents[1].glob(f"lib/*/site-packages/{module}*")]
    with pytest.raises(CheckFailedError, match=key):
        run([*dingsdk, "train", *arguments, *SHORT], cwd=tmp_path)
