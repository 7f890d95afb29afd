"""Writes the reference pages from the code: ``python docs/generate.py [--check]``.

``--check`` writes nothing and exits with 1 when a page is not what the code says.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from dingsdk import errors
from dingsdk.cli.root import root
from dingsdk.pipeline.components import COMPONENTS, defaults_of_class
from dingsdk.pipeline.records import EnvSection, RunConfig, SystemSection
from dingsdk.plugins import KINDS, default_manager, hookspecs
from dingsdk.plugins.builtins import BUILTINS
from dingsdk.plugins.switches import VARIABLES
from dingsdk.testing import BUFFER_CAPABILITIES, BUFFER_RULES, CAPABILITIES, RULES, Rule

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py; change the code's docstrings instead. -->"


def pages() -> dict[str, str]:
    """Return every reference page by file name."""
    return {
        "buffer-rules.md": buffer_rules_page(),
        "cli.md": cli_page(),
        "config.md": config_page(),
        "errors.md": errors_page(),
        "hooks.md": hooks_page(),
        "transport-rules.md": transport_rules_page(),
    }


def cli_page() -> str:
    """Return the help text of every built-in command."""
    blocks = [("dingsdk", _help(root, "dingsdk"))]
    for kind, key, _ in BUILTINS:
        if kind in ("commands", "roles"):
            command = root.get_command(click.Context(root), key)
            assert command is not None
            blocks.append((f"dingsdk {key}", _help(command, f"dingsdk {key}")))
    body = "\n\n".join(f"## `{name}`\n\n```text\n{text}\n```" for name, text in blocks)
    codes = (
        "Exit codes: 0 done; 1 failed; 2 a mistake in the command, the config or a file; "
        "130 stopped by Ctrl-C; 143 stopped by SIGTERM."
    )
    completion = (
        "TAB completes commands, options, config files, shipped examples, types and config keys. "
        "Put the line for your shell into its start-up file:\n\n```text\n"
        'bash  eval "$(_DINGSDK_COMPLETE=bash_source dingsdk)"\n'
        'zsh   eval "$(_DINGSDK_COMPLETE=zsh_source dingsdk)"\n'
        "fish  _DINGSDK_COMPLETE=fish_source dingsdk | source\n```"
    )
    variables = "\n".join(
        ["| variable | meaning |", "|---|---|"]
        + [f"| `{name}` | {text} |" for name, text in VARIABLES.items()]
        + ["| `DINGSDK_DEBUG` | 1: as `--debug`. |"]
        + ["| `DINGSDK_SECRET_FILE`, `DINGSDK_SECRET` | The secret of `flask_fs`. |"]
    )
    names = (
        "A plugin is named by its distribution or by its module. A name that is neither an "
        "installed plugin nor a module is an error, and so is a misspelled variable."
    )
    intro = f"`python -m dingsdk` is the same program as `dingsdk`. {codes}"
    return _page(
        "Command line",
        f"{intro}\n\n{body}\n\n## Environment variables\n\n{variables}\n\n{names}"
        f"\n\n## Completion\n\n{completion}",
    )


def config_page() -> str:
    """Return every config key with its default."""
    parts = [
        "One dict (YAML, JSON, or a Python module in DI-engine's shape). A section that names a "
        "`type` has the keys of that type; the tables list the built-in ones. Unknown keys are "
        "errors.",
        _record_table("Top level", RunConfig),
        _record_table("`env`", EnvSection, "env."),
        _record_table("`system`", SystemSection, "system."),
    ]
    sections = [("policy", "policies"), *((part.path, part.kind) for part in COMPONENTS)]
    for path, kind in sections:
        for key in sorted(key for each, key, _ in BUILTINS if each == kind):
            cls = default_manager().get(kind, key)
            if getattr(cls, "config", None) is None:
                continue
            rows = [
                f"| `{path}.{name}` | `{_value(value)}` |"
                for name, value in _leaves(defaults_of_class(cls, key))
            ]
            table = "\n".join(["| key | default |", "|---|---|", *rows])
            parts.append(f"## `{path}`, type `{key}`\n\n{_first(cls)}\n\n{table}")
    return _page("Config keys", "\n\n".join(parts))


def errors_page() -> str:
    """Return every error class with its place in the tree."""
    found = [
        cls
        for _, cls in sorted(vars(errors).items())
        if inspect.isclass(cls) and issubclass(cls, errors.DingError)
    ]
    rows = [
        "| error | is a | your mistake | retryable | when |",
        "|---|---|---|---|---|",
    ]
    for cls in found:
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
        when = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
        mistake, retry = ("yes" if flag else "" for flag in (cls.is_user_mistake, cls.retryable))
        rows.append(f"| `{cls.__name__}` | {bases} | {mistake} | {retry} | {when} |")
    intro = (
        "All derive from `DingError`. The facts that a message tells are attributes as well "
        "(`error.facts`). For *your mistake* the command line prints the message alone and exits "
        "with 2; `--debug` shows the traceback."
    )
    return _page("Errors", f"{intro}\n\n" + "\n".join(rows))


def hooks_page() -> str:
    """Return every hookspec with its signature and docstring."""
    specs = {
        name: spec
        for name, spec in vars(hookspecs).items()
        if name.startswith("dingsdk_") and inspect.isfunction(spec)
    }
    rows = [f"| `{kind}` | {text} |" for kind, text in KINDS.items()]
    parts = [
        inspect.getdoc(hookspecs) or "",
        "## `dingsdk_register_<kind>(registry)`\n\n"
        "Register the parts that the plugin provides, by `registry.register(key, cls)`. Fires once "
        "per plugin, when it is loaded, in the process and thread that loads it (in each process "
        "that needs it). An error undoes the whole load and is reported by the plugin's name. "
        "There is one such hook and one entry-point group `dingsdk.<kind>` for each kind:",
        "\n".join(["| kind | its parts |", "|---|---|", *rows]),
    ]
    for name, spec in specs.items():
        signature = ", ".join(inspect.signature(spec).parameters)
        parts.append(f"## `{name}({signature})`\n\n{inspect.getdoc(spec)}")
    return _page("Hooks", "\n\n".join(parts))


def transport_rules_page() -> str:
    """Return the rules of the transport contract."""
    intro = (
        "What every transport does, and `dingsdk.testing` checks: `check_transport` all of it, a "
        "subclass of `TransportContract` as one test a rule. [Write a "
        "transport](../tutorial/write-a-transport.md) shows both."
    )
    return _rules_page("transport", intro, CAPABILITIES, RULES)


def buffer_rules_page() -> str:
    """Return the rules of the buffer contract."""
    intro = (
        "What every replay buffer does, whatever storage, sampler, remover and limiter it is made "
        "of, and `dingsdk.testing` checks: `check_buffer` all of it, a subclass of "
        "`BufferContract` as one test a rule, and `BufferMachine` against a plain model. [Extend "
        "the buffer](../how-to/extend-the-buffer.md) shows all three."
    )
    return _rules_page("replay buffer", intro, BUFFER_CAPABILITIES, BUFFER_RULES)


def _rules_page(
    part: str, intro: str, capabilities: Mapping[str, str], rules: tuple[Rule, ...]
) -> str:
    parts = [
        intro,
        f"A {part} declares what it can do beyond the rules for all; some rules are for those "
        "that declare it:",
        "\n".join(f"- `{name}`: {text}" for name, text in capabilities.items()),
    ]
    for rule in rules:
        _, _, rest = rule.text.partition("\n\n")
        only = f"Only with `{rule.needs}`." if rule.needs else ""
        lines = [f"## {rule.number}. {rule.title}", " ".join(rest.split()), only]
        parts.append("\n\n".join(line for line in lines if line))
    return _page(f"Rules of a {part}", "\n\n".join(parts))


def _page(title: str, body: str) -> str:
    return f"{NOTE}\n\n# {title}\n\n{body}\n"


def _help(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name, max_content_width=90, terminal_width=90)
    return command.get_help(context).rstrip()


def _record_table(title: str, record: type[msgspec.Struct], prefix: str = "") -> str:
    meanings = _attribute_docs(record)
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for field in msgspec.structs.fields(record):
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        shown = "required" if default is msgspec.NODEFAULT else f"`{_value(default)}`"
        if isinstance(default, msgspec.Struct):
            shown = "see below"
        rows.append(f"| `{prefix}{field.name}` | {shown} | {meanings[field.name]} |")
    return f"## {title}\n\n" + "\n".join(rows)


def _attribute_docs(record: type) -> dict[str, str]:
    """Return the Attributes section of a Google docstring as ``{name: text}``."""
    found: dict[str, str] = {}
    name = ""
    for line in (inspect.getdoc(record) or "").partition("Attributes:\n")[2].splitlines():
        if line.startswith("     "):
            found[name] += f" {line.strip()}"
        else:
            name, _, text = line.strip().partition(": ")
            found[name] = text
    return found


def _leaves(section: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _value(value: Any) -> str:
    if isinstance(value, float) and value == float("inf"):
        return ".inf"
    return json.dumps(value, default=str)


def _first(cls: Any) -> str:
    return (inspect.getdoc(cls) or "").split("\n\n")[0]


def main() -> int:
    """Write the pages, or compare them with ``--check``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    REFERENCE.mkdir(exist_ok=True)
    stale = []
    for name, text in pages().items():
        path = REFERENCE / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not is_check:
            path.write_text(text, encoding="utf-8")
    if is_check and stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
