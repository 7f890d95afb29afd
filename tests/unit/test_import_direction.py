"""Imports point one way. Every violation is listed as file:line."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]

LAYERS = (
    {"errors", "lazy"},
    {"runtime"},
    {"config"},
    {"data"},
    {"plugins"},
    {"envs", "policy", "worker"},
    {"pipeline"},
    {"cli"},
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
ENTRANCES = dict.fromkeys(("__main__", "examples", "testing"), LEVEL["cli"] + 1)
"""Packages outside the layers. They may import everything below their level."""

KNOW_NO_TRANSPORT = {"replay_buffer", "evaluator", "collector", "learner"}
TRANSPORT_SIDE = {"comm", "coordinator", "adapter"}
WORKER_MAY_IMPORT = {"envs", "policy"}
PUBLIC_MODULES = {"dingsdk", "dingsdk.config", "dingsdk.errors"}


def violations(checkout: Path) -> list[str]:
    """Return ``file:line: reason`` for each import in the tree that points the wrong way."""
    found: list[str] = []
    distributions = plugin_packages(checkout)
    for file in sorted((checkout / "dingsdk").rglob("*.py")):
        if "templates" in file.parent.parts:
            continue  # templates for new plugins, which import only public names
        parts = module_parts(checkout, file)
        for line, target in imports(file, parts, checkout):
            reason = core_offence(parts, target, set(distributions))
            if reason:
                found.append(f"{file.relative_to(checkout)}:{line}: {reason}")
    for folder in distributions.values():
        for file in sorted(folder.rglob("*.py")):
            parts = (folder.name, *module_parts(folder, file))
            for line, target in imports(file, parts, checkout):
                reason = plugin_offence(checkout, target)
                if reason:
                    found.append(f"{file.relative_to(checkout)}:{line}: {reason}")
    return found


def plugin_packages(checkout: Path) -> dict[str, Path]:
    inits = checkout.glob("plugins/*/*/__init__.py")
    return {init.parent.name: init.parent for init in inits if init.parent.name != "tests"}


def module_parts(root: Path, file: Path) -> tuple[str, ...]:
    parts = file.relative_to(root).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


@functools.cache
def nodes_of(source: str) -> list[ast.If | ast.Import | ast.ImportFrom]:
    """Return the nodes that the tests need. Cached, because each test reads all files."""
    kinds = ast.If, ast.Import, ast.ImportFrom
    found, left = [], list[ast.AST](ast.parse(source).body)
    for node in left:  # statements only: most nodes are expressions
        if isinstance(node, kinds):
            found.append(node)
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, block, [])
    return found


def imports(file: Path, parts: tuple[str, ...], checkout: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, "module" or "module:name") of every import anywhere in the file."""
    package = parts if file.name == "__init__.py" else parts[:-1]
    for node in nodes_of(file.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}:{alias.name}"


def core_offence(parts: tuple[str, ...], target: str, distributions: set[str]) -> str | None:
    module, _, name = target.partition(":")
    theirs = module.split(".")
    if theirs[0] in distributions:
        return f"the core imports the plugin distribution {theirs[0]}"
    if theirs[0] != "dingsdk" or parts == ("dingsdk",):
        return None
    if len(theirs) == 1:
        if name in LEVEL or name in ENTRANCES:
            theirs = ["dingsdk", name]
        else:
            return None if name == "__version__" else f"take {name or 'it'} from its own module"
    mine, room = parts[1], theirs[1]
    if room == mine:
        return worker_offence(parts, theirs, name) if room == "worker" else None
    level = LEVEL.get(mine, ENTRANCES.get(mine))
    if level is None:
        return f"{mine} stands in no layer"
    if room not in LEVEL:
        return f"{mine} imports {room}, which nothing may import"
    if LEVEL[room] < level or (mine == "worker" and room in WORKER_MAY_IMPORT):
        return None
    return f"{mine} imports {room}, which does not stand to its left"


def worker_offence(parts: tuple[str, ...], theirs: list[str], name: str) -> str | None:
    mine = parts[2] if len(parts) > 2 else ""
    room = theirs[2] if len(theirs) > 2 else name
    if mine in KNOW_NO_TRANSPORT and room in TRANSPORT_SIDE:
        return f"worker.{mine} imports worker.{room}, of which it knows nothing"
    return None


def plugin_offence(checkout: Path, target: str) -> str | None:
    module, _, name = target.partition(":")
    if module.split(".")[0] != "dingsdk":
        return None
    is_private = any(part.startswith("_") for part in [*module.split("."), name])
    is_package = (checkout / Path(*module.split(".")) / "__init__.py").is_file()
    if is_private or not (is_package or module in PUBLIC_MODULES):
        return f"{module}{':' + name if name else ''} is not public"
    return None


def test_imports_of_this_checkout_point_one_way() -> None:
    found = violations(CHECKOUT)

    assert not found, "\n".join(["", *found])


def test_every_package_of_this_checkout_has_a_layer() -> None:
    assert (CHECKOUT / "dingsdk" / "errors.py").is_file()
    rooms = {path.stem for path in (CHECKOUT / "dingsdk").iterdir() if path.suffix in {"", ".py"}}
    unknown = (
        rooms
        - LEVEL.keys()
        - ENTRANCES.keys()
        - {"__init__", "__pycache__", "examples", "templates"}
    )
    assert not unknown


PLANTED = [
    ("dingsdk/errors.py", "import dingsdk.config", "errors imports config"),
    ("dingsdk/data/x.py", "def f():\n    from dingsdk import plugins", "data imports plugins"),
    ("dingsdk/plugins/x.py", "from dingsdk.worker.learner import base", "plugins imports worker"),
    ("dingsdk/envs/x.py", "from ..policy import base", "envs imports policy"),
    ("dingsdk/pipeline/x.py", "from dingsdk.cli import main", "pipeline imports cli"),
    ("dingsdk/cli/x.py", "from dingsdk import testing", "cli imports testing"),
    ("dingsdk/worker/x.py", "from dingsdk import SampleBatch", "take SampleBatch"),
    ("dingsdk/novel/x.py", "import dingsdk.errors", "novel stands in no layer"),
    ("dingsdk/worker/comm/x.py", "import acme.parts", "plugin distribution acme"),
    ("dingsdk/worker/learner/x.py", "from ..comm import master", "learner imports worker.comm"),
    ("dingsdk/worker/collector/x.py", "from dingsdk.worker import coordinator", "coordinator"),
    ("dingsdk/worker/evaluator/x.py", "import dingsdk.worker.adapter.a", "worker.adapter"),
    ("plugins/acme/acme/x.py", "from dingsdk.plugins.manager import PluginManager", "not public"),
    ("plugins/acme/acme/x.py", "import dingsdk.worker.factory", "not public"),
    ("plugins/acme/acme/x.py", "from dingsdk.plugins import _hidden", "not public"),
]


def plant(root: Path, file: str, source: str) -> None:
    packages = ["dingsdk", "dingsdk/plugins", "dingsdk/worker", "plugins/acme/acme"]
    for package in packages:
        (root / package).mkdir(parents=True, exist_ok=True)
        (root / package / "__init__.py").touch()
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(source)


@pytest.mark.parametrize(("file", "source", "reason"), PLANTED)
def test_planted_violation_is_found(tmp_path: Path, file: str, source: str, reason: str) -> None:
    plant(tmp_path, file, source)

    (found,) = violations(tmp_path)

    assert found.startswith(f"{file}:{source.count(chr(10)) + 1}: ")
    assert reason in found


def import_graph(checkout: Path) -> dict[str, set[str]]:
    """Return the modules that each module imports, without imports under TYPE_CHECKING."""
    roots = [checkout, *(folder.parent for folder in plugin_packages(checkout).values())]
    files = {
        ".".join(module_parts(root, file)): file
        for root in roots
        for package in ([root / "dingsdk"] if root == checkout else root.glob("*/__init__.py"))
        for file in (package if package.is_dir() else package.parent).rglob("*.py")
        if "tests" not in file.relative_to(root).parts
    }
    graph: dict[str, set[str]] = {}
    for name, file in files.items():
        typing_only = typing_only_lines(file)
        graph[name] = set()
        for line, target in imports(file, tuple(name.split(".")), checkout):
            module, _, attribute = target.partition(":")
            found = f"{module}.{attribute}" if f"{module}.{attribute}" in files else module
            if line not in typing_only and found in files and found != name:
                graph[name].add(found)
    return graph


def typing_only_lines(file: Path) -> set[int]:
    return {
        inner.lineno
        for node in nodes_of(file.read_text(encoding="utf-8"))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
        if isinstance(inner, (ast.Import, ast.ImportFrom))
    }


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of an import cycle in order, or ``[]`` if there is none."""
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        path.append(name)
        found = next((circle for each in sorted(graph[name]) if (circle := visit(each))), [])
        path.pop()
        done.add(name)
        return found

    return next((circle for name in sorted(graph) if (circle := visit(name))), [])


def test_there_are_no_import_cycles() -> None:
    assert find_circle(import_graph(CHECKOUT)) == []


def test_planted_import_cycle_is_found_and_typing_imports_are_ignored(tmp_path: Path) -> None:
    plant(tmp_path, "dingsdk/worker/a.py", "from dingsdk.worker import b")
    plant(tmp_path, "dingsdk/worker/b.py", "def f():\n    from dingsdk.worker.c import x")
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import dingsdk.worker.a"
    plant(tmp_path, "dingsdk/worker/c.py", typed)
    assert find_circle(import_graph(tmp_path)) == []

    plant(tmp_path, "dingsdk/worker/c.py", "import dingsdk.worker.a")
    names = [f"dingsdk.worker.{letter}" for letter in "abca"]
    assert find_circle(import_graph(tmp_path)) == names
