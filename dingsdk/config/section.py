"""Config sections as types: fields, ranges, defaults and documentation in one place.

A part declares its section as a nested class::

    class Config(PartSection):
        '''
        Attributes:
            queue_size: Reports that may wait to be sent.
        '''

        queue_size: Count = 8

A field whose value is the section of another part is annotated with the registry of that part::

    remover: Annotated[dict[str, Any], Part("removers")] = preset("fifo")
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, ClassVar, cast, get_args, get_origin

import msgspec
from msgspec import Meta

from dingsdk.config.plain import copy_containers, deep_merge_dicts

LARGEST_INT = 10**15
"""Largest whole number in a config; larger ones would overflow in numpy."""

Count = Annotated[int, Meta(ge=1, le=LARGEST_INT)]
SmallCount = Annotated[int, Meta(ge=1, le=100_000)]
"""A count of things that are in memory all at once."""
Whole = Annotated[int, Meta(ge=0, le=LARGEST_INT)]
Positive = Annotated[float, Meta(gt=0)]
Finite = Annotated[float, Meta(gt=0, le=LARGEST_INT)]
"""A number above 0 that is not infinite."""
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A number in a message or a file, for which ``LARGEST_INT`` may be too small."""
Seed = Number


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all config sections; instances are immutable.

    To check fields against each other, write a ``__post_init__`` that raises ValueError. The text
    of the error must begin with the name of the wrong field.
    """

    is_open: ClassVar[bool] = False
    """Whether unknown keys are accepted without a check."""


class PartSection(Section, frozen=True, kw_only=True):
    """Base of the sections of parts, which a config selects by type key.

    Attributes:
        type: Type key of the part.
        import_names: Modules to import first; they may register the type.
    """

    type: str = ""
    import_names: list[str] = []


@dataclass(frozen=True, slots=True)
class Part:
    """Marks a field that holds the section of another part.

    Attributes:
        kind: The registry in which the section's ``type`` is looked up.
        many: Whether the field holds sections of several parts, each under its type key.
        base: Base class of the sections of such parts.
    """

    kind: str
    many: bool = False
    base: type[Section] = PartSection


def preset(type_key: str, **options: Any) -> Any:
    """Return the default for a part's field: a type, and options in place of its defaults."""
    return msgspec.field(default_factory=_copier({"type": type_key, **options}))


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a section.

    Attributes:
        name: The config key.
        type: Its annotation.
        part: Set if the field holds the section of another part.
        section: The type of a nested section, if the field holds one.
        default: The default as plain data; None if there is none.
        make_default: Returns a new default; set if the default is a container.
    """

    name: str
    type: Any
    part: Part | None
    section: type[Section] | None
    required: bool
    default: Any
    make_default: Callable[[], Any] | None


@cache
def fields_of(section: type[Section]) -> Mapping[str, Field]:
    """Return the fields of a section by name, in the order of the config file."""
    found = {}
    for info in msgspec.structs.fields(section):
        marks = get_args(info.type)[1:] if get_origin(info.type) is Annotated else ()
        nested = info.type if _is_section(info.type) else None
        default, make = info.default, info.default_factory
        if nested is not None:
            default = defaults_of(nested)
        elif make is not msgspec.NODEFAULT:
            default = make()
        found[info.name] = Field(
            name=info.name,
            type=info.type,
            part=next((mark for mark in marks if isinstance(mark, Part)), None),
            section=nested,
            required=info.required,
            default=None if default is msgspec.NODEFAULT else default,
            make_default=None if make is msgspec.NODEFAULT else make,
        )
    return found


def defaults_of(section: type[Section]) -> dict[str, Any]:
    """Return the defaults of a section as plain data; required fields are None."""
    return {name: copy_containers(field.default) for name, field in fields_of(section).items()}


def derive(base: type[Section], overrides: Mapping[str, Any], name: str) -> type[Section]:
    """Return a section like ``base`` with other defaults, and with more keys.

    Args:
        base: The section to start from.
        overrides: Values by key. The value of a key of ``base`` is its new default. A new key gets
            the type of its value; if that is None, a function or an object, it accepts anything.
            A subclass of ``Section`` becomes the type of its key.
        name: Name of the new class.
    """
    known = fields_of(base)
    added: list[tuple[str, Any, Any]] = []
    for key, value in overrides.items():
        field = known.get(key)
        if _is_section(value):
            kind = value
        elif field is None or (field.type == dict[str, Any] and value):
            kind = _type_of_value(value, f"{name}_{key}")
        elif field.section is not None and isinstance(value, Mapping):
            kind = derive(field.section, value, f"{name}_{key}")
        else:
            kind = field.type
        if field is not None and field.part is not None:
            value = _merged_part(field.default, value)
        added.append((key, kind, value))
    return _extend(base, added, name)


def _merged_part(default: Any, value: Any) -> Any:
    """Return the default of a part, overridden by the value of a key in a plain dict."""
    value, default = {} if value is None else value, default or {}
    if isinstance(value, Mapping) and value.get("type", default.get("type")) == default.get("type"):
        return deep_merge_dicts(default, value)
    return value


def _extend(base: type[Section], added: Iterable[tuple[str, Any, Any]], name: str) -> type[Section]:
    """Return a subclass of ``base`` with fields of the given names, types and defaults."""
    fields = [
        (key, kind, msgspec.field(default_factory=kind if _is_section(kind) else _copier(value)))
        for key, kind, value in added
    ]
    extended = msgspec.defstruct(
        name, fields, bases=(base,), module=base.__module__, frozen=True, kw_only=True
    )
    return cast(type[Section], extended)


def documentation_of(section: type[Section]) -> dict[str, str]:
    """Return the text of each field from the ``Attributes`` of a section's docstrings."""
    found: dict[str, str] = {}
    for cls in reversed(section.__mro__):
        _, _, attributes = (inspect.getdoc(cls) or "").partition("Attributes:\n")
        # getdoc returns the docstring of a base if a class has none: the result is the same.
        for entry in re.split(r"\n(?=    \w)", attributes):
            name, colon, text = entry.strip().partition(":")
            if colon:
                found[name] = " ".join(text.split())
    return {name: found.get(name, "") for name in fields_of(section)}


def _is_section(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, Section)


def _copier(value: Any) -> Any:
    return partial(copy_containers, value)


def _type_of_value(value: Any, name: str) -> Any:
    """Return the type of a field whose default is ``value``."""
    if isinstance(value, Mapping):
        return derive(Section, value, name) if value else dict[str, Any]
    if isinstance(value, list | tuple):
        kinds = {type(item) for item in value}
        return list[kinds.pop()] if len(kinds) == 1 and kinds <= set(_PLAIN) else list[Any]  # type: ignore[misc]
    return next((kind for kind in _PLAIN if isinstance(value, kind)), Any)


_PLAIN = (bool, int, float, str)
