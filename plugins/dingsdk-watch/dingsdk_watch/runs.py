"""The state of a run, read from the files in its folder; no file is written or link followed."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dingsdk.errors import DataCorruptError, DataMissingError, RunFolderError
from dingsdk.pipeline import read_record
from dingsdk.runtime import Folder, guarded, open_private

STATUS, PROGRESS, CONFIG = "status.json", "progress.jsonl", "config.yaml"
MAX_BYTES = 64 << 20
"""Largest progress file that is read; of a larger one, nothing is shown."""
SILENT_S = 30.0
"""Age of a status beyond which its run was probably killed."""
POINTS = 400
"""Largest number of points of a curve that are sent to the page."""
TAIL_BYTES = 16 << 10
"""Number of bytes at the end of a log that the page shows."""
Scalar = bool | int | float | str | None


class Run:
    """The folder of one run. Safe for use from several threads.

    Args:
        path: The folder; the run may be under way, over, or not begun yet.
        clock: Seconds since 1970.

    Raises:
        RunFolderError: there is no such folder, or it holds no run.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path.absolute()
        self.name = self.path.name
        self._clock = clock
        try:
            is_folder, reason = self.path.is_dir(), "no such folder"
        except OSError as error:  # the name is too long
            is_folder, reason = False, str(error.strerror)
        if not is_folder:
            raise RunFolderError(f"there is no run folder {path}: {reason}", path=str(path))
        with self._open() as folder:
            if not {STATUS, CONFIG} & set(folder.names()):
                raise RunFolderError(
                    f"{path} is not a run folder: it has neither {CONFIG} nor {STATUS}",
                    path=str(path),
                )

    def _open(self) -> Folder:
        return Folder(self.path, create=False)

    def status(self) -> dict[str, Any]:
        """Return how the run is doing.

        Returns:
            ``name``; ``state``: ``not begun``, ``under way``, ``over``, ``silent`` (killed or
            suspended) or ``unreadable``; ``reason`` why it ended; ``age_s`` of the status;
            ``status``, the contents of the status file (empty before the run began);
            ``evaluations``; ``error``, why the file cannot be read.
        """
        status, error = self._read()
        reason = status.get("reason")
        age_s: float | None = None
        if not status:
            state = "unreadable" if error else "not begun"
        else:
            age_s = max(0.0, self._clock() - status["written_at"])
            state = "over" if reason else "under way" if age_s <= SILENT_S else "silent"
        return {
            "name": self.name,
            "state": state,
            "reason": reason,
            "age_s": age_s,
            "status": status,
            "evaluations": status.get("evaluations", []),
            "error": error,
        }

    def curves(self, points: int = POINTS) -> dict[str, list[Any]]:
        """Return the values of the progress file by name, at most ``points`` each, evenly spaced.

        Nested values are named ``exploration/eps``, ``policy_lag/mean`` and ``columns/<name>``;
        a value that is missing is None.
        """
        flat = [dict(_flat(row)) for row in _thinned(list(self._rows()), points)]
        names = dict.fromkeys(name for row in flat for name in row)
        return {name: [row.get(name) for row in flat] for name in names}

    def logs(self) -> list[str]:
        """Return the paths of the text logs, relative to the folder ``log``, newest first."""
        root = self.path / "log"
        if root.is_symlink():
            return []
        found: list[tuple[float, str]] = []
        for folder, below, names in os.walk(root):
            below[:] = [name for name in below if not name.endswith("tb_logger")]
            for name in names:
                path = Path(folder, name)
                facts = path.lstat() if name.endswith((".txt", ".log")) else None
                if facts is not None and stat.S_ISREG(facts.st_mode):
                    found.append((facts.st_mtime, path.relative_to(root).as_posix()))
        return [name for _, name in sorted(found, reverse=True)]

    def tail(self, name: str) -> str | None:
        """Return the end of a log, from the start of a line; None if it is not in ``logs``."""
        if name not in self.logs():
            return None
        path = self.path / "log" / name
        with guarded(self.path), open(path, "rb", opener=open_private) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            content = file.read(TAIL_BYTES)
        if size > TAIL_BYTES:
            content = content.partition(b"\n")[2]
        return content.decode("utf-8", "replace")

    def _read(self) -> tuple[dict[str, Any], str]:
        """Return the content of the status file, and why it cannot be read."""
        try:
            with self._open() as folder:
                return read_record(folder), ""
        except DataMissingError:
            return {}, ""
        except (DataCorruptError, RunFolderError) as error:
            return {}, str(error)

    def _rows(self) -> Iterator[dict[str, Any]]:
        """Yield the whole lines of the progress file; runs write a few thousand lines a day."""
        try:
            with self._open() as folder:
                content = folder.read(PROGRESS, MAX_BYTES)
        except (DataMissingError, DataCorruptError, RunFolderError):
            return
        for line in content.split(b"\n")[:-1]:
            try:
                row = msgspec.json.decode(line, type=dict[str, Scalar | dict[str, Scalar]])
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
                continue
            if isinstance(row.get("elapsed_s"), int | float):
                yield row


def open_runs(paths: Iterable[Path]) -> list[Run]:
    """Return the runs in these folders, each once; runs of the same name are named by their path.

    Raises:
        RunFolderError: as ``Run``.
    """
    runs = [Run(path) for path in dict.fromkeys(path.absolute() for path in paths)]
    counts = Counter(run.name for run in runs)
    for run in runs:
        if counts[run.name] > 1:
            run.name = str(run.path)
    return runs


def _thinned(rows: Sequence[dict[str, Any]], points: int) -> list[dict[str, Any]]:
    if len(rows) <= points:
        return list(rows)
    last = len(rows) - 1
    return [rows[round(index * last / (points - 1))] for index in range(points)]


def _flat(row: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Yield the numbers of a row by name."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            for inner, number in value.items():
                if isinstance(number, int | float):
                    yield f"{name}/{inner}", number
        elif value is None or isinstance(value, int | float):
            yield name, value
