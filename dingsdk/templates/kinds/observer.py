"""An observer that writes the evaluations of a run to `plugin_name.jsonl` in its folder.

Its functions have the names of hooks, and take only the arguments that they need. The reference page of
hooks lists all hooks, with the process and thread in which each is called. While it is installed, an
observer is loaded in every process of each run. To turn it off, set
`DINGSDK_DISABLED_PLUGINS=dingsdk-rl-plugin-name`.
An exception is logged with the observer's name, and the run continues. Keep it fast: the run waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dingsdk import hookimpl

FILE = "plugin_name.jsonl"

_run_dirs: list[Path] = []


@hookimpl
def dingsdk_run_started(config: Mapping[str, Any], run_dir: Path) -> None:
    """Remember the folder of the run."""
    _run_dirs.append(run_dir)


@hookimpl
def dingsdk_after_evaluate(mean_return: float, train_iter: int, envstep: int) -> None:
    """Add a line for an evaluation."""
    if not _run_dirs:
        return
    line = {"train_iter": train_iter, "envstep": envstep, "mean_return": mean_return}
    with (_run_dirs[-1] / FILE).open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(line)}\n")


@hookimpl
def dingsdk_run_finished(run_dir: Path, result: Mapping[str, Any]) -> None:
    """Forget the run."""
    if run_dir in _run_dirs:
        _run_dirs.remove(run_dir)
