"""The tutorial shows the example transport, which uses only public names."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial" / "write-a-transport.md"
EXAMPLE = ROOT / "docs" / "examples" / "dingsdk-example-transport"
BLOCK = re.compile(r"^```\w+ file=dingsdk-example-transport/(\S+)\n(.*?)^```$", re.M | re.S)
SHOWN = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
FILES = sorted(
    str(path.relative_to(EXAMPLE))
    for path in EXAMPLE.rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
)


def test_tutorial_shows_every_file() -> None:
    assert sorted(SHOWN) == FILES


@pytest.mark.parametrize("name", FILES)
def test_tutorial_shows_the_current_content(name: str) -> None:
    assert SHOWN[name] == (EXAMPLE / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".py")])
def test_example_uses_only_public_names(name: str) -> None:
    for node in ast.walk(ast.parse((EXAMPLE / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not any(each.name.split(".")[0] == "dingsdk" for each in node.names)
        if not isinstance(node, ast.ImportFrom) or str(node.module).split(".")[0] != "dingsdk":
            continue
        module = importlib.import_module(str(node.module))
        public = {*getattr(module, "__all__", ()), *_own_classes(module)}
        assert {each.name for each in node.names} <= public, f"line {node.lineno}"


def _own_classes(module: object) -> set[str]:
    """Return the public classes of a module without ``__all__``, such as ``dingsdk.errors``."""
    if hasattr(module, "__all__"):
        return set()
    name = module.__name__  # type: ignore[attr-defined]
    return {
        key
        for key, value in vars(module).items()
        if getattr(value, "__module__", "") == name and not key.startswith("_")
    }


def test_example_depends_only_on_dingsdk() -> None:
    described = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))
    assert described["project"]["dependencies"] == ["dingsdk-rl"]
