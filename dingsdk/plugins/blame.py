"""Finds the part of a plugin in which an exception was raised, for messages."""

from __future__ import annotations

import traceback
from types import CodeType, FrameType

from dingsdk.errors import DingError
from dingsdk.plugins.inventory import added_entries
from dingsdk.plugins.manager import PluginManager, default_manager
from dingsdk.plugins.registry import Entry


def error_text(error: BaseException) -> str:
    """Return the class and the text of an exception, and the part of a plugin that raised it."""
    return encodable(f"{type(error).__name__}: {error}{raised_in(error)}")


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an exception as a text that messages can carry."""
    return encodable("".join(traceback.format_exception(error)))


def encodable(text: str) -> str:
    """Escape lone surrogates, as of file names that are not UTF-8: messages cannot carry them."""
    return text.encode(errors="backslashreplace").decode()


def raised_in(error: BaseException) -> str:
    """Return ``" (raised in type 'x' of samplers, from <plugin>)"``, or ``""`` for dingsdk."""
    part = part_of(error)
    return part and f" (raised in {part})"


def part_of(error: BaseException) -> str:
    """Return the part in whose code an error was raised: ``"type 'x' of samplers, from <plugin>"``.

    This is the part of the innermost frame that belongs to one; the code of dingsdk that creates a
    part, such as the constructor of its base class, belongs to that part. A transport runs the jobs
    of all other parts, so it is named only if no frame of dingsdk is inside its frames. Returns
    ``""`` for errors of dingsdk itself, and for a DingError that dingsdk raised: its text says what
    is wrong, and may be about a part that has already returned.
    """
    parts = [each for each in added_entries(default_manager()) if each[2].target]
    has_left_core = False
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == "dingsdk":
            if isinstance(error, DingError):
                return ""
            has_left_core = True
            if frame.f_code is PluginManager.create.__code__:
                made = frame.f_locals.get("component")
                for kind, key, entry in parts:
                    if entry.target is made:
                        return _described(kind, key, entry)
            continue
        for kind, key, entry in parts:
            is_of_job = has_left_core and kind == "transports"
            if _is_code_of(entry.target, frame) and not is_of_job:
                return _described(kind, key, entry)
    return ""


def registered_as(cls: type) -> str:
    """Return ``"type 'x' of learner_hooks, from <plugin>"`` for the class of a part.

    Returns ``""`` for a class of dingsdk itself, and for a class that is not registered.
    """
    for kind, key, entry in added_entries(default_manager()):
        if entry.target is cls:
            return _described(kind, key, entry)
    return ""


def _described(kind: str, key: str, entry: Entry) -> str:
    return f"type {key!r} of {kind}, from {entry.owner}"


def _is_code_of(target: object, frame: FrameType) -> bool:
    """Whether a frame runs a registered function, or a method of a registered class."""
    code: CodeType = frame.f_code
    if not isinstance(target, type):
        return getattr(target, "__code__", None) is code
    return bool(code.co_argcount) and isinstance(frame.f_locals.get(code.co_varnames[0]), target)
