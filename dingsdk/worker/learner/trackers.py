"""The base of learner hooks that log elsewhere, and one that writes a table."""

from __future__ import annotations

import csv
import io
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

from dingsdk.config import Count, Section
from dingsdk.runtime.files import Folder, keep_lines, open_private
from dingsdk.worker.learner.hooks import LearnerHook, PeriodArgs
from dingsdk.worker.learner.monitor import as_number

if TYPE_CHECKING:
    from dingsdk.worker.learner.base import BaseLearner

_log = logging.getLogger(__name__)


class _Args(PeriodArgs, frozen=True, kw_only=True):
    freq: Count = 10


class Tracker(LearnerHook):
    """Passes the log variables of every ``freq``-th iteration to ``write``; on rank 0 only.

    If a tracker fails to write, it is disabled with one warning, and the training continues.
    """

    positions = ("after_iter",)
    Args: ClassVar[type[Section]] = _Args
    _has_failed = False

    def __call__(self, engine: BaseLearner) -> None:
        if engine.rank != 0 or self._has_failed or engine.train_iter % self.args.freq:
            return
        values = {name: as_number(name, value) for name, value in engine.log_vars.items()}
        try:
            self.write(engine, values)
        except Exception as error:
            # Each tracker raises different errors, and logs never stop a run.
            self._has_failed = True
            _log.warning("the learner hook %r ends here, the run continues: %s", self.name, error)

    @abstractmethod
    def write(self, engine: BaseLearner, values: Mapping[str, float]) -> None:
        """Write the values of iteration ``engine.train_iter``, or raise."""

    @staticmethod
    def log_folder(engine: BaseLearner) -> Path:
        """Return the folder for the learner's logs in the run folder."""
        return Path(engine.exp_name).absolute() / "log" / engine.instance_name


class CsvHook(Tracker):
    """Appends one line per iteration to ``metrics.csv`` in the learner's log folder.

    A variable that is first logged later gets a column at the end, which is empty in earlier
    lines; the file is rewritten for it. A run that continues from iteration n replaces the lines
    from n on.
    """

    _file: Any = None
    _has_begun = False
    _columns: Sequence[str] = ()

    def write(self, engine: BaseLearner, values: Mapping[str, float]) -> None:
        path, iteration = self.log_folder(engine) / "metrics.csv", engine.train_iter
        # A killed run has lines of iterations after its last save, which are trained again. Lines
        # before a learner that begins at 0 are of another run.
        if not self._has_begun and iteration:
            keep_lines(path, lambda line: _iteration_of(line) < iteration)
        self._has_begun = True
        row = {"iteration": iteration, "env_steps": engine.collector_envstep, **values}
        if self._file is None and path.is_file():
            with _opened(path) as file:
                self._columns = next(csv.reader(file), [])
        if new := [name for name in row if name not in self._columns]:
            self._add_columns(path, new)
        if self._file is None:
            self._file = open(path, "a", encoding="utf-8", newline="", opener=open_private)  # noqa: SIM115
        self._file.write(_csv([row], self._columns, header=False))
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add_columns(self, path: Path, names: list[str]) -> None:
        self.close()
        self._columns = [*self._columns, *names]
        rows: list[dict[str, Any]] = []
        if path.is_file():
            with _opened(path) as file:
                rows = list(csv.DictReader(file))
        with Folder(path.parent) as folder:
            folder.write_atomic(path.name, [_csv(rows, self._columns, header=True).encode()])


def _iteration_of(line: str) -> int:
    """Return the iteration of a line; -1 for the header."""
    first = line.partition(",")[0]
    return int(first) if first.isdecimal() else -1


def _opened(path: Path) -> IO[str]:
    return open(path, encoding="utf-8", newline="", opener=open_private)


def _csv(rows: list[dict[str, Any]], columns: Sequence[str], *, header: bool) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
