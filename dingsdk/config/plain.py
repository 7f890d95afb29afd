"""Functions for configs as plain data: merge, copy, convert to and from EasyDict."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from easydict import EasyDict

from dingsdk.errors import ConfigError, ConfigTypeError

_PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})
_DICT_NAMES = frozenset(dir(EasyDict))

MAX_DEPTH = 50
"""Most levels of nesting in a config; usual configs have a tenth of that."""
MAX_VALUES = 100_000
"""Most values in a config; usual configs have a tenth of that."""
MAX_DIGITS = 100
"""Most digits of a whole number in a config."""

TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
TOO_LONG = f"an integer of more than {MAX_DIGITS} digits"
_TOO_LARGE = 10**MAX_DIGITS


def deep_merge_dicts(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ``a`` overridden by ``b``; dicts on both sides are merged key by key.

    The inputs are not changed, and the result shares no dict or list with them. ``None``
    counts as ``{}``.
    """
    merged: dict[str, Any] = copy_containers(a or {})
    for key, value in (b or {}).items():
        ours = merged.get(key)
        if isinstance(ours, Mapping) and isinstance(value, Mapping):
            merged[key] = deep_merge_dicts(ours, value)
        else:
            merged[key] = copy_containers(value)
    return merged


def to_easydict(cfg: Mapping[str, Any]) -> EasyDict:
    """Return ``cfg`` as a new EasyDict, with its nested sections; other values are shared.

    Raises:
        ConfigError: a key is not a string, or is the name of a dict method such as ``items``;
            EasyDict would lose or hide it. Or it is nested too deeply, or contains itself.
    """
    return _within_depth(_easy, cfg)


def to_plain(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``cfg`` in built-in types only; tuples become lists, paths strings.

    Raises:
        ConfigTypeError: a value has no plain form, or a key is not a string.
        ConfigError: it is nested too deeply, or contains itself.
    """
    plain: dict[str, Any] = _within_depth(plain_value, cfg)
    return plain


def _within_depth(convert: Callable[[Any, str], Any], cfg: Mapping[str, Any]) -> Any:
    try:
        return convert(cfg, "")
    except RecursionError as error:
        raise ConfigError(f"the config is {TOO_DEEP}; does it hold itself?", path="") from error


def check_bounds(cfg: object) -> None:
    """Raise ConfigError for a config that is too deep, too large, or contains itself.

    A text that no file or path can hold is refused, too.
    """
    rest: list[tuple[object, str, int]] = [(cfg, "", 1)]
    count = 0
    while rest:
        value, path, depth = rest.pop()
        # Long texts count more: a repeated one is written in full when the config is saved.
        count += 1 + (len(value) // 100 if isinstance(value, str) else 0)
        if count > MAX_VALUES:
            raise ConfigError(
                f"the config holds more than {MAX_VALUES:,} values; do its aliases repeat each "
                "other?",
                path=path,
            )
        texts = value if isinstance(value, Mapping) else (value,)
        if not all(map(_is_text, texts)):
            raise ConfigError(
                f"{path or 'the config'}: {ascii(value)[:80]} has half of a surrogate pair or a "
                "NUL character, which no file or path can hold; take it out",
                path=path,
            )
        if isinstance(value, int) and abs(value) >= _TOO_LARGE:
            raise ConfigError(f"{path}: {TOO_LONG}", path=path)
        if not isinstance(value, Mapping | list | tuple):
            continue
        if depth > MAX_DEPTH:
            raise ConfigError(f"{path[:60]}...: {TOO_DEEP}; does it hold itself?", path=path)
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        rest += ((item, join_key(path, key), depth + 1) for key, item in items)


def _is_text(value: object) -> bool:
    """Return whether a value, if it is a str, can be encoded, without NUL."""
    if not isinstance(value, str) or (value.isascii() and "\0" not in value):
        return True
    return not any(each == "\0" or "\ud800" <= each <= "\udfff" for each in value)


def join_key(path: str, key: object) -> str:
    """Return the dotted path of ``key`` below ``path``."""
    return f"{path}.{key}" if path else str(key)


def flatten(cfg: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values of a config by their dotted paths; an empty section counts as a value."""
    found: dict[str, Any] = {}
    for key, value in cfg.items():
        where = join_key(path, key)
        found |= flatten(value, where) if isinstance(value, Mapping) and value else {where: value}
    return found


def find(cfg: Any, path: str) -> Any:
    """Return the value at a dotted path, or None."""
    for key in path.split("."):
        cfg = cfg.get(key) if isinstance(cfg, Mapping) else None
    return cfg


def put(cfg: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path; do nothing if a part of the path is not a section."""
    section: Any = cfg
    *parents, last = path.split(".")
    for key in parents:
        if section.get(key) is None:
            section[key] = {}
        section = section[key]
        if not isinstance(section, dict):
            return  # the check of the config reports the value later
    section[last] = value


def copy_containers(value: Any) -> Any:
    """Copy dicts and lists; the other values are shared."""
    if isinstance(value, Mapping):
        return {key: copy_containers(item) for key, item in value.items()}
    if type(value) is list:
        return [copy_containers(item) for item in value]
    return value


def _checked_key(key: object, path: str) -> str:
    if isinstance(key, str):
        return str(key)
    raise ConfigTypeError(
        f"{join_key(path, repr(key))}: config keys are strings, found {type(key).__name__}; "
        "put quotes around it",
        path=join_key(path, key),
        expected="str",
        found=type(key).__name__,
    )


def _easy(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        easy = EasyDict()
        for key, item in value.items():
            if _checked_key(key, path) in _DICT_NAMES:
                raise ConfigError(
                    f"{join_key(path, key)}: {key!r} is the name of a dict method and would hide "
                    "it; rename the key",
                    path=join_key(path, key),
                )
            easy[key] = _easy(item, join_key(path, key))
        return easy
    if type(value) in (list, tuple):
        return type(value)(_easy(item, join_key(path, i)) for i, item in enumerate(value))
    return value


def plain_value(value: Any, path: str) -> Any:
    """Convert any value as ``to_plain`` does; ``path`` is its dotted path, for messages."""
    if type(value) in _PLAIN_TYPES:
        return value
    if isinstance(value, (dict, Mapping)):  # the check for a dict is ten times as fast
        return {
            key if type(key) is str else _checked_key(key, path): item
            if type(item) in _PLAIN_TYPES
            else plain_value(item, join_key(path, key))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain_value(item, join_key(path, i)) for i, item in enumerate(value)]
    if isinstance(value, str | PurePath):
        return str(value)
    # numpy scalars are registered with numbers, except its bool, which the check of ndim finds.
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return plain_value(value.item(), path)
    raise ConfigTypeError(
        f"{path} is a {type(value).__name__}; a config holds sections, lists, strings, "
        "numbers, booleans and null only",
        path=path,
        expected="plain data",
        found=type(value).__name__,
    )
