"""Which part of a plugin an exception was raised in, for messages."""

from __future__ import annotations

import traceback
from types import CodeType, FrameType

from dingsdk.errors import DingError
from dingsdk.plugins.inventory import added_entries
from dingsdk.plugins.manager import default_manager


def error_text(error: BaseException) -> str:
    """Return the class and the text of an exception, and what part of a plugin raised it."""
    return f"{type(error).__name__}: {error}{raised_in(error)}"


def raised_in(error: BaseException) -> str:
    """Return ``" (raised in type 'x' of samplers, from <plugin>)"``, ``""`` for dingsdk itself."""
    part = part_of(error)
    return part and f" (raised in {part})"


def part_of(error: BaseException) -> str:
    """Return ``"type 'x' of samplers, from <plugin>"``, the part in whose code an error was raised.

    It is the innermost part whose own code the error passed. A transport runs the jobs of all
    others, so it is named only where nothing of dingsdk lies between. A DingError that dingsdk
    raised says itself what is wrong, and may be about a part that has returned. ``""`` for these,
    and for errors of dingsdk itself.
    """
    parts = [each for each in added_entries(default_manager()) if each[2].target]
    has_left_core = False
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "dingsdk":
            if isinstance(error, DingError):
                return ""
            has_left_core = True
            continue
        for kind, key, entry in parts:
            if _is_code_of(entry.target, frame) and not (has_left_core and kind == "transports"):
                return f"type {key!r} of {kind}, from {entry.owner}"
    return ""


def _is_code_of(target: object, frame: FrameType) -> bool:
    """Whether a frame runs a function that was registered, or a method of such a class."""
    code: CodeType = frame.f_code
    if not isinstance(target, type):
        return getattr(target, "__code__", None) is code
    return bool(code.co_argcount) and isinstance(frame.f_locals.get(code.co_varnames[0]), target)
