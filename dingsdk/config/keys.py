"""Refusing keys that nothing reads, with the nearest spelling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dingsdk.config.plain import join_key
from dingsdk.errors import ConfigTypeError, UnknownKeyError, nearest_name


def check_known_keys(
    user: Mapping[str, Any],
    known: Mapping[str, Any],
    path: str = "",
    open_paths: Iterable[str] = (),
) -> None:
    """Refuse keys of ``user`` that ``known`` does not have.

    Args:
        user: What the user wrote.
        known: A config with every key there is, as the merged defaults have it.
        path: Dotted path of ``user`` in the whole config, for messages.
        open_paths: Dotted paths of free-form sections, whose content is not checked.

    Raises:
        UnknownKeyError: a key that nothing reads; names the nearest spelling, or the place
            where the same key is known.
        ConfigTypeError: a plain value where a section belongs.
    """
    free = frozenset(open_paths)

    def check(user: Mapping[str, Any], section: Mapping[str, Any], path: str) -> None:
        for key, value in user.items():
            where = join_key(path, key)
            if key not in section:
                raise _unknown_key(str(key), where, section, known)
            default = section[key]
            if not isinstance(default, Mapping) or where in free or value is None:
                continue
            if not isinstance(value, Mapping):
                raise ConfigTypeError(
                    f"{where} is a section with the keys {listing(default)}, "
                    f"but was given {value!r}",
                    path=where,
                    expected="section",
                    found=type(value).__name__,
                )
            check(value, default, where)

    if path not in free:
        check(user, known, path)


def listing(keys: Iterable[str]) -> str:
    """Return names as a sorted list for a message."""
    return ", ".join(sorted(map(str, keys))) or "none"


def _unknown_key(
    key: str, where: str, section: Mapping[str, Any], root: Mapping[str, Any]
) -> UnknownKeyError:
    nearest = nearest_name(key, map(str, section))
    elsewhere = None if nearest else _find_key(key, root)
    if nearest:
        advice = f"did you mean {nearest!r}? "
    elif elsewhere:
        advice = f"there is {elsewhere}. "
    else:
        advice = ""
    return UnknownKeyError(
        f"unknown config key {where}; {advice}Known here: {listing(section)}",
        path=where,
        key=key,
        known=sorted(map(str, section)),
        nearest=nearest,
        elsewhere=elsewhere,
    )


def _find_key(key: str, section: Mapping[str, Any], path: str = "") -> str | None:
    if key in section:
        return join_key(path, key)
    deeper = (
        _find_key(key, value, join_key(path, name))
        for name, value in section.items()
        if isinstance(value, Mapping)
    )
    return next(filter(None, deeper), None)
