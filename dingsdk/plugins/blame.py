"""Finds the part of a plugin in which an exception was raised, for messages."""

from __future__ import annotations

import traceback
from types import CodeType, FrameType

from dingsdk.errors import DingError
from dingsdk.plugins.inventory import added_entries
from dingsdk.plugins.manager import PluginManager, default_manager


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

    The innermost frame that runs a part's code, or that creates a part, decides. A transport is
    never named, because it runs the jobs of all other parts. Returns ``""`` for errors of dingsdk
    itself, and for a DingError that dingsdk raised: its text says what is wrong, and may be about a
    part that has already returned.
    """
    parts = [each for each in added_entries(default_manager()) if each[0] != "transports"]
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] != "dingsdk":
            found = [each for each in parts if _is_code_of(each[2].target, frame)]
        elif isinstance(error, DingError):
            return ""
        else:
            is_creating = frame.f_code is PluginManager.create.__code__
            made = frame.f_locals.get("component") if is_creating else None
            found = [each for each in parts if made is not None and each[2].target is made]
        for kind, key, entry in found:
            return f"type {key!r} of {kind}, from {entry.owner}"
    return ""


def _is_code_of(target: object, frame: FrameType) -> bool:
    """Whether a frame runs a registered function, or a method of a registered class."""
    code: CodeType = frame.f_code
    if not isinstance(target, type):
        return getattr(target, "__code__", None) is code
    return bool(code.co_argcount) and isinstance(frame.f_locals.get(code.co_varnames[0]), target)
