"""Validates config sections by their types and adds defaults; classes built from a section."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec
from easydict import EasyDict

from dingsdk.config.plain import copy_containers, deep_merge_dicts, join_key, to_easydict
from dingsdk.config.schedule import Schedule, number_of
from dingsdk.config.section import (
    LARGEST_INT,
    Field,
    Part,
    PartSection,
    Section,
    defaults_of,
    derive,
    documentation_of,
    fields_of,
)
from dingsdk.errors import (
    ConfigError,
    ConfigTypeError,
    DingError,
    UnknownKeyError,
    listing,
    spelling,
    wrong_type,
)

SectionT = TypeVar("SectionT", bound=Section)

FindClass = Callable[[str, Any, Sequence[str], str], Any]
"""Returns the class of a part: ``find(kind, type_key, import_names, path)``."""


def complete(
    section: type[Section],
    given: Mapping[str, Any],
    find: FindClass | None = None,
    path: str = "",
    known: Mapping[str, Mapping[str, Any]] | None = None,
    found: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return ``given``, completed with the defaults of a section; check every key and value.

    A float without a fraction, such as ``1e6``, is accepted as an integer.

    Args:
        section: The type of the section.
        given: The user's values; not changed.
        find: Finds the classes of the parts in the section; None leaves their sections unchecked.
        path: Dotted path of the section in the whole config, for messages.
        known: Classes of parts by kind and type, for which ``find`` is not called.
        found: Gets the classes of all parts, by config path.

    Raises:
        UnknownKeyError: keys that nothing reads, all of them, whatever else is wrong. The message
            names the nearest spelling of each, or another section that has the key.
        ConfigTypeError: a value has the wrong type or is out of range; with its dotted path.
        ConfigError: a value is missing, or two values contradict each other.
        UnknownPluginError: a type that nothing provides.
    """
    return _Walk(find, known, found).complete(section, given, path)


def join_unknown(errors: Sequence[UnknownKeyError]) -> UnknownKeyError:
    """Return one error for several, with the facts of the first and ``unknown`` keys of all."""
    if len(errors) == 1:
        return errors[0]
    unknown: list[tuple[str, str]] = []
    for error in errors:
        notes = "; ".join(getattr(error, "__notes__", ()))
        own = [(error.facts.get("path", "unknown"), str(error))]
        for path, advice in error.facts.get("unknown", own):
            unknown.append((path, "; ".join(filter(None, (advice, notes)))))
    told: set[str] = set()
    parts = []
    for path, advice in unknown:
        # Several keys of a section have one list of known keys.
        parts.append(path if advice in told else f"{path} ({advice})")
        if advice.startswith("Known"):
            told.add(advice)
    text = f"{len(parts)} unknown config keys: {', '.join(parts)}"
    return UnknownKeyError(text, **{**errors[0].facts, "unknown": unknown})


def read_section(section: type[SectionT], given: Mapping[str, Any], path: str = "") -> SectionT:
    """Return ``given`` completed as by ``complete``, as a typed section; parts in it stay dicts."""
    walk = _Walk(None)
    walk.complete(section, given_keys(given, path), path)
    return cast(SectionT, walk.made)


def given_keys(given: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return a section as a dict without ``cfg_type``; raise ConfigTypeError if it is no dict."""
    if not isinstance(given, Mapping):
        raise wrong_type(path, "a dict of settings", given)
    return {key: value for key, value in given.items() if key != "cfg_type"}


def config_type(cls: Any, base: type[Section] = PartSection) -> type[Section]:
    """Return the type of the section of a part; make one if the class declares none.

    Args:
        cls: The class of the part. A class that is not a ``Configurable`` may have a dict
            ``config`` or a ``default_config()``. With neither, every key is accepted unchecked.
        base: Base of the section that is made for such a class, and for a class whose ``Config``
            does not extend it.
    """
    name = f"{getattr(cls, '__name__', 'Part')}Config"
    declared = getattr(cls, "Config", None)
    if isinstance(cls, type) and issubclass(cls, Configurable):
        _check_declared(cls)
    if isinstance(declared, type) and issubclass(declared, base):
        return declared
    if callable(getattr(cls, "default_config", None)):
        defaults: Any = cls.default_config()
    else:
        defaults = getattr(cls, "config", None)
    if isinstance(defaults, Mapping):
        plain = {key: value for key, value in defaults.items() if key != "cfg_type"}
        return derive(base, plain, name)
    return type(name, (base,), {"is_open": True, "__module__": base.__module__})


class Configurable:
    """Mixin for classes that are built from a config section.

    A class declares the type of its section as ``Config``, or gives other defaults and more keys
    in a plain dict ``config``. Keys that it does not give come from its bases. Every class has
    both: ``config`` is made from ``Config``, or ``Config`` from ``config``.
    """

    Config: ClassVar[type[Section]] = PartSection
    config: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _check_declared(cls)
        stated = cls.__dict__.get("config")
        if stated is not None:
            plain = {key: value for key, value in stated.items() if key != "cfg_type"}
            cls.Config = derive(cls.Config, plain, f"{cls.__name__}Config")
        cls.config = defaults_of(cls.Config)

    @classmethod
    def default_config(cls) -> EasyDict:
        """Return a deep copy of the defaults, plus ``cfg_type`` (``"<ClassName>Dict"``)."""
        return to_easydict({**defaults_of(cls.Config), "cfg_type": f"{cls.__name__}Dict"})

    @classmethod
    def read(cls, cfg: Mapping[str, Any], path: str = "") -> Any:
        """Return ``cfg``, completed with the defaults, as a ``Config``; see ``read_section``."""
        return read_section(cls.Config, cfg, path)


def _check_declared(cls: type[Configurable]) -> None:
    declared: Any = cls.Config
    if not (isinstance(declared, type) and issubclass(declared, Section)):
        place = f"{cls.__module__}.{cls.__qualname__}"
        raise ConfigTypeError(
            f"{place}.Config is {declared!r:.80}; it must be a subclass of the base's Config (a "
            "PartSection), as in class Config(Base.Config, frozen=True, kw_only=True). A dict of "
            "defaults is called config",
            path=place,
            expected="a subclass of PartSection",
            found=type(declared).__name__,
        )


class _Walk:
    """One pass over a config, which collects its errors.

    The errors are raised at the end, when all sections are known: the message can then name all
    unknown keys, and the section that a misplaced key belongs to.

    Attributes:
        unknown: Key, path of its section and known keys, for each key that nothing reads.
        refused: Errors of parts that check keys themselves.
        errors: All other errors.
        made: The newest section that was checked, as its type.
    """

    def __init__(
        self,
        find: FindClass | None,
        known: Mapping[str, Mapping[str, Any]] | None = None,
        found: dict[str, Any] | None = None,
    ) -> None:
        self._find = find
        self._known = {} if known is None else known
        self._found = {} if found is None else found
        self.unknown: list[tuple[str, str, list[str]]] = []
        self.refused: list[UnknownKeyError] = []
        self.errors: list[DingError] = []
        self.made: Section

    def complete(self, section: type[Section], given: Any, path: str) -> dict[str, Any]:
        """Return a completed section, or raise the errors that were found."""
        full = self.section(section, given, path)
        unknown = [_unknown_key(*each, full, path) for each in self.unknown] + self.refused
        if unknown:
            raise join_unknown(unknown)
        if self.errors:
            raise self.errors[0]
        return full

    def _count(self) -> int:
        return len(self.unknown) + len(self.refused) + len(self.errors)

    def section(
        self, section: type[Section], given: Any, path: str, *, is_inner: bool = False
    ) -> dict[str, Any]:
        """Return a completed section; one inside of a typed section is checked with that one."""
        fields = fields_of(section)
        given = _mapping(given, path, f"a section with the keys {', '.join(fields) or 'none'}")
        full: dict[str, Any] = {}
        before, is_wrong = self._count(), False
        for key in given:
            if key not in fields and not section.is_open:
                self.unknown.append((str(key), path, sorted(fields)))
        for name, field in fields.items():
            is_plain = field.section is None and field.part is None
            if is_wrong and not path and not is_plain:
                break  # for a wrong name or seed of a run, torch and plugins are not imported
            try:
                where = f"{path}.{name}" if path else name
                full[name] = self._value(section, field, given, where)
            except UnknownKeyError as error:
                self.refused.append(error)
            except DingError as error:
                self.errors.append(error)
                is_wrong |= is_plain
        if section.is_open:
            full |= {key: copy_containers(given[key]) for key in given if key not in fields}
        if is_inner or self._count() > before:
            return full
        try:
            self.made = msgspec.convert(full, section)
        except msgspec.ValidationError as error:
            raise _contradiction(str(error), section, path) from error
        return full

    def _value(
        self, section: type[Section], field: Field, given: Mapping[str, Any], path: str
    ) -> Any:
        """Return the completed value of a field of a section."""
        value = given.get(field.name)
        if field.section is not None:
            return self.section(field.section, value, path, is_inner=True)
        if field.name not in given and field.required:
            text = documentation_of(section)[field.name] or f"Set it, as in --set {path}=VALUE."
            text = text.replace("``", "`")
            raise ConfigError(f"{path} is missing. {text}", path=path)
        if field.part is not None:
            if field.part.many:
                return self._parts(field.part, value, path)
            return self._part(field.part, value, field.default, path)
        if field.name in given:
            if isinstance(value, Mapping) and number_of(field.type) is not None:
                return self._schedule(section, field, value, path)
            return _checked(value, field, path, section)
        return field.default if field.make_default is None else field.make_default()

    def _schedule(
        self, section: type[Section], field: Field, given: Mapping[str, Any], path: str
    ) -> dict[str, Any]:
        """Return the completed schedule of a number, all of whose values are in its range."""
        before = self._count()
        full = self.section(Schedule, given, path)
        if self._count() == before:
            for key, value in cast(Schedule, self.made).extremes.items():
                _checked(value, field, f"{path}.{key}", section)
        return full

    def _parts(self, part: Part, given: Any, path: str) -> dict[str, Any]:
        sections = _mapping(given, path, f"sections of {part.kind} by their type")
        return {
            str(key): self._part(part, section, {"type": key}, join_key(path, key))
            for key, section in sections.items()
        }

    def _part(self, part: Part, given: Any, default: Any, path: str) -> dict[str, Any]:
        given = _mapping(given, path, f"the section of one of the {part.kind}")
        default = default or {}
        type_key = given.get("type", default.get("type"))
        if self._find is None:
            below = default if type_key == default.get("type") else {}
            same = {k: v for k, v in below.items() if not _is_of_another_type(given.get(k), v)}
            return deep_merge_dicts(same, {**given, "type": type_key})
        names = given.get("import_names", default.get("import_names")) or ()
        is_plain = isinstance(type_key, str) and not names
        cls = self._known.get(part.kind, {}).get(type_key) if is_plain else None
        if cls is None:
            cls = self._find(part.kind, type_key, names, path)
        self._found[path] = cls
        section = config_type(cls, part.base)
        if type_key != default.get("type"):
            # The defaults are of another type: keep those that both types have, except parts.
            kept = {key for key, field in fields_of(section).items() if field.part is None}
            default = {key: value for key, value in default.items() if key in kept}
        given = {**given, "type": type_key}
        if default.keys() != {"type"}:
            given = deep_merge_dicts(default, given)
        before = self._count()
        full = self.section(section, given, path)
        check = getattr(cls, "check_config", None)
        if check is not None and self._count() == before:
            check(full, path)
        return full


def _is_of_another_type(given: Any, default: Any) -> bool:
    """Whether a nested part was given, with a type that is not the type of the default."""
    if not (isinstance(given, Mapping) and isinstance(default, Mapping)):
        return False
    return bool(given.get("type", default.get("type")) != default.get("type"))


def _mapping(given: Any, path: str, expected: str) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise _wrong(path, expected, given)
    return given


def _checked(value: Any, field: Field, path: str, section: type[Section]) -> Any:
    """Return a value converted to the type of its field in a section."""
    kind = field.type
    # The error of a wrong number names no schedule; most fields cannot be one, and are not asked.
    if get_origin(kind) in (Union, UnionType):
        kind = number_of(kind) or kind
    try:
        converted = msgspec.convert(_plain(value), kind)
    except msgspec.ValidationError as error:
        try:
            converted = msgspec.convert(_plain(value, whole=True), kind)
        except msgspec.ValidationError:
            if len(choices := _choices(field.type)) == 1:
                raise _only(
                    path, choices[0], value, documentation_of(section)[field.name]
                ) from None
            wrong = _not_valid(path, error, field, value)
            if isinstance(value, Mapping) and not _SCHEDULE_KEYS.isdisjoint(value):
                fields = fields_of(section).values()
                able = [each.name for each in fields if number_of(each.type) is not None]
                raise wrong_type(
                    path,
                    wrong.facts["expected"],
                    value,
                    "; it cannot be a schedule, as it is not read in each training. Numbers of "
                    f"this section that can: {listing(able)}",
                ) from None
            raise wrong from None
    if _has_nan(converted):
        raise _wrong(path, "a number", value)
    if isinstance(converted, int) and abs(converted) > LARGEST_INT:
        raise _wrong(path, f"a whole number up to {LARGEST_INT:.0e}", value)
    return converted


def _plain(value: Any, whole: bool = False) -> Any:
    """Convert numpy scalars and paths to built-in types; with ``whole``, 1e6 to an integer."""
    if isinstance(value, list | tuple):
        return [_plain(item, whole) for item in value]
    if isinstance(value, os.PathLike):
        with contextlib.suppress(Exception):  # of any code, as `__fspath__` is
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
        known = [json.dumps(each).strip('"') for each in _choices(field.type)]
        expected = f"one of {', '.join(known)}" if len(known) > 1 else known[0]
        if isinstance(value, str):
            return wrong_type(path, expected, value, spelling(value, known)[1].removesuffix("."))
    else:
        kinds, is_regex, _ = (
            what.removeprefix("Expected ").partition(", got")[0].partition(" matching regex ")
        )
        expected = re.sub(r"`(.+?)`", _in_words, kinds)
        expected = expected[:1].lower() + expected[1:]
        if is_regex:
            words = (getattr(mark, "description", None) for mark in get_args(field.type)[1:])
            expected += f" of {next(filter(None, words), 'another form')}"
    return _wrong(path + inside.rstrip("`"), expected, value)


def _only(path: str, choice: Any, value: Any, text: str) -> ConfigTypeError:
    """Return the error for a key with one possible value; its documentation says why."""
    word = str(choice).lower() if isinstance(choice, bool) else str(choice)
    text = text.replace("``", "`")
    return wrong_type(path, word, value, f". {text}" if text else "; leave it out")


def _contradiction(message: str, section: type[Section], path: str) -> ConfigError:
    """Return the error of a ``__post_init__`` in a section, whose text begins with the wrong key.

    A value that its type refuses is a default: given values were checked before.
    """
    text, _, inside = message.partition(" - at `$.")
    found: type[Section] | None = section
    for name in filter(None, inside.rstrip("`").split(".")):
        path = join_key(path, name)
        field = fields_of(found).get(name) if found is not None else None
        found = None if field is None else field.section
    key = text.split(" ", 1)[0]
    if found is not None and key in fields_of(found):
        return ConfigError(join_key(path, text), path=join_key(path, key))
    return ConfigError(f"{path or 'config'}: {text}", path=path)


def _choices(kind: Any) -> list[Any]:
    """Return the values of all Literals in an annotation."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [choice for inner in get_args(kind) for choice in _choices(inner)]


_SCHEDULE_KEYS = frozenset({"start", "end", "env_steps"})
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list",
    "object": "a section",
}


def _in_words(code: re.Match[str]) -> str:
    names = code[1].split(" | ")
    if "float" in names:  # a whole number is a number
        names = [name for name in names if name != "int"]
    return " or ".join(_WORDS.get(name, name) for name in names)


def _wrong(path: str, expected: str, found: Any) -> ConfigTypeError:
    return wrong_type(path, expected, found, _advice(expected, found))


def _advice(expected: str, found: Any) -> str:
    if callable(found):
        return "; give classes and functions to train() as env= or policy="
    if "text" in expected and isinstance(found, (int, float)) and abs(found) < 1e15:
        return f'; in quotes it is text: "{json.dumps(found)}"'
    if "number" in expected and isinstance(found, str) and found.lower().lstrip("+-") == "inf":
        return "; YAML spells infinity .inf"
    return ""


def _unknown_key(
    key: str, path: str, known: list[str], full: Mapping[str, Any], root: str
) -> UnknownKeyError:
    where = join_key(path, key)
    nearest, hint = spelling(key, known)
    elsewhere = None if nearest else _find_key(key, full, root)
    known_here = f"Known here: {listing(known)}"
    if elsewhere:
        hint = f"; there is {elsewhere}."
    return UnknownKeyError(
        f"unknown config key {where}{hint} {known_here}",
        path=where,
        key=key,
        known=known,
        nearest=nearest,
        elsewhere=elsewhere,
        unknown=[(where, hint.strip("; .") or known_here)],
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
