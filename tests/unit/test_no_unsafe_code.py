"""No shipped source can execute data that it reads, and patterns match a whole text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "marshal", "dill", "joblib", "shelve"}
MODULES |= {"jsonpickle", "pickletools", "torch.package", "multiprocessing.reduction"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {"torch.load", "torch.jit.load", "torch.hub.load", "pandas.read_pickle"}
YAML_SAFE = {"yaml.safe_load", "yaml.safe_load_all", "yaml.safe_dump"}


def sources() -> list[Path]:
    found = [*(CHECKOUT / "dingsdk").rglob("*.py")]
    for plugin in (CHECKOUT / "plugins").iterdir():
        found += [
            path for path in plugin.rglob("*.py") if "tests" not in path.relative_to(plugin).parts
        ]
    return found


def offences(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Call):
            yield from _called(node)
            continue
        else:
            continue
        for name in names:
            if name in MODULES | ATTRIBUTES or name.split(".")[0] in MODULES:
                yield f"line {node.lineno}: imports {name}"


def _called(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if name in BUILTINS or name in {f"builtins.{each}" for each in BUILTINS} or name in ATTRIBUTES:
        yield f"line {node.lineno}: calls {name}"
    if name == "yaml.load" and [ast.unparse(each) for each in node.args[1:]] == ["Loader"]:
        return  # our own loader, of plain data only: tests/unit/test_config.py
    if name.startswith("yaml.") and "load" in name and name not in YAML_SAFE:
        yield f"line {node.lineno}: calls {name}"
    pickles = keywords.get("allow_pickle")
    if pickles is not None and not (isinstance(pickles, ast.Constant) and pickles.value is False):
        yield f"line {node.lineno}: allows pickles"
    if name in {"np.load", "numpy.load"} and pickles is None:
        yield f"line {node.lineno}: {name} without allow_pickle=False"


def test_no_shipped_source_can_execute_data() -> None:
    paths = sources()
    found = {
        str(path.relative_to(CHECKOUT)): list(offences(ast.parse(path.read_text())))
        for path in paths
    }
    assert len(paths) > 50
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_patterns_of_messages_end_at_the_end_of_the_text() -> None:
    """``$`` also matches before a line break at the end."""
    patterns = [
        (path.name, keyword.value.value)
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Meta"
        for keyword in node.keywords
        if keyword.arg == "pattern" and isinstance(keyword.value, ast.Constant)
    ]
    assert len(patterns) > 4
    assert [each for each in patterns if str(each[1]).endswith("$")] == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, marshal as m",
        "from cloudpickle import loads",
        "from torch import load",
        "import joblib.externals",
        "x = eval('1')",
        "builtins.exec('1')",
        "torch.load(path, weights_only=True)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "yaml.load(text, Loader=yaml.Loader)",
    ],
)
def test_check_finds_unsafe_code(source: str) -> None:
    assert list(offences(ast.parse(source)))
