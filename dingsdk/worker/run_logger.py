"""The log files of a run: one text file and one tensorboard folder per component.

Logs never stop a run: if a file cannot be written (full disk), its log ends with one warning.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dingsdk.errors import ClosedError, RunFolderError
from dingsdk.runtime.files import ensure_dir, folder_error, open_private

MAX_TEXT_BYTES = 8 << 20
"""Size at which a text log continues in a new file; three older files are kept."""
_OLD_FILES = 3
"""Number of older text logs that are kept."""
_FLUSH_S = 30.0
"""Longest time that scalars wait to be written."""
FREE_LOGS = 200
"""How often a component may log its statistics before ``LOG_EVERY_S`` applies."""
LOG_EVERY_S = 10.0
"""Shortest time between two logs of the statistics of a component, after the first ones."""
_LINE_FORMAT = "[%(asctime)s][%(levelname)s] %(message)s"
_logger = logging.getLogger(__name__)


class RunLogger(logging.Logger):
    """The text log of one component; ``close()`` releases its file.

    It is not registered with :mod:`logging`, so two runs in one process never share handlers.
    The file gets every record of ``level`` and above. Handlers of the process get those that the
    level of the logger ``dingsdk`` (or of ``dingsdk.run``, or of the root) admits.

    Args:
        name: The component; handlers see the logger ``dingsdk.run.{name}``.
        file: Text file to append to, or None to write no file.
        level: Lowest level that is written to the file.

    Raises:
        RunFolderError: ``file`` cannot be opened for writing.
    """

    def __init__(self, name: str, file: Path | None, level: int = logging.INFO) -> None:
        super().__init__(f"dingsdk.run.{name}", level)
        self.parent: logging.Logger = logging.getLogger("dingsdk.run")
        self._file_handler: _TextFile | None = None
        if file is not None:
            try:
                self._file_handler = _TextFile(file)
            except OSError as error:
                raise folder_error("write", file, error) from error
            self.addHandler(self._file_handler)

    def callHandlers(self, record: logging.LogRecord) -> None:  # noqa: N802 - name of the base
        for handler in self.handlers:
            if record.levelno >= handler.level:
                handler.handle(record)
        # The base class would not ask for the level of the parent.
        if self.propagate and self.parent.isEnabledFor(record.levelno):
            self.parent.callHandlers(record)

    def get_tabulate_vars(self, variables: Mapping[str, Any]) -> str:
        """Return ``variables`` as a text table, one variable a line."""
        return format_table([("name", "value"), *((k, _cell(v)) for k, v in variables.items())])

    def get_tabulate_vars_hor(self, variables: Mapping[str, Any], columns: int = 5) -> str:
        """Return ``variables`` as text tables of ``columns`` names above their values."""
        cells = [(name, _cell(value)) for name, value in variables.items()]
        groups = (cells[start : start + columns] for start in range(0, len(cells), columns))
        return "\n".join(format_table(list(zip(*group, strict=True))) for group in groups)

    def close(self) -> None:
        """Close the text file; idempotent. Later records reach only the parent logger."""
        handler, self._file_handler = self._file_handler, None
        if handler is not None:
            self.removeHandler(handler)
            handler.close()


class _TextFile(logging.handlers.RotatingFileHandler):
    """Appends to a private file; logs one warning and stops if the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self._has_failed = False
        super().__init__(path, maxBytes=MAX_TEXT_BYTES, backupCount=_OLD_FILES, encoding="utf-8")
        self.setFormatter(logging.Formatter(_LINE_FORMAT))

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=open_private)

    def emit(self, record: logging.LogRecord) -> None:
        if not self._has_failed:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - name of the base
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._has_failed = True
            _warn_of_end(self.baseFilename, error)
        else:
            super().handleError(record)

    def close(self) -> None:
        # Closing tries once more to write the buffered text; then the text is lost.
        with contextlib.suppress(OSError):
            super().close()


def _warn_of_end(path: str, error: OSError) -> None:
    _logger.warning("the log %s ends here, the run continues: %s", path, error.strerror or error)


class TensorboardLogger:
    """A tensorboard writer that opens its event file at the first write.

    All callers that build a logger for the same folder get the same instance. The file is closed
    when the last of them has called ``close()``. Data added after that is dropped, because a
    component may still log while the run shuts down. Other methods of
    ``tensorboardX.SummaryWriter`` can be called by name. Scalars and histograms may be added
    from several threads; other methods are as thread-safe as in tensorboardX.
    """

    def __init__(self, logdir: Path) -> None:
        self.logdir = str(logdir)
        self._key = logdir
        self._users = 0
        self._writer: Any = None
        self._is_closed = False
        self._lock = threading.Lock()

    def add_scalar(self, tag: str, value: float, global_step: int | None = None) -> None:
        """Add one point to the curve ``tag``."""
        if (writer := self._open()) is not None:
            writer.add_scalar(tag, value, global_step)

    def add_histogram(self, tag: str, values: Any, global_step: int | None = None) -> None:
        """Add the distribution of ``values`` (any array-like of numbers)."""
        if (writer := self._open()) is not None:
            writer.add_histogram(tag, values, global_step)

    def flush(self) -> None:
        """Write all added data to disk."""
        if (writer := self._writer) is not None:
            writer.flush()

    def close(self) -> None:
        """End one caller's use of the log; the last call closes the event file."""
        with _writers_lock:
            self._users -= 1
            if self._users > 0:
                return
            if _writers.get(self._key) is self:
                del _writers[self._key]
        with self._lock:
            writer, self._writer = self._writer, None
            self._is_closed = True
        if writer is not None:
            writer.close()

    def _open(self) -> Any:
        """Return the writer, and open it if needed; None after the last ``close``."""
        if self._writer is not None:
            return self._writer
        with self._lock:
            if self._writer is None and not self._is_closed:
                self._writer = _open_writer(self.logdir)
            return self._writer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        writer = self._open()
        if writer is None:
            raise ClosedError(f"the tensorboard log {self.logdir} is closed", what=self.logdir)
        attribute: Callable[..., Any] = getattr(writer, name)
        return attribute


class _EventFile:
    """The event file of a tensorboard writer, written in the thread that adds data. Thread-safe.

    tensorboardX uses a separate thread to write the file. A full disk ends that thread, and then
    adding data to its queue blocks forever.
    """

    def __init__(self, folder: str) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import RecordWriter

        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._path = str(Path(folder) / name)
        self._lock = threading.Lock()
        self._has_failed = False
        self._flushed_at = time.monotonic()
        self._try(lambda: os.close(open_private(self._path, os.O_CREAT | os.O_WRONLY)))
        self._file: Any = RecordWriter(self._path)
        self.add_event(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def add_event(self, event: Any) -> None:
        self._try(lambda: self._file.write(event.SerializeToString()))
        if time.monotonic() - self._flushed_at > _FLUSH_S:
            self.flush()

    def flush(self) -> None:
        self._flushed_at = time.monotonic()
        self._try(lambda: self._file.flush())

    def close(self) -> None:
        self.flush()
        with self._lock, contextlib.suppress(OSError):
            self._file.close()

    def _try(self, write: Callable[[], None]) -> None:
        with self._lock:
            if self._has_failed:
                return
            try:
                write()
            except OSError as error:
                self._has_failed = True
                _warn_of_end(self._path, error)


def _open_writer(folder: str) -> Any:
    # Imported here because it is slow, and components that never write do not need it.
    from tensorboardX import SummaryWriter
    from tensorboardX.writer import FileWriter

    class EventWriter(FileWriter):  # type: ignore[misc]
        def __init__(self) -> None:
            self.event_writer = _EventFile(folder)
            self._default_metadata: dict[str, Any] = {}

    class Writer(SummaryWriter):  # type: ignore[misc]
        def _get_file_writer(self) -> Any:
            # Called for each point. The base class would make a writer with its own thread.
            if not self.all_writers:
                self.file_writer: Any = EventWriter()
                self.all_writers: Any = {folder: self.file_writer}
            return self.file_writer

    return Writer(folder)


_writers: dict[Path, TensorboardLogger] = {}
_writers_lock = threading.Lock()


def build_logger(
    path: str | Path,
    name: str | None = None,
    need_tb: bool = True,
    need_text: bool = True,
    level: int = logging.INFO,
) -> tuple[RunLogger, TensorboardLogger | None]:
    """Open the logs of one component below ``path``.

    Args:
        path: Folder, created if missing.
        name: Stem of the text file ``{name}_logger.txt`` and of the tensorboard folder
            ``{name}_tb_logger``; ``default`` if None.
        need_tb: Whether to return a tensorboard logger.
        need_text: Whether to write the text file. If False, the returned logger has no file.
        level: Lowest level that is logged.

    Returns:
        The text logger and the tensorboard logger (or None). Close both when done.

    Raises:
        RunFolderError: A folder or file cannot be created or written.
    """
    folder, stem = Path(path).absolute(), name or "default"
    if need_tb or need_text:
        ensure_dir(folder)
    logger = RunLogger(stem, folder / f"{stem}_logger.txt" if need_text else None, level)
    if not need_tb:
        return logger, None
    try:
        return logger, build_tb_logger(folder, stem)
    except RunFolderError:
        logger.close()
        raise


def build_tb_logger(path: str | Path, name: str) -> TensorboardLogger:
    """Open the tensorboard log ``{name}_tb_logger`` below ``path``, as ``build_logger`` does."""
    folder = Path(path).absolute() / f"{name}_tb_logger"
    ensure_dir(folder)
    with _writers_lock:
        writer = _writers.setdefault(folder, TensorboardLogger(folder))
        writer._users += 1
    return writer


class LogPace:
    """When a component logs again what it logs regularly: by time, however fast it trains.

    The first ``FREE_LOGS`` times are free, so that a short run has all points. Later ones are at
    least ``LOG_EVERY_S`` apart, so that the logs of a run of days do not fill a disk.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free = FREE_LOGS
        self._due_s = -math.inf

    def is_due(self) -> bool:
        """Whether to log now; if so, the next pause begins."""
        now = self._clock()
        if not self._free and now < self._due_s:
            return False
        self._free = max(0, self._free - 1)
        self._due_s = now + LOG_EVERY_S
        return True


def remove_logs(folder: Path) -> None:
    """Remove the logs of all components at and below ``folder``."""
    for pattern in ("*_logger.txt*", "*_tb_logger/events.out.tfevents.*"):
        for path in folder.rglob(pattern):
            path.unlink(missing_ok=True)


def write_statistics(
    writer: Any, instance_name: str, statistics: Mapping[str, float], train_iter: int, envstep: int
) -> None:
    """Add a point to each curve ``{instance}_iter/{name}`` and ``{instance}_step/{name}``.

    Args:
        writer: A tensorboard writer, or None to write nothing.
        instance_name: Name of the component, such as ``collector``.
        statistics: Values by name; ``total_envstep_count`` is an axis, so it has only one curve.
        train_iter: Train iterations so far.
        envstep: Env steps collected so far.
    """
    if writer is None:
        return
    for name, value in statistics.items():
        writer.add_scalar(f"{instance_name}_iter/{name}", value, train_iter)
        if name != "total_envstep_count":
            writer.add_scalar(f"{instance_name}_step/{name}", value, envstep)


def floats_of(settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the float arguments of a collect policy, such as ``eps``, which are logged."""
    return {key: value for key, value in settings.items() if isinstance(value, float)}


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return ``rows`` of text cells, the first being the heading, as an aligned table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(map(str.rjust, row, widths)) for row in rows]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
