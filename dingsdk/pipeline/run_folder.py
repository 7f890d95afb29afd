"""The folder that a run leaves: where it is, what is in it, how it is written.

::

    runs/<exp_name>/            a time stamp is appended when that exists
        config.yaml             the compiled config; can be trained and evaluated again
        ckpt/                   checkpoints: the newest iteration and the best evaluated
        log/                    text logs and tensorboard events
        result.json             how the run ended, every evaluation
        curve.png               mean return against env steps
"""

from __future__ import annotations

import dataclasses
import json
import math
import platform
from collections.abc import Mapping
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dingsdk import __version__
from dingsdk.data.files import atomic_write_json, ensure_dir
from dingsdk.errors import RunFolderError

if TYPE_CHECKING:
    from dingsdk.pipeline.context import RunResult

CONFIG_NAME = "config.yaml"
RESULT_NAME = "result.json"
CURVE_NAME = "curve.png"
CHECKPOINT_FOLDER = "ckpt"
RESULT_FORMAT = 1


def make_run_folder(root: Path, exp_name: str, now: datetime | None = None) -> Path:
    """Create ``root/exp_name``, or with a time stamp (and a counter) appended when it exists.

    Raises:
        RunFolderError: the folder cannot be created or written to.
    """
    ensure_dir(root)
    stamp = (now or datetime.now()).strftime("%y%m%d-%H%M%S")
    for name in _candidates(exp_name, stamp):
        folder = root / name
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise RunFolderError(
                f"cannot create the run folder {folder}: {error.strerror or error}; "
                "choose another root with --output",
                path=str(folder),
            ) from error
        ensure_dir(folder / CHECKPOINT_FOLDER)
        return folder
    raise RunFolderError(f"no free run folder name below {root}", path=str(root))


def claim_run_folder(folder: Path) -> Path:
    """Make ``folder`` the run folder of a new run; workers may have put files there already.

    Raises:
        RunFolderError: it holds a run, or it cannot be created or written to.
    """
    if (folder / CONFIG_NAME).exists():
        raise RunFolderError(
            f"{folder} holds a run already ({CONFIG_NAME}); name another folder", path=str(folder)
        )
    ensure_dir(folder / CHECKPOINT_FOLDER)
    return folder


def _candidates(exp_name: str, stamp: str) -> list[str]:
    stamped = f"{exp_name}-{stamp}"
    return [exp_name, stamped, *(f"{stamped}-{count}" for count in range(2, 100))]


def find_checkpoints(run_dir: Path) -> dict[str, Path]:
    """Return the checkpoints of a run by name (``latest``, ``best``), those that exist.

    ``latest`` is the pointer that ``load_checkpoint`` follows.
    """
    folder = run_dir / CHECKPOINT_FOLDER
    named = {"latest": folder / "latest.json", "best": folder / "ckpt_best.json"}
    return {name: path for name, path in named.items() if path.is_file()}


def write_result(
    run_dir: Path, result: RunResult, seed: int, error: str | None = None
) -> dict[str, Any]:
    """Write ``result.json`` in one atomic step and return its content.

    Raises:
        RunFolderError: the file cannot be written.
    """
    record = dataclasses.asdict(result) | {
        "format": RESULT_FORMAT,
        "seed": seed,
        "error": error,
        "run_dir": str(result.run_dir),
        "checkpoints": {
            name: str(path.relative_to(run_dir)) for name, path in result.checkpoints.items()
        },
        "versions": {
            "dingsdk": __version__,
            "torch": _version("torch"),
            "gymnasium": _version("gymnasium"),
            "python": platform.python_version(),
        },
    }
    finite: dict[str, Any] = _finite(record)
    atomic_write_json(run_dir / RESULT_NAME, finite)
    return finite


def read_result(run_dir: Path) -> dict[str, Any]:
    """Return the content of a run's ``result.json``.

    Raises:
        RunFolderError: it is missing or is not a result file.
    """
    path = run_dir / RESULT_NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"cannot read the result of {run_dir}: {error}", path=str(path)
        ) from error
    if not isinstance(found, dict) or found.get("format") != RESULT_FORMAT:
        raise RunFolderError(f"{path} is not a result file of this version", path=str(path))
    return found


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _finite(value: Any) -> Any:
    # JSON has neither infinity nor NaN; a reader in another language would refuse the file.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
