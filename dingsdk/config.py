"""Config work on plain dicts: merge, check, load, save, override.

A config is a dict with string keys whose values are dicts, lists, strings, numbers,
booleans or None. YAML is read as people expect it: ``1e-3`` is a number, a date stays a
string, and a key given twice is an error.
"""

from __future__ import annotations

import contextlib
import json
import numbers
import os
import re
import runpy
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import yaml
from easydict import EasyDict

from dingsdk.errors import (
    ConfigError,
    ConfigTypeError,
    RunFolderError,
    UnknownKeyError,
    nearest_name,
)

EXAMPLES_DIR = Path(__file__).parent / "examples"
"""Folder of the shipped examples; ``load_config`` finds them by stem."""

_PYTHON_SECTIONS = ("main", "create", "system")
_DICT_NAMES = frozenset(dir(EasyDict))


def deep_merge_dicts(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ``a`` overridden by ``b``; dicts on both sides are merged key by key.

    The inputs are untouched, and the result shares no dict or list with them. ``None``
    counts as ``{}``.
    """
    merged = {key: _copy_containers(value) for key, value in (a or {}).items()}
    for key, value in (b or {}).items():
        ours = merged.get(key)
        if isinstance(ours, Mapping) and isinstance(value, Mapping):
            merged[key] = deep_merge_dicts(ours, value)
        else:
            merged[key] = _copy_containers(value)
    return merged


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
            where = _join(path, key)
            if key not in section:
                raise _unknown_key(str(key), where, section, known)
            default = section[key]
            if not isinstance(default, Mapping) or where in free or value is None:
                continue
            if not isinstance(value, Mapping):
                raise ConfigTypeError(
                    f"{where} is a section with the keys {_listing(default)}, "
                    f"but was given {value!r}",
                    path=where,
                    expected="section",
                    found=type(value).__name__,
                )
            check(value, default, where)

    if path not in free:
        check(user, known, path)


def load_config(path_or_name: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a config file, or a shipped example by its name.

    ``.yaml``, ``.yml`` and ``.json`` files give their content. A ``.py`` file with
    ``main_config`` and ``create_config`` (and perhaps ``system_config``) is executed, as
    it is the user's own code, and gives ``{"main": ..., "create": ..., "system": ...}``.

    Raises:
        ConfigError: no such file, a syntax error, a duplicate key, or code that raised;
            facts ``path`` (of the file) and ``line`` where one is known.
    """
    path = Path(path_or_name)
    if not path.is_file():
        path = _example_path(path_or_name)
    suffix = path.suffix.lower()
    if suffix == ".py":
        return _run_python(path)
    if suffix not in {".yaml", ".yml", ".json"}:
        raise ConfigError(
            f"cannot read {path}: a config is a .yaml, .yml, .json or .py file", path=str(path)
        )
    try:
        text = path.read_text(encoding="utf-8")
        if suffix == ".json":
            loaded = json.loads(text, object_pairs_hook=_unique_pairs)
        else:
            loaded = yaml.load(text, _Loader)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}", path=str(path)) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = None if mark is None else mark.line + 1
        raise ConfigError(
            f"{path}, line {line}: {error.problem}", path=str(path), line=line
        ) from error
    except (ValueError, yaml.YAMLError) as error:
        line = getattr(error, "lineno", None)
        raise ConfigError(f"{path}: {error}", path=str(path), line=line) from error
    if not isinstance(loaded, Mapping):
        raise ConfigTypeError(
            f"{path} holds {'nothing' if loaded is None else type(loaded).__name__}, "
            "a config is a mapping of sections",
            path=str(path),
            expected="mapping",
            found=type(loaded).__name__,
        )
    return to_plain(loaded)


def save_config(cfg: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write ``cfg`` as YAML, in its own key order; ``load_config`` gives it back equal.

    Raises:
        ConfigTypeError: a value that is not plain data.
        RunFolderError: the file cannot be written; an older one is left whole.
    """
    text = yaml.dump(to_plain(cfg), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise RunFolderError(f"cannot write {target}: {error}", path=str(target)) from error


def apply_set(cfg: dict[str, Any], assignment: str) -> dict[str, Any]:
    """Apply one ``a.b=value`` to ``cfg`` in place, and return ``cfg``.

    The value is read as YAML (``3``, ``1e-3``, ``true``, ``[64, 64]``, ``null``, text);
    absent sections are made.

    Raises:
        ConfigError: not of that form, or the path leads through something that is no section.
    """
    dotted, sign, text = assignment.partition("=")
    keys = [key.strip() for key in dotted.split(".")]
    if not sign or not all(keys):
        raise ConfigError(
            f"cannot set {assignment!r}: write it as path.to.key=value", assignment=assignment
        )
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or error
        raise ConfigError(
            f"cannot set {assignment!r}: the value is no YAML ({problem}); quote it",
            path=".".join(keys),
            assignment=assignment,
        ) from error
    section: Any = cfg
    for depth, key in enumerate(keys[:-1], start=1):
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            where = ".".join(keys[:depth])
            raise ConfigError(
                f"cannot set {assignment!r}: {where} is {section!r}, not a section",
                path=where,
                assignment=assignment,
            )
    section[keys[-1]] = _plain(value, ".".join(keys))
    return cfg


def to_easydict(cfg: Mapping[str, Any]) -> EasyDict:
    """Return ``cfg`` as a fresh EasyDict, nested sections included; other values are shared.

    Raises:
        ConfigError: a key that EasyDict would lose or hide: one that is no string, or the
            name of a dict method such as ``items``.
    """
    return _easy(cfg, "")


def to_plain(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``cfg`` in builtin types alone; tuples become lists, paths strings.

    Raises:
        ConfigTypeError: a key that is no string, or a value with no plain form.
    """
    plain: dict[str, Any] = _plain(cfg, "")
    return plain


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _listing(keys: Iterable[str]) -> str:
    return ", ".join(sorted(map(str, keys))) or "none"


def _copy_containers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy_containers(item) for key, item in value.items()}
    if type(value) is list:
        return [_copy_containers(item) for item in value]
    return value


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
        f"unknown config key {where}; {advice}Known here: {_listing(section)}",
        path=where,
        key=key,
        known=sorted(map(str, section)),
        nearest=nearest,
        elsewhere=elsewhere,
    )


def _find_key(key: str, section: Mapping[str, Any], path: str = "") -> str | None:
    if key in section:
        return _join(path, key)
    deeper = (
        _find_key(key, value, _join(path, name))
        for name, value in section.items()
        if isinstance(value, Mapping)
    )
    return next(filter(None, deeper), None)


def _checked_key(key: object, path: str) -> str:
    if isinstance(key, str):
        return str(key)
    raise ConfigTypeError(
        f"{_join(path, repr(key))}: config keys are strings, found {type(key).__name__}; "
        "put quotes around it",
        path=_join(path, key),
        expected="str",
        found=type(key).__name__,
    )


def _easy(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        easy = EasyDict()
        for key, item in value.items():
            if _checked_key(key, path) in _DICT_NAMES:
                raise ConfigError(
                    f"{_join(path, key)}: {key!r} is the name of a dict method and would hide "
                    "it; rename the key",
                    path=_join(path, key),
                )
            easy[key] = _easy(item, _join(path, key))
        return easy
    if type(value) in (list, tuple):
        return type(value)(_easy(item, _join(path, i)) for i, item in enumerate(value))
    return value


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return {
            _checked_key(key, path): _plain(item, _join(path, key)) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item, _join(path, i)) for i, item in enumerate(value)]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | PurePath):
        return str(value)
    # numpy's scalars register with numbers, except for its bool, which is 0-d with item().
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return _plain(value.item(), path)
    raise ConfigTypeError(
        f"{path} is a {type(value).__name__}; a config holds sections, lists, strings, "
        "numbers, booleans and null only",
        path=path,
        expected="plain data",
        found=type(value).__name__,
    )


def _example_path(name: str | os.PathLike[str]) -> Path:
    examples = {path.stem: path for path in sorted(EXAMPLES_DIR.glob("*.yaml"))}
    found = examples.get(str(name))
    if found is not None:
        return found
    nearest = nearest_name(str(name), examples)
    advice = f"; did you mean {nearest!r}?" if nearest else "."
    raise ConfigError(
        f"there is no config file {str(name)!r} in {Path.cwd()}, and no shipped example of that "
        f"name (examples: {_listing(examples)}){advice}",
        path=str(name),
        known=sorted(examples),
        nearest=nearest,
    )


def _run_python(path: Path) -> dict[str, Any]:
    try:
        names = runpy.run_path(str(path))
    except SyntaxError as error:
        raise ConfigError(
            f"{path}, line {error.lineno}: {error.msg}", path=str(path), line=error.lineno
        ) from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f.lineno for f in reversed(frames) if f.filename == str(path)), None)
        raise ConfigError(
            f"{path}, line {line}: {type(error).__name__}: {error}", path=str(path), line=line
        ) from error
    sections = {
        short: names[f"{short}_config"] for short in _PYTHON_SECTIONS if f"{short}_config" in names
    }
    missing = [f"{short}_config" for short in _PYTHON_SECTIONS[:2] if short not in sections]
    if missing:
        raise ConfigError(
            f"{path} does not define {' and '.join(missing)}; a config module holds main_config "
            "and create_config",
            path=str(path),
            missing=missing,
        )
    for short, section in sections.items():
        if not isinstance(section, Mapping):
            raise ConfigTypeError(
                f"{path}: {short}_config is a {type(section).__name__}, not a dict",
                path=f"{short}_config",
                expected="mapping",
                found=type(section).__name__,
            )
    return _copy_containers(sections)  # type: ignore[no-any-return]


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return unique


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and reads numbers as YAML 1.2 does."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                continue
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} is given twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """SafeDumper without anchors, that quotes what ``_Loader`` would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# YAML 1.1 wants a dot in every float, so that a learning rate of 1e-3 would be text.
_EXPONENT = re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$|^[-+]?\.?[0-9]+\.?[0-9]*[eE][0-9]+$")


def _share_resolvers(cls: Any) -> None:
    cls.yaml_implicit_resolvers = {
        first: [(tag, regex) for tag, regex in rules if not tag.endswith(":timestamp")]
        for first, rules in cls.yaml_implicit_resolvers.items()
    }
    cls.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


_share_resolvers(_Loader)
_share_resolvers(_Dumper)
