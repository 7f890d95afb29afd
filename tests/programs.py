"""Python programs that tests run in another process, and distributions that these find."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def python(*arguments: str, path: Path | None = None, **options: Any) -> Any:
    """Run Python and return the ended process, with its output as text.

    Args:
        *arguments: The command line.
        path: A folder from which it imports first.
        **options: Further arguments of ``subprocess.run``.
    """
    if path is not None:
        options["env"] = {**os.environ, "PYTHONPATH": str(path)}
    given = {"capture_output": True, "text": True, "timeout": 60, "check": False, **options}
    return subprocess.run([sys.executable, *arguments], **given)


def write_dist(
    folder: Path,
    name: str,
    entry_points: Mapping[str, Mapping[str, str]] = {},
    version: str = "1.0",
    requires: Sequence[str] = (),
    **modules: str,
) -> Path:
    """Write a distribution into ``folder``; ``modules`` are its files by module name."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    facts = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    facts += [f"Requires-Dist: {each}" for each in requires]
    (info / "METADATA").write_text("\n".join(facts) + "\n")
    sections = (
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in rows.items())
        for group, rows in entry_points.items()
    )
    (info / "entry_points.txt").write_text("\n".join(sections))
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(textwrap.dedent(source))
    return folder
