"""Config files: reads YAML, JSON and Python files, writes YAML, applies overrides."""

from __future__ import annotations

import functools
import json
import os
import re
import runpy
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dingsdk.config.plain import (
    MAX_DIGITS,
    MAX_VALUES,
    TOO_DEEP,
    TOO_LONG,
    check_bounds,
    copy_containers,
    plain_value,
    to_plain,
)
from dingsdk.errors import ConfigError, ConfigTypeError, error_text, listing, repr_of, spelling

EXAMPLES_DIR = Path(__file__).parents[1] / "examples"
"""Folder of the shipped examples; ``load_config`` finds them by their names without ``.yaml``."""

MAX_BYTES = 1 << 20
"""Largest config file that is read."""


class Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and reads numbers as YAML 1.2 does.

    It stops at a line that merges too many keys or contains a number that is too long, before that
    takes much time or memory. Aliases share their value in memory; ``check_bounds`` counts it each
    time.
    """

    _merged = 0

    def flatten_mapping(self, node: Any) -> None:
        """Do what PyYAML does, with a limit on the merged keys of the whole file."""
        for key, value in node.value:
            if key.tag.endswith(":merge"):
                for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(source, yaml.MappingNode):
                        self.flatten_mapping(source)
                        self._merged += len(source.value)
                        self._check_merged(node)
        super().flatten_mapping(node)

    def _check_merged(self, node: Any) -> None:
        if self._merged > MAX_VALUES:
            problem = f"the merges (<<) give more than {MAX_VALUES:,} keys"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    def construct_yaml_int(self, node: Any) -> Any:
        """Do what PyYAML does, with a limit on the number of digits."""
        if len(node.value.lstrip("+-")) > MAX_DIGITS:
            raise yaml.constructor.ConstructorError(None, None, TOO_LONG, node.start_mark)
        return super().construct_yaml_int(node)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Do what PyYAML does, but raise an error for a key that is given twice."""
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


class Dumper(yaml.SafeDumper):
    """SafeDumper without anchors; quotes each text that ``Loader`` would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value in full."""
        return True


# In YAML 1.1 every float has a dot, so a learning rate of 1e-3 would be read as text.
_EXPONENT = re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$|^[-+]?\.?[0-9]+\.?[0-9]*[eE][0-9]+$")


def _share_resolvers(cls: Any) -> None:
    cls.yaml_implicit_resolvers = {
        first: [(tag, regex) for tag, regex in rules if not tag.endswith(":timestamp")]
        for first, rules in cls.yaml_implicit_resolvers.items()
    }
    cls.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
_share_resolvers(Loader)
_share_resolvers(Dumper)


def load_config(path_or_name: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a config file, or a shipped example by its name.

    For ``.yaml``, ``.yml`` and ``.json`` files, returns the content. A ``.py`` file is executed;
    for it, returns the dicts that it defines under names that end in ``_config``, by name. A
    plugin converts them: see the hook ``dingsdk_convert_config``.

    Raises:
        ConfigError: no such file, a syntax error, a duplicate key, or code that raised;
            facts ``path`` (of the file) and, if it is known, ``line``.
    """
    try:
        path = Path(path_or_name)
    except Exception as error:  # of any code, as `__fspath__` is
        raise ConfigTypeError(
            "a config is a file, the name of a shipped example, or a dict; found "
            f"{repr_of(path_or_name):.80}",
            path="config",
        ) from error
    if not os.path.isfile(path):
        path = _example_path(path)
    suffix = path.suffix.lower()
    if suffix == ".py":
        return _run_python(path)
    if suffix not in {".yaml", ".yml", ".json"}:
        raise ConfigError(
            f"cannot read {path}: a config is a .yaml, .yml, .json or .py file", path=str(path)
        )
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ValueError(f"a config of {size:,} bytes; at most {MAX_BYTES:,} are read")
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}", path=str(path)) from error
    return parse_config(content, path)


def parse_config(content: bytes, path: Path) -> dict[str, Any]:
    """Return the content of a ``.yaml``, ``.yml`` or ``.json`` file; errors as ``load_config``."""
    try:
        text = content.decode()
        if path.suffix.lower() == ".json":
            loaded = json.loads(text, object_pairs_hook=_unique_pairs)
        else:
            loaded = yaml.load(text, Loader)
    except (RecursionError, ValueError, yaml.YAMLError) as error:
        problem = _problem_of(error)
        mark = getattr(error, "problem_mark", None)
        line = getattr(error, "lineno", None) if mark is None else mark.line + 1
        where = f"{path}" if mark is None else f"{path}, line {line}"
        raise ConfigError(f"{where}: {problem}", path=str(path), line=line) from error
    if not isinstance(loaded, Mapping):
        raise ConfigTypeError(
            f"{path} {'is empty' if loaded is None else f'is a {type(loaded).__name__}'}; a config "
            "is a mapping of sections, such as env and policy",
            path=str(path),
            expected="mapping",
            found=type(loaded).__name__,
        )
    return _bounded(to_plain, loaded, path)


def _problem_of(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return TOO_DEEP
    return getattr(error, "problem", None) or " ".join(str(error).split())


def dump_config(cfg: Mapping[str, Any]) -> str:
    """Return ``cfg`` as YAML, in its key order; a value that is not plain is a ConfigTypeError."""
    return str(yaml.dump(to_plain(cfg), Dumper=Dumper, sort_keys=False, allow_unicode=True))


def save_config(cfg: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write ``cfg`` as YAML with mode 0600; ``load_config`` returns an equal config.

    Raises:
        ConfigTypeError: a value is not plain data.
        RunFolderError, StorageFullError: the file cannot be written; an existing one stays.
    """
    from dingsdk.runtime.files import (  # not at the top: most commands write no config
        Folder,
        checked_path,
    )

    target = checked_path(path, "path")
    with Folder(target.parent, create=False) as folder:
        folder.write_atomic(target.name, [dump_config(cfg).encode()])


def check_sets(sets: Sequence[str]) -> Sequence[str]:
    """Return a list of overrides unchanged; raise ConfigError if it is anything else."""
    if isinstance(sets, str):
        raise ConfigError(f"sets is a list of overrides: write sets=[{sets!r:.200}]", path="sets")
    if not isinstance(sets, Sequence) or not all(isinstance(each, str) for each in sets):
        raise ConfigTypeError(
            f'sets is a list of overrides such as "a.b=1", found {repr_of(sets)}', path="sets"
        )
    return sets


def apply_set(cfg: dict[str, Any], assignment: str) -> dict[str, Any]:
    """Apply one override ``a.b=value`` to ``cfg`` in place, and return ``cfg``.

    The value is read as YAML (``3``, ``1e-3``, ``true``, ``[64, 64]``, ``null``, text).
    Missing sections are created.

    Raises:
        ConfigError: the override has another form, or a part of the path is not a section.
    """
    check_sets([assignment])
    dotted, sign, text = assignment.partition("=")
    shown = f"{assignment!r:.200}"
    keys = [key.strip() for key in dotted.split(".")]
    if not sign or not all(keys):
        raise ConfigError(
            f"cannot set {shown}: write it as path.to.key=value", assignment=assignment
        )
    try:
        value = yaml.load(text, Loader)
        check_bounds(functools.reduce(lambda below, key: {key: below}, reversed(keys), value))
    except (yaml.YAMLError, ConfigError, RecursionError) as error:
        problem = _problem_of(error)
        if isinstance(error, yaml.YAMLError):
            problem = f"the value is no YAML ({problem}); quote it"
        raise ConfigError(
            f"cannot set {shown}: {problem}",
            path=".".join(keys),
            assignment=assignment,
        ) from error
    section: Any = cfg
    for depth, key in enumerate(keys[:-1], start=1):
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            where = ".".join(keys[:depth])
            raise ConfigError(
                f"cannot set {shown}: {where} is {section!r:.100}, not a section",
                path=where,
                assignment=assignment,
            )
    section[keys[-1]] = plain_value(value, ".".join(keys))
    return cfg


def _example_path(name: Path) -> Path:
    examples = {path.stem: path for path in sorted(EXAMPLES_DIR.glob("*.yaml"))}
    found = examples.get(str(name))
    if found is not None:
        return found
    inside = name / "config.yaml"
    if os.path.isfile(inside):
        raise ConfigError(
            f"{str(name)!r} is a folder, not a config file; the config in it is {str(inside)!r}",
            path=str(name),
            nearest=str(inside),
        )
    nearest, advice = spelling(name, examples)
    raise ConfigError(
        f"there is no config file {str(name)!r} in {Path.cwd()}, and no shipped example of that "
        f"name (examples: {listing(examples)}){advice}",
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
            f"{path}, line {line}: {error_text(error)}", path=str(path), line=line
        ) from error
    sections = {
        name: value
        for name, value in names.items()
        if name.endswith("_config") and isinstance(value, Mapping)
    }
    if not sections:
        raise ConfigError(
            f"{path} defines no dict whose name ends in _config; a config in Python defines "
            "main_config and create_config, as DI-engine's",
            path=str(path),
        )
    return _bounded(copy_containers, sections, path)


def _bounded(copy: Callable[[Any], Any], loaded: Mapping[str, Any], path: Path) -> dict[str, Any]:
    try:
        check_bounds(loaded)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", path=str(path)) from error
    copied: dict[str, Any] = copy(loaded)
    return copied


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return unique
