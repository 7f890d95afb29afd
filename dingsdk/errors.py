"""The exceptions that dingsdk raises; all have the base class ``DingError``.

The message of an error says what was asked, what was found and what to do. The same facts are
in ``error.facts``, so that programs and tests need not parse the text.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar


class DingError(Exception):
    """Base class of all dingsdk errors.

    Args:
        message: Text that says what was asked, what was found and what to do.
        **facts: The same information as values. Read one as ``error.facts[name]``, or as
            ``error.name`` if the class has no attribute of that name.
    """

    is_user_mistake: bool = False
    """True if the user has to correct the command, the config or a file: the CLI then
    prints the message without a traceback and exits with code 2."""
    retryable: ClassVar[bool] = False
    """True if the same call may succeed later without any change."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts: Mapping[str, Any] = facts

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __str__(self) -> str:
        # Without this, errors that are also KeyErrors would show the repr of the message.
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        others = {name: vars(self)[name] for name in vars(self).keys() - {"message", "facts"}}
        return _rebuild, (type(self), self.message, dict(self.facts)), others

    @property
    def code(self) -> str:
        """Stable name of the error for messages between processes."""
        return type(self).__name__


def _rebuild(cls: type[DingError], message: str, facts: dict[str, Any]) -> DingError:
    return cls(message, **facts)


# configuration and plugins


class ConfigError(DingError, ValueError):
    """A config value that cannot work. Facts: ``path`` (dotted), if it is known."""

    is_user_mistake = True


class ConfigTypeError(ConfigError, TypeError):
    """A config value of the wrong type. Facts: ``path``, ``expected``, ``found``."""


class UnknownKeyError(ConfigError, KeyError):
    """Config keys that nothing reads.

    Facts: ``path``, ``key``, ``known``, ``nearest`` of the first one; ``unknown``, a list of the
    path of each and advice.
    """


class UnknownPluginError(ConfigError, KeyError):
    """A type key that nothing provides.

    Facts: ``kind``, ``asked``, ``known`` (sorted names), ``nearest``, ``install`` (the
    distribution that would provide it, or None).
    """


class UnknownEnvError(ConfigError, KeyError):
    """An env id that gymnasium does not know. Facts: ``env_id``, ``nearest``."""


class HookError(ConfigError, AssertionError):
    """A learner hook that does not fit the hook table. Facts: ``name``, ``found``."""


class DuplicateTypeError(DingError, AssertionError):
    """A type key registered twice. Facts: ``kind``, ``name``, ``owner``."""


class PluginLoadError(DingError, ImportError):
    """A plugin that could not be imported or registered. Facts: ``plugin``, ``kind``."""

    is_user_mistake = True


class PluginHookError(DingError, RuntimeError):
    """A plugin's hook raised, or returned an invalid value. Facts: ``plugin``, ``hook``."""


class UntrustedImportError(DingError, ImportError):
    """A received task names a module that the receiver's own config does not name.

    Facts: ``modules``, ``allowed``.
    """

    is_user_mistake = True


class PluginNotInstalledError(DingError, ImportError):
    """A name from a plugin that is not installed. Facts: ``name``, ``install``."""

    is_user_mistake = True


# data


class SchemaMismatchError(DingError, ValueError):
    """Columns, shapes or dtypes that do not match. Facts: ``key``, ``expected``, ``found``."""


class BatchIndexError(DingError, IndexError):
    """A row index outside a batch. Facts: ``index``, ``length``."""


class FrozenBatchError(DingError, ValueError):
    """A key of a row of a batch was set or removed. Facts: ``key``."""


class DataCorruptError(DingError, ValueError):
    """Damaged data, or data that is not in the expected format. Facts: ``where``."""


class DataVersionError(DataCorruptError):
    """Data of a format that this version does not read. Facts: ``found``, ``expected``."""


class DataMissingError(DingError, LookupError):
    """A payload that is not in the store. Facts: ``data_id``."""


class DatasetError(DingError, ValueError):
    """A data set that is missing, damaged, or does not fit.

    Facts: ``source`` (its file or name), ``column``, if one is to blame.
    """

    is_user_mistake = True


class ConflictError(DingError, ValueError):
    """Different content for an id that is already stored. Facts: ``data_id``."""


class StorageFullError(DingError, OSError):
    """A storage failure: disk full, over quota or broken, or no file descriptors left.

    Facts: ``path``, ``reason`` (an errno name, or ``low_space`` if the disk is almost full).
    """

    is_user_mistake = True
    retryable = True


class SamplesLostError(DingError, AssertionError):
    """Acknowledged samples are neither in the replay buffer nor evicted; this is a defect.

    Facts: ``collected``, ``acknowledged``, ``live``, ``evicted`` (by reason), or ``payload``.
    """


class ClosedError(DingError, RuntimeError):
    """A part was used after ``close()``, or closed during a waiting call. Facts: ``what``."""


class BufferClosedError(ClosedError):
    """A replay buffer that was used after ``close()``."""


class BufferFullError(DingError, RuntimeError):
    """A push that the buffer's limiter does not admit yet. Facts: ``rows``, ``waited_s``."""

    retryable = True


class InvalidPriorityError(DingError, ValueError):
    """Invalid priorities, or ids that do not fit them; the buffer is unchanged.

    Facts: ``key``, ``found``, ``index`` (of the row, if a single row is invalid).
    """


# environments and policies


class EnvError(DingError, RuntimeError):
    """An environment that keeps failing. Facts: ``env_id``, ``failures`` (in a row)."""


class PolicyOutputError(DingError, ValueError):
    """A policy output that no env or learner can use. Facts: ``key``, ``expected``, ``found``."""


class PolicyOutputTypeError(PolicyOutputError, TypeError):
    """A policy output of a type that nothing can use."""


class NonFiniteError(PolicyOutputError):
    """NaN or infinity where a finite number is needed. Facts: ``key``."""


class NotSetError(DingError, RuntimeError, AssertionError):
    """A worker was used before something that it needs was set. Facts: ``what``."""


# run folder and checkpoints


class RunFolderError(DingError, OSError):
    """A folder or file of the run that cannot be written. Facts: ``path``."""

    is_user_mistake = True


class RunDirLockedError(RunFolderError):
    """A folder that another run uses. Facts: ``path``."""


class CheckpointError(DingError):
    """A checkpoint that cannot be used. Facts: ``path``."""

    is_user_mistake = True


class CheckpointMissingError(CheckpointError, FileNotFoundError):
    """No checkpoint at that path."""


class CheckpointCorruptError(CheckpointError, ValueError):
    """A checkpoint that is truncated, altered, or from another program or network."""


class CheckpointVersionError(CheckpointError, ValueError):
    """A checkpoint of a format this version does not read. Facts: ``found``, ``expected``."""


class NotSavableError(CheckpointError, TypeError):
    """State that is not plain data. Facts: ``path``, ``found``."""


# workers and messages


class ProtocolError(DingError, ValueError):
    """A message that breaks the rules of the wire format. Facts: ``where``."""


class WorkerLostError(DingError, ConnectionError):
    """A worker that left or stopped answering.

    Facts: ``worker_id``, ``task_id``, ``replaced`` (another worker uses its id now).
    """

    retryable = True


class ServerLostError(DingError, ConnectionError):
    """A server that the run did not start does not answer in time. Facts: ``address``."""

    is_user_mistake = True
    retryable = True


class WorkerCrashedError(DingError, RuntimeError):
    """A worker process that cannot start, or died too often.

    Facts: ``worker_id``, ``exit_code`` (a negative one is the number of a signal), ``traceback``.
    """


class PoisonTaskError(DingError, RuntimeError):
    """A task that was given up because too many workers were lost with it.

    Facts: ``task_id``, ``attempts``, ``worker_id`` (of the last lost worker; ``__cause__`` says
    how it was lost).
    """


class StaleEpochError(WorkerLostError):
    """A message from an earlier run, epoch or incarnation. Facts: ``worker_id``, ``epoch``."""


class AuthError(DingError, PermissionError):
    """A secret is missing, unsafe, or not the secret of the other side. Facts: ``reason``."""

    is_user_mistake = True


class InsecureBindError(ConfigError):
    """Other hosts could reach the listener, and the user chose no secret. Facts: ``host``."""


class PortInUseError(DingError, OSError):
    """An address that a listener cannot use. Facts: ``host``, ``port``."""

    is_user_mistake = True


class TaskTimeoutError(DingError, TimeoutError):
    """A task that did not answer before its deadline. Facts: ``task``, ``timeout_s``."""

    retryable = True


class TaskFailedError(DingError, RuntimeError):
    """A task whose code raised an exception.

    Facts: ``worker_id``, ``task``, ``result``, ``traceback``.

    ``is_user_mistake`` is that of the exception that the worker raised.
    """

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.is_user_mistake = bool((facts.get("result") or {}).get("is_user_mistake"))


class TaskFail(DingError, RuntimeError):  # noqa: N818 - name kept for users of the reference
    """Raised by a worker's ``_process_task`` to fail the task and return a result.

    Args:
        result: The result that the master receives for the task.
        message: The reason, as text for people.
    """

    def __init__(self, result: Mapping[str, Any] | None = None, message: str = "") -> None:
        super().__init__(message or "task failed", result=dict(result or {}))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.facts["result"], self.message)


__all__ = sorted(
    name
    for name, value in globals().items()
    if isinstance(value, type) and issubclass(value, DingError)
)


def wrong_type(path: str, expected: str, found: object, advice: str = "") -> ConfigTypeError:
    """Return the error for a config value of the wrong type, at a dotted path."""
    kind = "null" if found is None else type(found).__name__
    is_huge = isinstance(found, int) and found.bit_length() > 10_000
    text = "a number of thousands of digits" if is_huge else repr_of(found)
    return ConfigTypeError(
        f"{path or 'config'}: expected {expected}, found {text} ({kind}){advice}",
        path=path,
        expected=expected,
        found=found,
    )


def nearest_name(asked: object, known: Iterable[str]) -> str | None:
    """Return the known name whose spelling is closest to ``asked``, or None if none is close."""
    close = difflib.get_close_matches(str(asked), list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def spelling(asked: object, known: Iterable[str]) -> tuple[str | None, str]:
    """Return the known name nearest to ``asked``, and the end of a sentence about the wrong name.

    That end is ``"; did you mean 'x'?"``, or ``"."`` if there is no near name.
    """
    nearest = nearest_name(asked, known)
    return nearest, f"; did you mean {nearest!r}?" if nearest else "."


def listing(names: Iterable[object]) -> str:
    """Return names as a sorted list for a message."""
    return ", ".join(sorted(map(str, names))) or "none"


def message_of(error: BaseException) -> str:
    """Return the text of an exception of any code; its ``__str__`` may raise, too."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"  # as in a traceback


def repr_of(value: object) -> str:
    """Return the start of the repr of a value of any code; its ``__repr__`` may raise, too."""
    try:
        return f"{value!r:.200}"
    except Exception:
        return "<repr() failed>"


def error_text(error: BaseException) -> str:
    """Return the class and the text of an exception, as a text that messages can carry."""
    return encodable(f"{type(error).__name__}: {message_of(error)}")


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an exception, as a text that messages can carry."""
    return encodable("".join(traceback.format_exception(error)))


def encodable(text: str) -> str:
    """Escape lone surrogates, as of file names that are not UTF-8: messages cannot carry them."""
    return text.encode(errors="backslashreplace").decode()


def raised_at(error: BaseException, module: str = "") -> str:
    """Return ``" (<file>, line <n>)"`` of the user's code that raised the error, or ``""``.

    For messages about an import or a hook that failed. Frames of the import machinery, of pluggy
    and of dingsdk itself are skipped. With ``module``, the result is the innermost frame in the
    package of that module, if there is one.
    """
    if isinstance(error, SyntaxError):
        return f" in {error.filename}"  # its text names only the last part of the path
    own, package = str(Path(__file__).parent), module.partition(".")[0]
    found = ""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        is_machinery = "importlib" in file or Path(file).parent.name == "pluggy"
        if is_machinery or file.startswith(("<", own)):
            continue
        found = found or f" ({file}, line {line})"
        if not package or str(frame.f_globals.get("__name__", "")).partition(".")[0] == package:
            return f" ({file}, line {line})"
    return found
