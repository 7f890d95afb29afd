"""The picture of the packages: their lines, and which of them import each other."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1] / "dingsdk"
LAYERS = (
    ("errors",),
    ("config", "runtime"),
    ("data",),
    ("plugins",),
    ("envs", "policy", "worker"),
    ("pipeline",),
    ("cli", "testing"),
)
"""The packages, by layer: a package imports from those to its left, and from none to its right."""
_WIDTH, _GAP, _LINE = 150, 40, 19
_STYLE = (
    "text{font:12px sans-serif;fill:#222} .n{font-weight:600} .l{fill:#555}"
    " rect{fill:#eef3fa;stroke:#4a6fa5} path{fill:none;stroke:#8899aa;stroke-opacity:.7}"
)


def lines_of(path: Path) -> int:
    """Return the lines of a module, or of all modules of a package."""
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def imports() -> Counter[tuple[str, str]]:
    """Return how many modules of a package import another package."""
    found: Counter[tuple[str, str]] = Counter()
    known = {name for layer in LAYERS for name in layer}
    for file in ROOT.rglob("*.py"):
        own = file.relative_to(ROOT).parts[0].removesuffix(".py")
        names = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        others = {name.split(".")[1] for name in names if name.startswith("dingsdk.")}
        if own in known:
            found.update((own, other) for other in others & known - {own})
    return found


def rooms(name: str) -> list[tuple[str, int]]:
    """Return the packages in a package with their lines; modules of its own folder come last."""
    inner = [path for path in sorted((ROOT / name).glob("*/")) if (path / "__init__.py").is_file()]
    found = [(path.name, lines_of(path)) for path in inner]
    rest = lines_of(ROOT / name) - sum(count for _, count in found)
    return [*found, ("other modules", rest)] if len(found) > 3 else []


def shown(count: int) -> str:
    """Return a rounded number of lines, so that the picture rarely changes."""
    step = 500 if count >= 2000 else 100
    return f"{max(round(count / step) * step, 100):,}"


def picture() -> str:
    """Return the picture as SVG."""
    boxes: dict[str, tuple[int, int, int]] = {}
    parts: list[str] = []
    for column, layer in enumerate(LAYERS):
        y = 10
        for name in layer:
            inner = rooms(name)
            height = 44 + _LINE * len(inner)
            x = 10 + column * (_WIDTH + _GAP)
            boxes[name] = (x, y, height)
            lines = f"{shown(lines_of(ROOT / name))} lines"
            texts = [
                f'<text class="n" x="{x + 8}" y="{y + 18}">{name}</text>',
                f'<text class="l" x="{x + 8}" y="{y + 35}">{lines}</text>',
            ]
            for row, (room, count) in enumerate(inner):
                at, end = y + 54 + row * _LINE, x + _WIDTH - 6
                texts += [
                    f'<text x="{x + 8}" y="{at}">{room}</text>',
                    f'<text class="l" x="{end}" y="{at}" text-anchor="end">{shown(count)}</text>',
                ]
            box = f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{height}" rx="5"/>'
            parts += [box, *texts]
            y += height + 16
    arrows = []
    for (own, other), count in sorted(imports().items()):
        (x1, y1, h1), (x2, y2, h2) = boxes[own], boxes[other]
        a, b, c, d = x1, y1 + h1 // 2, x2 + _WIDTH, y2 + h2 // 2
        if x1 == x2:
            continue
        thick = 1 + min(count, 60) / 20
        arrows.append(
            f'<path d="M{a} {b} C{a - 30} {b} {c + 30} {d} {c} {d}" stroke-width="{thick:.1f}"/>'
        )
    width = 20 + len(LAYERS) * (_WIDTH + _GAP)
    height = max(y + h for _, y, h in boxes.values()) + 10
    size = f'width="{width}" height="{height}"'
    body = "\n".join([f"<style>{_STYLE}</style>", *arrows, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{body}\n</svg>\n'
