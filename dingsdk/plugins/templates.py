"""Writes packages that provide a plugin, from the templates in ``dingsdk/templates``.

The folder is the skeleton of a package whose type is called ``plugin_name``; ``kinds`` has the
module of each kind. Its docstring describes the plugin, and ends with the part of a config that
uses it. The skeleton registers the last class of the module; an observer needs no registration.
"""

from __future__ import annotations

import ast
import keyword
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dingsdk.config import deep_merge_dicts
from dingsdk.errors import ConfigError, RunFolderError, listing, spelling
from dingsdk.plugins.discovery import SHIPPED
from dingsdk.plugins.kinds import KINDS, OBSERVERS, OWN_DISTRIBUTION
from dingsdk.plugins.manager import default_manager

_FOLDER = Path(__file__).parents[1] / "templates"
_PACKAGE = "dingsdk_plugin_name"
_EXAMPLE = "example.yaml"
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_CLASS = re.compile(r"\bPluginName(\w+)")
_LONGEST = 40
"""Most characters in the name of a new plugin."""


@dataclass(frozen=True, slots=True)
class Template:
    """A template for a plugin.

    Attributes:
        group: The kind of the plugin, or ``plugins`` for an observer.
        summary: Description of the plugin, for its README and metadata.
        mode: Mode of the run in the example config.
    """

    group: str
    summary: str
    mode: Literal["serial", "parallel"] = "serial"


TEMPLATES: Mapping[str, Template] = {
    "transport": Template(
        "transports", "A transport for dingsdk: how workers reach their master.", "parallel"
    ),
    "buffer": Template("buffers", "A replay buffer for dingsdk."),
    "storage": Template("storages", "A storage for dingsdk: where a replay buffer keeps rows."),
    "sampler": Template("samplers", "A sampler for dingsdk: which rows a replay buffer draws."),
    "remover": Template("removers", "A remover for dingsdk: which rows leave a replay buffer."),
    "limiter": Template("limiters", "A limiter for dingsdk: when a replay buffer is sampled."),
    "collector": Template("collectors", "A collector for dingsdk: how training data is collected."),
    "evaluator": Template("evaluators", "An evaluator for dingsdk: how policies are evaluated."),
    "learner-hook": Template("learner_hooks", "A learner hook for dingsdk."),
    "policy": Template("policies", "A policy for dingsdk: what acts and learns."),
    "env-manager": Template("env_managers", "An env manager for dingsdk: how envs are stepped."),
    "wrapper": Template("env_wrappers", "A wrapper of envs for dingsdk."),
    "commander": Template(
        "commanders", "A commander for dingsdk: the next task of each worker.", "parallel"
    ),
    "command": Template("commands", "A command of dingsdk."),
    "observer": Template(OBSERVERS, "An observer of the runs of dingsdk."),
}
"""The templates of ``dingsdk new plugin``, by the name to type."""


def next_steps(kind: str, name: str, folder: str) -> list[str]:
    """Return the commands that install, test and use a new package, for its author.

    Args:
        kind: One of ``TEMPLATES``.
        name: The name of the plugin.
        folder: The folder of the package, as the commands name it.
    """
    mode = " --mode parallel" if TEMPLATES[kind].mode == "parallel" else ""
    dashed = name.replace("_", "-")
    use = [f"dingsdk {dashed} runs/{dashed}"] if kind == "command" else []
    return [
        f"pip install -e '{folder}[test]'",
        f"pytest {folder}",
        f"dingsdk check {_distribution(dashed)}",
        f"dingsdk train {Path(folder, _EXAMPLE)}{mode}",
        *use,
    ]


def render(kind: str, name: str) -> dict[str, str]:
    """Return the files of a new package, by their path; raises the errors of ``new_plugin``."""
    import yaml  # not at the top: `dingsdk --help` imports this module

    template = TEMPLATES.get(kind)
    if template is None:
        nearest, hint = spelling(kind, TEMPLATES)
        raise ConfigError(
            f"no template for a plugin of kind {kind!r}{hint} Known: {listing(TEMPLATES)}",
            found=kind,
            known=sorted(TEMPLATES),
            nearest=nearest,
        )
    is_name = _NAME.fullmatch(name) and len(name) <= _LONGEST and not keyword.iskeyword(name)
    if not is_name or yaml.safe_load(name) != name:
        raise ConfigError(
            f"{name!r} cannot name a plugin; use lower-case letters, digits and single dashes, as "
            f"in fast-replay: a letter first, at most {_LONGEST} characters, no keyword of Python "
            "and no value of YAML, as true",
            found=name,
        )
    dashed = name.replace("_", "-")
    snake = dashed.replace("-", "_")
    key = dashed if template.group == "commands" else snake
    files = {
        path.relative_to(_FOLDER).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(_FOLDER.rglob("*"))
        if path.is_file() and not {"kinds", "__pycache__", ".ruff_cache"} & {*path.parts}
    }
    file = kind.replace("-", "_")
    module = (_FOLDER / "kinds" / f"{file}.py").read_text(encoding="utf-8")
    files[f"{_PACKAGE}/{'__init__' if template.group == OBSERVERS else file}.py"] = module
    notes, _, used = (ast.get_docstring(ast.parse(module)) or "").partition("\n\n    ")
    example = deep_merge_dicts(yaml.safe_load(files[_EXAMPLE]), yaml.safe_load(f"    {used}"))
    files["README.md"] = files["README.md"].replace("PLUGIN_NOTES", notes)
    files[_EXAMPLE] = yaml.safe_dump(example, sort_keys=False)
    others = {each.replace("_", "-") for each in re.findall(r"\bfrom dingsdk_(\w*)", module)}
    requirements = [OWN_DISTRIBUTION, *sorted(map(_distribution, others))]
    words = {
        "PLUGIN_SUMMARY": template.summary,
        "PLUGIN_GROUP": template.group,
        "plugin_group": template.group,
        "PLUGIN_MODE": template.mode,
        "PLUGIN_KEY": key,
        "PLUGIN_FILE": file,
        "PLUGIN_REQUIREMENTS": '", "'.join(requirements),
        "PLUGIN_PART": next(reversed(re.findall(r"class (PluginName\w+)", module)), snake),
        "PLUGIN_STEPS": "\n".join(next_steps(kind, name, ".")),
        "plugin-name": dashed,
        "plugin_name": snake,
    }
    _check_free(kind, template.group, key)
    return {_replaced(path, words): _replaced(text, words) for path, text in files.items()}


def new_plugin(kind: str, name: str, into: Path) -> Path:
    """Write a package that provides a plugin, and return its folder.

    Args:
        kind: One of ``TEMPLATES``.
        name: The type key; words are separated by ``-`` or ``_``.
        into: The folder in which the folder of the package is made; it is made if needed.

    Raises:
        ConfigError: there is no such kind, or the name cannot be used, for example because it is
            taken.
        RunFolderError: the folder exists, or cannot be written. No files remain.
    """
    files = render(kind, name)
    folder = into / _distribution(name.replace("_", "-"))
    if os.path.lexists(folder):
        raise RunFolderError(
            f"{folder} exists; choose another name or another --into", path=str(folder)
        )
    try:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise RunFolderError(
            f"cannot write {folder}: {error.strerror or error}", path=str(folder)
        ) from error
    return folder


def _distribution(dashed: str) -> str:
    return f"{OWN_DISTRIBUTION}-{dashed}"


def _check_free(kind: str, group: str, key: str) -> None:
    """Raise ConfigError if a type has that key, or a plugin of this repository its distribution."""
    manager, distribution = default_manager(), _distribution(key.replace("_", "-"))
    if distribution in SHIPPED.values():
        raise ConfigError(
            f"{key!r} is taken: {distribution} is a plugin of dingsdk; choose another name",
            found=key,
        )
    known = manager.known(group) if group in KINDS else [a.key for a in manager.adverts(OBSERVERS)]
    if group == "commands":
        known += manager.known("roles")
    if key in known:
        raise ConfigError(
            f"{key!r} is taken: there is a {kind} of that type already; choose another name",
            found=key,
        )


def _class_name(name: str, ending: str) -> str:
    """Return the name of a class: ``fast-replay`` and ``Buffer`` make ``FastReplayBuffer``.

    Words of the ending that the name ends with are not repeated: ``fast-buffer`` makes
    ``FastBuffer``.
    """
    words = name.split("-")
    while words and words[-1].capitalize() in re.findall("[A-Z][a-z0-9]*", ending):
        words.pop()
    return "".join(map(str.capitalize, words)) + ending


def _replaced(text: str, words: Mapping[str, str]) -> str:
    text = re.sub("|".join(map(re.escape, words)), lambda match: words[match[0]], text)
    name = words["plugin-name"]
    return _CLASS.sub(lambda match: _class_name(name, match[1]), text)
