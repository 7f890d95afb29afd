"""Checking a config section against its type, and filling in what it leaves out."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from dingsdk.config.plain import copy_containers, deep_merge_dicts, join_key
from dingsdk.config.section import (
    LARGEST_INT,
    Field,
    Part,
    PartSection,
    Section,
    derive,
    documentation_of,
    fields_of,
    rebase,
)
from dingsdk.errors import ConfigError, ConfigTypeError, UnknownKeyError, nearest_name

SectionT = TypeVar("SectionT", bound=Section)

FindClass = Callable[[str, Mapping[str, Any], str], Any]
"""Returns the class of a kind that a section's ``type`` names: ``find(kind, section, path)``."""


def complete(
    section: type[Section],
    given: Mapping[str, Any],
    find: FindClass | None = None,
    path: str = "",
    bases: Mapping[str, type[Section]] | None = None,
) -> dict[str, Any]:
    """Return ``given`` with the defaults of a section below it, every key and value checked.

    A whole float is taken where an integer belongs, as in ``1e6``.

    Args:
        section: The type of the section.
        given: The user's values; never written to.
        find: Finds the classes of the parts inside; None leaves their sections unchecked.
        path: Dotted path of the section in the whole config, for messages.
        bases: What every section of a kind has, by kind; PartSection for others.

    Raises:
        UnknownKeyError: a key that nothing reads; names the nearest spelling, or the place
            where the same key is known.
        ConfigTypeError: a value of the wrong type or out of range, with its dotted path.
        ConfigError: a value is missing, or two contradict each other.
        UnknownPluginError: a type that nothing provides.
    """
    walk = _Walk(find, bases or {})
    full = walk.section(section, given, path)
    if walk.unknown:
        raise _unknown_key(*walk.unknown[0], full, path)
    return full


def read_section(section: type[SectionT], given: Mapping[str, Any], path: str = "") -> SectionT:
    """Return ``given`` as a typed section, defaults filled in; parts inside stay dicts.

    Raises:
        UnknownKeyError, ConfigTypeError, ConfigError: as ``complete``.
    """
    full = complete(section, {k: v for k, v in given.items() if k != "cfg_type"}, path=path)
    return msgspec.convert(full, section)


def config_type(cls: Any, base: type[Section] = PartSection) -> type[Section]:
    """Return the type of a part's section, that of a class without one included.

    Args:
        cls: The class of the part. One that is no ``Configurable`` may have a dict ``config`` or
            a ``default_config()``; with neither of them every key passes unchecked.
        base: What the section of such a class starts from.
    """
    name = getattr(cls, "__name__", "Part")
    declared = getattr(cls, "Config", None)
    if isinstance(declared, type) and issubclass(declared, Section):
        if issubclass(declared, base):
            return declared
        return rebase(declared, base, f"{name}Config")
    if callable(getattr(cls, "default_config", None)):
        defaults: Any = cls.default_config()
    else:
        defaults = getattr(cls, "config", None)
    if isinstance(defaults, Mapping):
        plain = {key: value for key, value in defaults.items() if key != "cfg_type"}
        return derive(base, plain, f"{name}Config")
    return type(f"{name}Config", (base,), {"is_open": True, "__module__": base.__module__})


class _Walk:
    """One pass over a config, collecting the keys that nothing reads.

    They are reported at the end: only then is every section known, and so the place where a
    misplaced key belongs.
    """

    def __init__(self, find: FindClass | None, bases: Mapping[str, type[Section]]) -> None:
        self._find = find
        self._bases = bases
        self.unknown: list[tuple[str, str, list[str]]] = []

    def section(self, section: type[Section], given: Any, path: str) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            known = ", ".join(fields_of(section)) or "none"
            raise _wrong(path, f"a section with the keys {known}", given)
        fields = fields_of(section)
        full: dict[str, Any] = {}
        for name, field in fields.items():
            where = f"{path}.{name}" if path else name
            if name not in given and field.required and field.section is None:
                text = documentation_of(section)[name]
                raise ConfigError(f"{where} is missing: {text}", path=where)
            if field.part is not None and field.part.many:
                full[name] = self._parts(field.part, given.get(name), where)
            elif field.part is not None:
                full[name] = self._part(field.part, given.get(name), field.default, where)
            elif field.section is not None:
                asked = given.get(name)
                full[name] = self.section(field.section, {} if asked is None else asked, where)
            elif name in given:
                full[name] = _checked(given[name], field, where)
            else:
                default = field.default
                is_nest = isinstance(default, dict | list)
                full[name] = copy_containers(default) if is_nest else default
        for key in given:
            if key in fields:
                continue
            if section.is_open:
                full[key] = copy_containers(given[key])
            else:
                self.unknown.append((str(key), path, sorted(fields)))
        try:
            msgspec.convert(full, section)
        except msgspec.ValidationError as error:
            raise _contradiction(str(error), fields, path) from error
        return full

    def _parts(self, part: Part, given: Any, path: str) -> dict[str, Any]:
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise _wrong(path, f"sections of {part.kind} by their type", given)
        return {
            str(key): self._part(part, section, {"type": key}, join_key(path, key))
            for key, section in given.items()
        }

    def _part(self, part: Part, given: Any, default: Any, path: str) -> dict[str, Any]:
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise _wrong(path, f"the section of one of the {part.kind}", given)
        default = default or {}
        type_key = given.get("type", default.get("type"))
        names = given.get("import_names", default.get("import_names", []))
        if self._find is None:
            below = default if type_key == default.get("type") else {}
            return deep_merge_dicts(below, {**given, "type": type_key})
        cls = self._find(part.kind, {"type": type_key, "import_names": names}, path)
        section = config_type(cls, self._bases.get(part.kind, PartSection))
        if type_key != default.get("type"):
            # These belong to another type; what both have is kept.
            known = fields_of(section)
            default = {key: value for key, value in default.items() if key in known}
        full = self.section(section, deep_merge_dicts(default, {**given, "type": type_key}), path)
        check = getattr(cls, "check_config", None)
        if check is not None:
            check(full, path)
        return full


def _checked(value: Any, field: Field, path: str) -> Any:
    """Return a value made to fit its field."""
    try:
        converted = msgspec.convert(_plain(value), field.type)
    except msgspec.ValidationError as error:
        try:
            converted = msgspec.convert(_plain(value, whole=True), field.type)
        except msgspec.ValidationError:
            raise _not_valid(path, error, field, value) from None
    if _has_nan(converted):
        raise _wrong(path, "a number", value)
    if isinstance(converted, int) and abs(converted) > LARGEST_INT:
        raise _wrong(path, f"a whole number up to {LARGEST_INT:.0e}", value)
    return converted


def _plain(value: Any, whole: bool = False) -> Any:
    """Return numpy's scalars and paths as builtins; with ``whole`` 1e6 as an integer."""
    if isinstance(value, list | tuple):
        return [_plain(item, whole) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if whole and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _has_nan(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_nan, value))
    return isinstance(value, float) and math.isnan(value)


def _not_valid(
    path: str, error: msgspec.ValidationError, field: Field, value: Any
) -> ConfigTypeError:
    what, _, inside = str(error).partition(" - at `$")
    if what.startswith("Invalid enum value"):
        expected = f"one of {', '.join(map(str, _choices(field.type)))}"
    else:
        kinds = what.removeprefix("Expected ").partition(", got")[0]
        expected = re.sub(r"`(.+?)`", _in_words, kinds)
        expected = expected[:1].lower() + expected[1:]
    return _wrong(path + inside.rstrip("`"), expected, value)


def _contradiction(message: str, fields: Iterable[str], path: str) -> ConfigError:
    """Return the error of a ``__post_init__``, whose text begins with the key at fault."""
    key = message.split(" ", 1)[0]
    if key in fields:
        return ConfigError(join_key(path, message), path=join_key(path, key))
    return ConfigError(f"{path or 'config'}: {message}", path=path)


def _choices(kind: Any) -> list[Any]:
    """Return the values of all Literals in an annotation."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [choice for inner in get_args(kind) for choice in _choices(inner)]


def _in_words(code: re.Match[str]) -> str:
    return " or ".join(_WORDS.get(name, name) for name in code[1].split(" | "))


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list",
    "object": "a section",
}


def _wrong(path: str, expected: str, found: Any) -> ConfigTypeError:
    kind = "null" if found is None else type(found).__name__
    text = f"{found!r:.200}" if not _is_huge(found) else "a number of thousands of digits"
    return ConfigTypeError(
        f"{path or 'config'}: expected {expected}, found {text} ({kind})",
        path=path,
        expected=expected,
        found=found,
    )


def _is_huge(value: Any) -> bool:
    return isinstance(value, int) and value.bit_length() > 10_000


def listing(keys: Iterable[str]) -> str:
    """Return names as a sorted list for a message."""
    return ", ".join(sorted(map(str, keys))) or "none"


def _unknown_key(
    key: str, path: str, known: list[str], full: Mapping[str, Any], root: str
) -> UnknownKeyError:
    where = join_key(path, key)
    nearest = nearest_name(key, known)
    elsewhere = None if nearest else _find_key(key, full, root)
    if nearest:
        advice = f"did you mean {nearest!r}? "
    elif elsewhere:
        advice = f"there is {elsewhere}. "
    else:
        advice = ""
    return UnknownKeyError(
        f"unknown config key {where}; {advice}Known here: {listing(known)}",
        path=where,
        key=key,
        known=known,
        nearest=nearest,
        elsewhere=elsewhere,
    )


def _find_key(key: str, section: Mapping[str, Any], path: str) -> str | None:
    if key in section:
        return join_key(path, key)
    deeper = (
        _find_key(key, value, join_key(path, name))
        for name, value in section.items()
        if isinstance(value, Mapping)
    )
    return next(filter(None, deeper), None)
