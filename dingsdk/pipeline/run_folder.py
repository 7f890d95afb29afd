"""The run folder: its path, its content, and the functions that write it.

::

    runs/<exp_name>/            if it exists, a time stamp is appended
        config.yaml             the compiled config; can be trained and evaluated again
        resume/                 the newest saves for ``train --resume`` (serial mode)
        run.json                the id of the run, which its saves and journal have too
        seeds.json              the seeds of its parts (serial mode)
        journal/                the data for ``train --resume`` (parallel mode)
        replay/                 log and checkpoints of the run's replay server, if it has one
        transport/              data of the workers, removed with the journal (parallel mode)
        ckpt/                   checkpoints: the newest iteration and the best evaluated
        players/<player>/       ckpt and log of each further player that trains
        league/                 past players, and the league when the newest was added
        log/                    text logs and tensorboard events
        status.json             the current status, written every 2 s; for `dingsdk status`
        progress.jsonl          the status over time, one line per snapshot; for curves
        result.json             how the run ended, and all evaluations
        curve.png               mean return against env steps
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from dingsdk import __version__
from dingsdk.config.files import MAX_BYTES, dump_config, parse_config
from dingsdk.config.plain import find
from dingsdk.errors import (
    CheckpointMissingError,
    ConfigError,
    DataCorruptError,
    DataMissingError,
    RunFolderError,
    message_of,
    nearest_name,
    repr_of,
    wrong_type,
)
from dingsdk.plugins.discovery import version_of
from dingsdk.runtime.files import (
    Folder,
    check_owner,
    ensure_dir,
    folder_error,
    guarded,
    locked_folder,
    open_private,
    refuse_kind,
)
from dingsdk.worker.run_id import RUN_NAME

CONFIG_NAME = "config.yaml"
LAST_KEY = "system.validate_state"
"""The last key of every compiled config: without it, the rest of a file would be defaults."""
RESULT_NAME = "result.json"
STATUS_NAME = "status.json"
PROGRESS_NAME = "progress.jsonl"
CURVE_NAME = "curve.png"
SEEDS_NAME = "seeds.json"
"""File with the parts of a serial run and their seeds."""
CHECKPOINT_FOLDER = "ckpt"
JOURNAL_FOLDER = "journal"
RESULT_FORMAT = 1
"""Version of the file that holds a run's result."""
_FILES = (
    *(CONFIG_NAME, RUN_NAME, RESULT_NAME, STATUS_NAME, PROGRESS_NAME, CURVE_NAME, SEEDS_NAME),
    f"{CHECKPOINT_FOLDER}/latest.json",
)
_FOLDERS = (
    *(CHECKPOINT_FOLDER, JOURNAL_FOLDER, "resume", "log", "replay", "transport"),
    *("players", "league"),
)
_umask_lock = threading.Lock()
_umask, _private = 0, 0
"""The umask to restore, and the number of ``private_files`` blocks that are active."""


def make_run_folder(root: Path, exp_name: str, now: datetime | None = None) -> Path:
    """Create ``root/exp_name``, or with a time stamp (and a counter) appended when it exists."""
    check_text(root / exp_name)
    ensure_dir(root)
    stamped = f"{exp_name}-{now or datetime.now():%y%m%d-%H%M%S}"
    for name in (exp_name, stamped, *(f"{stamped}-{count}" for count in range(2, 100))):
        folder = root / name
        try:
            folder.mkdir(mode=0o700)
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


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a run folder, so that no other run uses it; the lock ends with the process.

    In the block, links below the folder are not followed.

    Raises:
        RunFolderError: another run uses it, or it belongs to another user.
    """
    taken = f"a run is under way in {folder}; wait for its end, or stop it"
    check_owner(folder, folder.stat())
    with locked_folder(folder, taken), guarded(folder):
        with Folder(folder) as own:
            own.sweep()  # temporary files of a run that was killed while it wrote
        yield


def claim_run_folder(folder: Path) -> Path:
    """Make ``folder`` the run folder of a new run; it may contain files of workers.

    If several processes call this at the same time, only one succeeds.

    Raises:
        RunFolderError: the folder holds a run.
    """
    if os.path.exists(folder):
        check_run_folder(folder)
    check_text(folder)
    path = folder / CONFIG_NAME
    try:
        ensure_dir(folder / CHECKPOINT_FOLDER)
        os.close(open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        raise RunFolderError(
            f"{folder} holds a run already ({CONFIG_NAME}); name another folder", path=str(folder)
        ) from None
    except OSError as error:
        raise folder_error("write", path, error) from error
    return folder


def run_path(run: str | os.PathLike[str]) -> Path:
    """Return the path of a run that the user named.

    Raises:
        CheckpointMissingError: it is no path, longer than a path may be, or cannot be looked at.
    """
    try:
        path = Path(run)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except Exception as error:  # of any code, as `__fspath__` is
        reason = getattr(error, "strerror", None) or message_of(error)
        raise CheckpointMissingError(
            f"{repr_of(run):.80} is not a run folder: {reason}; name a folder that "
            "`dingsdk train` wrote",
            path=f"{repr_of(run):.80}",
        ) from error
    return path


def check_flag(flag: Any, what: str) -> None:
    """Raise ConfigTypeError if an argument is neither True nor False."""
    if not isinstance(flag, bool):
        raise wrong_type(what, "True or False", flag)


def no_run_text(path: Path) -> str | None:
    """Return what to tell the user who named ``path`` as a run folder; None if it is one."""
    if os.path.isfile(path / CONFIG_NAME):
        return None
    if os.path.exists(path):
        problem = f"{path} is not a run folder: it has no {CONFIG_NAME}"
        is_inside = (path.parent / CONFIG_NAME).is_file() and path.parent != Path()
        nearest = path.parent if is_inside else None
    else:
        problem = f"there is no run folder {path}"
        runs = (config.parent.name for config in path.parent.glob(f"*/{CONFIG_NAME}"))
        name = nearest_name(path.name, runs)
        nearest = None if name is None else path.parent / name
    advice = "name a folder that `dingsdk train` wrote, such as runs/<name>"
    return f"{problem}; {f'did you mean {nearest}?' if nearest else advice}"


def check_text(folder: Path) -> None:
    """Raise RunFolderError if the path cannot be written to files of the run, which are UTF-8."""
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        raise RunFolderError(
            f"the path of the run folder {str(folder)!a} is not UTF-8, or this system's "
            "encoding is not; choose another path, or set PYTHONUTF8=1",
            path=str(folder),
        ) from error


def check_run_folder(folder: Path) -> None:
    """Check that a run can write to an existing folder, before anything else is done with it.

    Raises:
        RunFolderError: the folder belongs to another user, or what should be a file or folder of
            the run is something else, such as a link.
    """
    check_text(folder)
    check_owner(folder, folder.stat())
    # The folders first: no file in a linked folder is looked at.
    for names, is_right, wanted in (
        (_FOLDERS, stat.S_ISDIR, "a folder"),
        (_FILES, stat.S_ISREG, "a regular file"),
    ):
        for path in (folder / name for name in names):
            with contextlib.suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                if not is_right(mode):
                    refuse_kind(path, mode, wanted)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config of a run.

    Raises:
        ConfigError: it is missing, damaged, or no regular file.
    """
    path = folder / CONFIG_NAME
    try:
        with Folder(folder, create=False) as opened:
            content = opened.read(CONFIG_NAME, MAX_BYTES)
    except (DataMissingError, DataCorruptError, RunFolderError) as error:
        raise ConfigError(f"cannot read {path}: {error}", path=str(path)) from error
    found = parse_config(content, path)
    if find(found, LAST_KEY) is None:
        raise ConfigError(f"{path} is cut off: it has no {LAST_KEY}; restore it", path=str(path))
    return found


def write_config(folder: Path, cfg: Mapping[str, Any]) -> None:
    """Write the config of a run.

    Raises:
        RunFolderError, StorageFullError: it cannot be written; an existing file is not changed.
    """
    with Folder(folder, create=False) as opened:
        opened.write_atomic(CONFIG_NAME, [dump_config(cfg).encode()])


def discard_run(folder: Path) -> None:
    """Remove the files of a run that failed before it began, and its empty folders.

    Crash reports and files that are not of the run stay.
    """
    for name in (CONFIG_NAME, RUN_NAME, RESULT_NAME, STATUS_NAME, PROGRESS_NAME, SEEDS_NAME):
        (folder / name).unlink(missing_ok=True)
    below = [path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()]
    for path in [*sorted(below, reverse=True), folder]:
        with contextlib.suppress(OSError):  # not empty
            path.rmdir()


@contextmanager
def private_files() -> Iterator[None]:
    """In the block, create files with mode 0600 and folders with mode 0700, for any umask.

    The umask belongs to the process, so this also applies to files of other threads. The last of
    several blocks that run at the same time restores it.
    """
    global _private, _umask
    with _umask_lock:
        before = os.umask(0o077)
        _umask, _private = _umask if _private else before, _private + 1
    try:
        yield
    finally:
        with _umask_lock:
            _private -= 1
            if not _private:
                os.umask(_umask)


def find_checkpoints(run_dir: Path) -> dict[str, Path]:
    """Return the existing checkpoints of a run by name: ``latest`` and ``best``.

    ``latest`` is a small file that names the newest checkpoint; ``load_checkpoint`` reads it.
    """
    folder = run_dir / CHECKPOINT_FOLDER
    named = {"latest": folder / "latest.json", "best": folder / "ckpt_best.safetensors"}
    return {name: path for name, path in named.items() if path.is_file()}


def versions() -> dict[str, str]:
    """Return the versions of dingsdk, torch, gymnasium and Python."""
    packages = {name: version_of(name) or "" for name in ("torch", "gymnasium")}
    return {"dingsdk": __version__, **packages, "python": platform.python_version()}


def finite(value: Any) -> Any:
    """Return plain data with None in place of infinities and NaN, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
