"""Pages, templates and examples import only public names; the kit needs only its extra."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLIC: tuple[str, ...] = runpy.run_path(str(ROOT / "docs" / "generate.py"))["MODULES"]
PLUGINS = ("di-engine", "minari", "trackers", "zoo")
"""Plugins of this repository that are written like those of third parties."""
PAGES = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
FILES = [
    *ROOT.glob("dingsdk/templates/**/*.py"),
    *ROOT.glob("docs/examples/**/*.py"),
    *(path for name in PLUGINS for path in ROOT.glob(f"plugins/dingsdk-{name}/dingsdk_*/*.py")),
]
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.M | re.S)


def imports_of(source: str) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import; the name of a whole module is empty."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.module, alias.name


def offences(source: str) -> list[str]:
    found = []
    for module, name in imports_of(source):
        if module.partition(".")[0] != "dingsdk" or f"{module}.{name}" in PUBLIC:
            continue
        if module not in PUBLIC or (name and name not in importlib.import_module(module).__all__):
            found.append(f"{module}: {name}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_of_a_page_imports_only_public_names(page: Path) -> None:
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        assert offences(block) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_text_of_a_page_refers_only_to_public_modules(page: Path) -> None:
    if "explanation" in page.parts:
        pytest.skip("it is for those who change dingsdk")
    told = re.findall(r"\bof\s+`(dingsdk(?:\.[a-z_]+)*)`", page.read_text(encoding="utf-8"))

    assert [module for module in told if module not in PUBLIC] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_template_example_or_plugin_imports_only_public_names(file: Path) -> None:
    assert offences(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "from dingsdk.worker.factory import create_buffer",
        "import dingsdk.worker.factory",
        "from dingsdk.policy import in_one_thread",
        "from dingsdk.errors import nearest_name",
        "from dingsdk import pipeline",
    ],
)
def test_private_import_is_found(source: str) -> None:
    assert offences(source)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_exists(module: str) -> None:
    found = importlib.import_module(module)

    assert found.__all__
    assert [name for name in found.__all__ if not hasattr(found, name)] == []
    assert set(found.__all__) <= set(dir(found))


def test_kit_imports_only_dependencies_and_its_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["testing"]]
    allowed = {re.split(r"[<>=\[]", each)[0].lower() for each in named}
    owners = metadata.packages_distributions()
    for file in (ROOT / "dingsdk" / "testing").rglob("*.py"):
        for module, _ in imports_of(file.read_text(encoding="utf-8")):
            package = module.partition(".")[0]
            if package in sys.stdlib_module_names or package == "dingsdk":
                continue
            assert {name.lower() for name in owners[package]} & allowed, f"{file}: {package}"


def test_dev_extra_includes_the_testing_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]

    assert set(extras["testing"]) <= set(extras["dev"])


def test_check_needs_no_test_framework() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('pytest', 'hypothesis')));"
        "from dingsdk.cli import main; sys.exit(main(['check', 'limiters:min_size']))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
