"""Writes the reference pages from the code: ``python docs/generate.py [--check]``.

``--check`` writes nothing and exits with 1 if a page differs from the code.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.util
import inspect
import itertools
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from gymnasium import spaces

from dingsdk import errors
from dingsdk.cli.root import root
from dingsdk.config import (
    EXAMPLES_DIR,
    LARGEST_INT,
    Field,
    PartSection,
    Schedule,
    Section,
    config_type,
    documentation_of,
    fields_of,
    load_config,
)
from dingsdk.config.plain import find
from dingsdk.config.schedule import number_of
from dingsdk.pipeline.sections import EnvSection, RunSection, SystemSection
from dingsdk.plugins import (
    KINDS,
    TEMPLATES,
    PluginManager,
    Switches,
    default_manager,
    hookspecs,
    use_manager,
)
from dingsdk.plugins.builtins import BUILTINS
from dingsdk.plugins.switches import VARIABLES
from dingsdk.plugins.templates import next_steps, render
from dingsdk.policy import BasePolicy
from dingsdk.policy.sections import PolicySection
from dingsdk.testing import (
    BUFFER_CAPABILITIES,
    BUFFER_RULES,
    CAPABILITIES,
    COLLECTOR_CAPABILITIES,
    COLLECTOR_RULES,
    COMMANDER_CAPABILITIES,
    COMMANDER_RULES,
    ENV_CAPABILITIES,
    ENV_RULES,
    EVALUATOR_CAPABILITIES,
    EVALUATOR_RULES,
    EXTENSION_RULES,
    PART_RULES,
    POLICY_CAPABILITIES,
    POLICY_RULES,
    RULES,
    Rule,
)
from dingsdk.worker.learner.hooks import SHORT_HOOKS, HookEntry
from dingsdk.worker.replay_server import ReplayServer

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
from api import module_text  # noqa: E402 - beside this file, which tests run by its path
from house import picture  # noqa: E402

MODULES = (
    "dingsdk",
    "dingsdk.config",
    "dingsdk.data",
    "dingsdk.runtime",
    "dingsdk.envs",
    "dingsdk.errors",
    "dingsdk.plugins",
    "dingsdk.policy",
    "dingsdk.testing",
    "dingsdk.worker",
    "dingsdk.worker.comm",
    "dingsdk.worker.coordinator",
    "dingsdk.worker.replay_buffer",
)
"""Public modules; plugins may import the names that these export."""
FIRST_PARTY = {
    "learner_hooks": {
        "mlflow": "dingsdk_trackers.hooks:MlflowHook",
        "wandb": "dingsdk_trackers.hooks:WandbHook",
    },
    "policies": {
        "appo": "dingsdk_zoo.appo:APPOPolicy",
        "bc": "dingsdk_zoo.bc:BCPolicy",
        "discrete_sac": "dingsdk_zoo.discrete_sac:DiscreteSACPolicy",
        "impala": "dingsdk_zoo.impala:IMPALAPolicy",
        "iql": "dingsdk_zoo.iql:IQLPolicy",
        "qrdqn": "dingsdk_zoo.qrdqn:QRDQNPolicy",
        "rainbow": "dingsdk_zoo.rainbow:RainbowPolicy",
        "td3": "dingsdk_zoo.td3:TD3Policy",
    },
    "transports": {
        "flask_fs": "dingsdk_flask_fs.transport:FlaskFSTransport",
        "in_memory": "dingsdk_in_memory.transport:InMemoryTransport",
        "ray": "dingsdk_ray.transport:RayTransport",
        "shared_memory": "dingsdk_shared_memory.transport:SharedMemoryTransport",
    },
}
"""Parts of the plugins in this repository, installed or not."""
NOTE = "<!-- Written by docs/generate.py; change the code's docstrings instead. -->"


def pages() -> dict[str, str]:
    """Return every reference page by file name."""
    return {
        "algorithms.md": algorithms_page(),
        "cli.md": cli_page(),
        "config.md": config_page(),
        "di-engine-keys.md": di_engine_keys_page(),
        "errors.md": errors_page(),
        "hooks.md": hooks_page(),
        "limits.md": limits_page(),
        "part-rules.md": part_rules_page(),
        "extension-rules.md": extension_rules_page(),
        **_rule_pages(),
        **{f"api/{module}.md": _page(f"`{module}`", module_text(module)) for module in MODULES},
    }


def how_to_pages() -> dict[str, str]:
    """Return the page of each plugin template, by its path below ``docs/how-to``."""
    return {f"plugins/{kind}.md": template_page(kind) for kind in TEMPLATES}


def template_page(kind: str) -> str:
    """Return the page on how to write a kind of plugin, with the files of its template."""
    name = f"my-{kind}"
    folder, module = f"dingsdk-rl-{name}", f"dingsdk_{name.replace('-', '_')}"
    files = render(kind, name)
    commands = [f"dingsdk new plugin {kind} {name}", *next_steps(kind, name, f"./{folder}")]
    own = f"{module}/{kind.replace('-', '_')}.py"
    init = f"{module}/__init__.py"
    shown = {
        "The plugin": ("python", own if own in files else init),
        **({"Its registration": ("python", init)} if own in files else {}),
        "A config that uses it": ("yaml", "example.yaml"),
    }
    noun = kind.replace("-", " ")
    parts = [
        "These commands write a working package, install it, run its tests, check it against the "
        "rules of its\nkind, and use it. Then change its code.",
        "```console\n" + "\n".join(f"$ {command}" for command in commands) + "\n```",
        *(
            f"## {title}\n\n```{language} file={folder}/{path}\n{files[path]}```"
            for title, (language, path) in shown.items()
        ),
        f"## More\n\n{_MORE[kind]}",
    ]
    note = "<!-- Written by docs/generate.py; change the template instead. -->"
    title = f"# Write {_article(noun)} {noun}"
    return "\n\n".join([note, title, *parts]) + "\n"


_RULES_OF = "[The rules](../../reference/{}-rules.md) say what every {} does."
_PARTS = (
    "[The rules of parts](../../reference/part-rules.md) say what every {} does. [Extend the "
    "buffer](../extend-the-buffer.md) explains how the parts of a buffer work together."
)
_MORE = {
    "transport": _RULES_OF.format("transport", "transport")
    + " [Write a transport](../../tutorial/write-a-transport.md) builds one over sockets.",
    "buffer": _RULES_OF.format("buffer", "replay buffer"),
    **{kind: _PARTS.format(kind) for kind in ("storage", "sampler", "remover", "limiter")},
    "collector": _RULES_OF.format("collector", "collector"),
    "evaluator": _RULES_OF.format("evaluator", "evaluator"),
    "policy": _RULES_OF.format("policy", "policy")
    + " [Write a policy](../write-a-policy.md) explains each method.",
    "env-manager": _RULES_OF.format("env", "env manager"),
    "commander": _RULES_OF.format("commander", "commander"),
    "learner-hook": _RULES_OF.format("extension", "learner hook"),
    "wrapper": _RULES_OF.format("extension", "wrapper"),
    "command": _RULES_OF.format("extension", "command"),
    "observer": _RULES_OF.format("extension", "observer")
    + " [The hooks](../../reference/hooks.md) are what an observer can implement.",
}


OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (4,)),
    "image": spaces.Box(0, 255, (4, 84, 84), np.uint8),
    "`Discrete`": spaces.Discrete(5),
    "`MultiBinary`": spaces.MultiBinary(5),
    "`Dict` of these": spaces.Dict({"a": spaces.Box(-1, 1, (4,)), "b": spaces.Discrete(5)}),
}
ACTIONS = {
    "`Discrete`": spaces.Discrete(3),
    "`MultiDiscrete`": spaces.MultiDiscrete([3, 2]),
    "`Box`, finite bounds": spaces.Box(-1, 1, (2,)),
    "`Box` without bounds": spaces.Box(-np.inf, np.inf, (2,)),
}


def algorithms_page() -> str:
    """Return the page on which policy accepts which spaces, as the policies report it."""
    policies = dict(_parts_of_repository("policies"))
    columns: dict[str, Callable[[Any], bool]] = {
        "on-policy": lambda cls: cls.Config().on_policy,
        "prioritized replay": lambda cls: fields_of(cls.Config)["priority"].type is bool,
        "recurrent network": lambda cls: bool(
            {"recurrent", "lstm_size"} & fields_of(type(cls.Config().model)).keys()
        ),
        "several learners": lambda cls: cls.is_data_parallel,
        "export": lambda cls: cls.greedy is not BasePolicy.greedy,
    }
    parts = [
        "The policies that dingsdk has, and the spaces of gymnasium that each takes. The tables "
        "are made by asking each policy. Those of the zoo are in the distribution "
        "`dingsdk-rl-zoo` ([find a plugin](../how-to/find-a-plugin.md)). Another algorithm is a "
        "plugin: [write a policy](../how-to/write-a-policy.md).",
        "| type | algorithm | paper | trains on | from the buffer | configs | where |\n"
        "|---|---|---|---|---|---|---|\n"
        + "\n".join(_algorithm(key, cls) for key, cls in policies.items()),
        "`bc` and `iql` [learn from recorded data](../how-to/train-from-data.md), not from what a "
        "run collects. The configs of the zoo are in `plugins/dingsdk-zoo/dingsdk_zoo/configs`.",
        "## Action spaces",
        _marks(policies, {
            name: partial(_takes_spaces, OBSERVATIONS["vector"], action)
            for name, action in ACTIONS.items()
        }),
        "Other action spaces (`MultiBinary`, `Tuple`, `Dict`, a `Box` of integers) are refused by "
        "name before a run starts; a wrapper of the env can often change the space.",
        "## Observation spaces",
        _marks(policies, {
            name: partial(_observes, space) for name, space in OBSERVATIONS.items()
        }),
        "[Images and dicts](../how-to/run-the-examples.md#images-and-dicts) says which network "
        "each gets.",
        "## What else",
        _marks(policies, columns),
    ]  # fmt: skip
    return _page("Algorithms", "\n\n".join(parts))


def _algorithm(key: str, cls: Any) -> str:
    """Return the row of an algorithm in the first table."""
    section, text = cls.Config(), inspect.getdoc(cls) or ""
    paper = re.search(r"Source: ([^,(;]+ \d{4}\w?)", text)
    zoo = Path(__file__).parents[1] / "plugins" / "dingsdk-zoo" / "dingsdk_zoo" / "configs"
    paths = sorted([*EXAMPLES_DIR.glob("*.yaml"), *zoo.glob("*.yaml")])
    configs = [each.stem for each in paths if find(load_config(each), "policy.type") == key]
    buffer = "" if section.on_policy else f"`{section.other.replay_buffer['type']}`"
    where = "zoo" if key in FIRST_PARTY["policies"] else "core"
    cells = (
        *(f"`{key}`", _first(cls).partition(", type")[0], paper[1] if paper else "", cls.piece),
        *(buffer, ", ".join(f"`{each}`" for each in configs), where),
    )
    return f"| {' | '.join(cells)} |"


def _observes(observation: Any, cls: Any) -> bool:
    return any(_takes_spaces(observation, action, cls) for action in ACTIONS.values())


def _takes_spaces(observation: Any, action: Any, cls: Any) -> bool:
    try:
        cls.model_from_spaces(observation, action)
    except errors.ConfigError:
        return False
    return True


def _marks(policies: Mapping[str, Any], columns: Mapping[str, Callable[[Any], bool]]) -> str:
    """Return a table of policies; each column is a question that the policies answer."""
    rows = ["| type | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for key, cls in policies.items():
        marks = ["yes" if ask(cls) else "" for ask in columns.values()]
        rows.append(f"| `{key}` | " + " | ".join(marks) + " |")
    return "\n".join(rows)


def cli_page() -> str:
    """Return the help text of every built-in command, whatever plugins are installed."""
    with use_manager(PluginManager(Switches(autoload=False))):
        return _cli_page()


def _cli_page() -> str:
    blocks = [("dingsdk", _help(root, "dingsdk"))]
    for kind, key, _ in BUILTINS:
        if kind in ("commands", "roles"):
            command = root.get_command(click.Context(root), key)
            assert command is not None
            blocks.append((f"dingsdk {key}", _own_help(command, f"dingsdk {key}")))
            inner = command.commands if isinstance(command, click.Group) else {}
            for name, each in inner.items():
                blocks.append((f"dingsdk {key} {name}", _own_help(each, f"dingsdk {key} {name}")))
    body = "\n\n".join(f"## `{name}`\n\n```text\n{text}\n```" for name, text in blocks)
    codes = (
        "Exit codes: 0 done; 1 failed; 2 a mistake in the command, the config or a file; "
        "75 a worker over its memory limit, to be started again; 129 stopped by SIGHUP (a closed "
        "terminal); 130 stopped by Ctrl-C; 143 stopped by SIGTERM."
    )
    completion = (
        "TAB completes commands, options, config files and shipped examples. "
        "Put the line for your shell into its start-up file:\n\n```text\n"
        'bash  eval "$(_DINGSDK_COMPLETE=bash_source dingsdk)"\n'
        'zsh   eval "$(_DINGSDK_COMPLETE=zsh_source dingsdk)"\n'
        "fish  _DINGSDK_COMPLETE=fish_source dingsdk | source\n```"
    )
    variables = "\n".join(
        ["| variable | meaning |", "|---|---|"]
        + [f"| `{name}` | {text} |" for name, text in VARIABLES.items()]
        + ["| `DINGSDK_SECRET_FILE`, `DINGSDK_SECRET` | The secret of the workers of a run. |"]
    )
    watch = "The plugin `watch` adds a command: see [watch a run](../how-to/watch-a-run.md)."
    names = (
        "A plugin is named by its distribution or by its module. A name that is neither an "
        "installed plugin nor a module is an error, and so is a misspelled variable."
    )
    intro = (
        "`python -m dingsdk` is the same program as `dingsdk`. All commands have its options "
        f"`--debug` and `--help`. {codes} {watch}"
    )
    return _page(
        "Command line",
        f"{intro}\n\n{body}\n\n## Environment variables\n\n{variables}\n\n{names}"
        f"\n\n## Completion\n\n{completion}",
    )


def config_page() -> str:
    """Return every config key with its range, default and meaning."""
    parts = [
        "One dict (YAML, JSON, or a Python module in DI-engine's shape). A section that names a "
        "`type` has the keys of that type. The tables list the types of dingsdk and of its "
        "transports: first the keys that all types of a section share, then those of each type. "
        "A key that ends with `_s` or `timeout` is in seconds, one that ends with `_bytes` in "
        "bytes. `null` is what the texts call None. Unknown keys are errors. `dingsdk config "
        "schema` prints the same as JSON Schema.",
        _section_table("Top level", RunSection),
        _section_table("`env`", EnvSection, "env."),
        _section_table("`system`", SystemSection, "system."),
    ]
    waiting, seen = list(_parts_in(RunSection)), set()
    while waiting:
        path, kind = waiting.pop(0)
        if (path, kind) in seen:
            continue
        seen.add((path, kind))
        types = []
        for key, cls in _parts_of_repository(kind):
            section = config_type(cls, PolicySection if kind == "policies" else PartSection)
            types.append((key, _first(cls), _rows(section, f"{path}.")))
            waiting += _parts_in(section, f"{path}.")
        parts += _type_tables(path, types)
    parts += [
        _section_table(
            "Schedules\n\nWhere a table says so, a schedule may be given in place of a number: "
            "`learning_rate: {start: 1e-3, end: 1e-5, env_steps: 100000}`. All its values must be "
            "in the range of that number.",
            Schedule,
        ),
        *_hook_tables("policy.learn.learner.hook"),
        _section_table(
            "A replay server\n\n`ReplayServer` takes them as its first argument. "
            "[`dingsdk replay-server`](cli.md#dingsdk-replay-server) has options for an address.",
            ReplayServer.Config,
        ),
    ]
    return _page("Config keys", "\n\n".join(parts))


def _hook_tables(path: str) -> Iterator[str]:
    """Yield the table of a learner hook entry, and the tables of each hook's arguments."""
    entry = f"{path}.<name>"
    short = "\n".join(
        f"- `{name}`: `{kind}`, `{position}`, priority {priority}; the value is "
        + (f"its `{argument}`" if argument else "whether it runs")
        for name, (kind, position, _, priority, argument, _) in SHORT_HOOKS.items()
    )
    yield _section_table(
        f"`{entry}`\n\nA learner hook, under any name. Under one of these names a value alone will "
        f"do; `0`, `false`, `null` and empty text turn it off:\n\n{short}\n\n"
        "In full it is a section:",
        HookEntry,
        f"{entry}.",
        leaves_out=(),
    )
    for key, hook in _parts_of_repository("learner_hooks"):
        title = f"`{path}`, type `{key}`\n\n{_first(hook)}"
        if fields_of(hook.Args):
            yield _section_table(title, hook.Args, f"{entry}.ext_args.")
        else:
            yield f"## {title}\n\nIt takes no `ext_args`."


def _parts_of_repository(kind: str) -> Iterator[tuple[str, Any]]:
    for key in default_manager().builtin_types(kind):
        yield key, default_manager().get(kind, key)
    for key, name in FIRST_PARTY.get(kind, {}).items():
        with _imported(name) as found:
            yield key, found


@contextmanager
def _imported(name: str) -> Iterator[Any]:
    """Import a name from a plugin of this repository; unload plugins that are not installed."""
    folders = (Path(__file__).parents[1] / "plugins").iterdir()
    packages = {each.name.replace("-", "_"): str(each) for each in folders}
    absent = {each for each in packages if importlib.util.find_spec(each) is None}
    before, sys.path = sys.path, [*sys.path, *(packages[each] for each in sorted(absent))]
    try:
        yield pkgutil.resolve_name(name)
    finally:
        sys.path = before
        for module in [each for each in sys.modules if each.partition(".")[0] in absent]:
            del sys.modules[module]


def di_engine_keys_page() -> str:
    """Return the table of DI-engine's config keys that are moved, left out or rejected."""
    names = ("MOVED", "LEFT_OUT", "WITHOUT", "ONLY", "NO_SECTION")
    with _imported("dingsdk_di_engine.keys") as keys:
        moved, left_out, without, only_if, sections = (getattr(keys, name) for name in names)

    def shown(entry: str) -> str:
        kind, colon, path = entry.rpartition(":")
        return f"`{path}` of `{kind}`" if colon else f"`{path}`"

    rows = [f"| {shown(old)} | moved | `{new}` |" for old, new in moved.items()]
    rows += [f"| {shown(path)} | left out | {reason} |" for path, reason in left_out.items()]
    for path, (value, reason) in without.items():
        rows.append(f"| {shown(path)} | left out, with a warning unless `{value}` | {reason} |")
    for path, (only, reason) in only_if.items():
        fate = f"left out if `{only}`, else refused" if only else "left out if off, else refused"
        rows.append(f"| {shown(path)} | {fate} | {reason} |")
    for name, reason in sections.items():
        rows.append(f"| `{name}` | left out if off, else refused | {reason} |")
    intro = (
        "The plugin `dingsdk-rl-di-engine` converts a config in DI-engine's shape (`main_config`, "
        "`create_config`, `system_config`) before it is compiled. A key that [config "
        "keys](config.md) lists keeps its place and meaning. This table has the others; a key in "
        "neither is an error that names it. One error names all that is refused.\n\n"
        "A policy that dingsdk does not have, such as `td3`, becomes the policy `di_engine`, which "
        "runs DI-engine's own; its keys stay as they are. Characters of `exp_name` that a run "
        "folder cannot have become `_`. The shapes of observations and actions are read from the "
        "env. `lr_scheduler` of PPO becomes a schedule of `learning_rate`.\n\n"
        "The buffer of a policy with `priority` that has no type of its own is `advanced`. An "
        "env of the type `atari` gets the prefix `ale_py:` and the wrappers `episode_statistics` "
        "and `atari`, and with `env.frame_stack` that one too. Of "
        "`policy.model.encoder_hidden_size_list` for images the last width is kept: the "
        "convolutions are given."
    )
    table = "\n".join(["| DI-engine | what happens | place or reason |", "|---|---|---|", *rows])
    return _page("Config keys of DI-engine", f"{intro}\n\n{table}")


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


LIMIT = re.compile(r"_?((MAX|MIN|MOST|LEAST|LONGEST|LARGEST|SMALLEST)_\w+|\w+_(S|NS|BYTES))")
"""Names of constants that are limits; each must have a docstring."""
NO_LIMITS = ("dingsdk/examples/", "dingsdk/templates/", "dingsdk/testing/")
UNITS = {"PER_S": "a second", "_S": "s", "_NS": "ns", "_BYTES": "bytes"}
"""Units of limits by the end of the name; the first match counts."""
SIZES = {10: "KiB", 20: "MiB", 30: "GiB", 40: "TiB", 50: "PiB"}


def limits_page() -> str:
    """Return the page of times and sizes that are fixed in the code, without a config key."""
    root = DOCS.parent
    rows: dict[str, list[str]] = {}
    for path in sorted([*root.glob("dingsdk/**/*.py"), *root.glob("plugins/*/dingsdk_*/**/*.py")]):
        name = path.relative_to(root).as_posix()
        if name.startswith(NO_LIMITS):
            continue
        *rooms, _ = re.sub("^plugins/[^/]*/", "", name).split("/")
        for names, value, meaning in _constants(path):
            shown = ", ".join(f"`{each.lstrip('_')}`" for each in names)
            row = f"| {shown} | {_limit(names, value)} | {meaning} | `{path.name}` |"
            rows.setdefault(".".join(rooms[:3]), []).append(row)
    head = "| name | value | meaning | file |\n|---|---|---|---|\n"
    intro = (
        "Times, sizes and counts that are built in; some hold only where a config key is left out. "
        "What is configured is in [config keys](config.md)."
    )
    tables = [f"## `{room}`\n\n{head}" + "\n".join(found) for room, found in rows.items()]
    return _page("Built-in limits", "\n\n".join([intro, *tables]))


def _constants(path: Path) -> Iterator[tuple[list[str], ast.expr, str]]:
    """Yield the documented numbers of a module: names, value and docstring.

    Raises:
        ValueError: a limit has no docstring.
    """
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for found, after in itertools.pairwise([*body, ast.Pass()]):
        if not (isinstance(found, ast.Assign) and _is_number(found.value)):
            continue
        names = [
            each.id
            for target in found.targets
            for each in ast.walk(target)
            if isinstance(each, ast.Name) and each.id.isupper()
        ]
        if not names:
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield names, found.value, " ".join(str(after.value.value).split())
        elif any(LIMIT.fullmatch(name) for name in names):
            raise ValueError(f"{path}: {', '.join(names)} needs a docstring: limits.md shows it")


def _is_number(value: ast.expr) -> bool:
    """Return whether an expression consists of numbers, at least one of them a literal."""
    parts = list(ast.walk(value))
    literals = [each.value for each in parts if isinstance(each, ast.Constant)]
    nodes = ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop | ast.Tuple
    return (
        bool(literals)
        and all(type(each) in (int, float) for each in literals)
        and all(isinstance(each, nodes | ast.Name | ast.Load) for each in parts)
    )


def _limit(names: list[str], value: ast.expr) -> str:
    """Return a value with the unit that its name implies."""
    if isinstance(value, ast.Tuple):
        many = names if len(names) > 1 else names * len(value.elts)
        return ", ".join(_limit([name], each) for name, each in zip(many, value.elts, strict=True))
    text = ast.unparse(value)
    unit = next((unit for ending, unit in UNITS.items() if names[0].endswith(ending)), "")
    if found := re.fullmatch(r"(\d+) << (\d+)", text):
        number, bits = int(found[1]), int(found[2])
        if unit == "bytes" and bits in SIZES:
            return f"{number} {SIZES[bits]}"
        text = f"{number << bits:,}"
    elif isinstance(value, ast.Constant):
        text = f"{value.value:,}" if isinstance(value.value, int) else f"{value.value:g}"
    return f"{text} {unit}".strip()


def part_rules_page() -> str:
    """Return the rules of the parts of a buffer."""
    intro = (
        "What every storage, sampler, remover and limiter does, and `dingsdk.testing` checks: "
        "`check_part` all of a kind, a subclass of `StorageContract`, `SamplerContract`, "
        "`RemoverContract` or `LimiterContract` as one test a rule. One rule makes a buffer with "
        "the part, and checks it against [the rules of buffers](buffer-rules.md). The other rules "
        "are about what a buffer does not show. [Extend the "
        "buffer](../how-to/extend-the-buffer.md) has an example. Numbers that are missing were "
        "those of removed rules."
    )
    parts = [
        _rules(kind, book.known_capabilities, tuple(book.rules), f"{kind.capitalize()} rule ")
        for kind, book in PART_RULES.items()
    ]
    return _page("Rules of the parts of a replay buffer", "\n\n".join([intro, *parts]))


def extension_rules_page() -> str:
    """Return the rules of learner hooks, wrappers, commands and observers."""
    intro = (
        "What every learner hook, wrapper, command and observer does, and `dingsdk.testing` "
        "checks: `check_extension` all of a kind, a subclass of `LearnerHookContract`, "
        "`EnvWrapperContract`, `CommandContract` or `ObserverContract` as one test a rule."
    )
    parts = [
        _rules(kind, book.known_capabilities, tuple(book.rules), f"{kind.capitalize()} rule ")
        for kind, book in EXTENSION_RULES.items()
    ]
    return _page("Rules of hooks, wrappers, commands and observers", "\n\n".join([intro, *parts]))


def _rule_pages() -> dict[str, str]:
    """Return the rule pages, one per kind of part."""
    checked = "and `dingsdk.testing` checks:"
    of_all = "all of it, a subclass of"
    return {
        "buffer-rules.md": _rules_page(
            "replay buffer",
            "What every replay buffer does, whatever storage, sampler, remover and limiter it is "
            f"made of (which have [a few rules of their own](part-rules.md)), {checked} "
            f"`check_buffer` {of_all} `BufferContract` as one test a rule, and "
            "`BufferMachine` against a plain model. [Extend the "
            "buffer](../how-to/extend-the-buffer.md) shows all three.",
            BUFFER_CAPABILITIES,
            BUFFER_RULES,
        ),
        "collector-rules.md": _rules_page(
            "collector",
            f"What every serial collector of one policy does, {checked} `check_collector` "
            f"{of_all} `CollectorContract` as one test a rule.",
            COLLECTOR_CAPABILITIES,
            COLLECTOR_RULES,
        ),
        "commander-rules.md": _rules_page(
            "commander",
            f"What every commander of parallel mode does, {checked} `check_commander` {of_all} "
            "`CommanderContract` as one test a rule.",
            COMMANDER_CAPABILITIES,
            COMMANDER_RULES,
        ),
        "env-rules.md": _rules_page(
            "env manager",
            f"What every env manager does, {checked} `check_env_manager` {of_all} "
            "`EnvManagerContract` as one test a rule, with an env that the rules bring.",
            ENV_CAPABILITIES,
            ENV_RULES,
        ),
        "evaluator-rules.md": _rules_page(
            "evaluator",
            f"What every serial evaluator that plays episodes does, {checked} `check_evaluator` "
            f"{of_all} `EvaluatorContract` as one test a rule.",
            EVALUATOR_CAPABILITIES,
            EVALUATOR_RULES,
        ),
        "policy-rules.md": _rules_page(
            "policy",
            f"What every policy does, {checked} `check_policy` {of_all} `PolicyContract` as one "
            "test a rule. [Write a policy](../how-to/write-a-policy.md) shows both.",
            POLICY_CAPABILITIES,
            POLICY_RULES,
        ),
        "transport-rules.md": _rules_page(
            "transport",
            f"What every transport does, {checked} `check_transport` {of_all} `TransportContract` "
            "as one test a rule. [Write a transport](../tutorial/write-a-transport.md) shows both.",
            CAPABILITIES,
            RULES,
        ),
    }


def _rules_page(
    part: str, intro: str, capabilities: Mapping[str, str], rules: tuple[Rule, ...]
) -> str:
    return _page(
        f"Rules of {_article(part)} {part}", f"{intro}\n\n{_rules(part, capabilities, rules)}"
    )


def _rules(
    part: str, capabilities: Mapping[str, str], rules: tuple[Rule, ...], title: str = ""
) -> str:
    parts = []
    if capabilities:
        parts = [
            f"{_article(part).capitalize()} {part} declares what it can do beyond the rules for "
            "all; some rules are for those that declare it:",
            "\n".join(f"- `{name}`: {text}" for name, text in capabilities.items()),
        ]
    for rule in rules:
        _, _, rest = rule.text.partition("\n\n")
        unless = f", and not with `{rule.unless}`" if rule.unless else ""
        only = f"Only with `{rule.needs}`{unless}." if rule.needs else ""
        lines = [f"## {title}{rule.number}. {rule.title}", " ".join(rest.split()), only]
        parts.append("\n\n".join(line for line in lines if line))
    return "\n\n".join(parts)


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


def _page(title: str, body: str) -> str:
    return f"{NOTE}\n\n# {title}\n\n{body}\n"


def _help(command: click.Command, name: str) -> str:
    context = click.Context(
        command, info_name=name, max_content_width=90, terminal_width=90, **root.context_settings
    )
    # Click caches the help option of the context in which a command was first shown.
    command = copy.copy(command)
    command._help_option = None
    return command.get_help(context).rstrip()


def _own_help(command: click.Command, name: str) -> str:
    """Return the help of a command without the options that all commands have."""
    text = re.sub(r"(?s)\n  --debug .*?\n  -h, --help[^\n]*", "", _help(command, name))
    return re.sub(r"\n\nOptions:(?=\n\n|$)", "", text)


def _section_table(
    title: str,
    section: type[Section],
    prefix: str = "",
    leaves_out: Sequence[str] = ("type", "import_names"),
) -> str:
    return _table(title, _rows(section, prefix, leaves_out))


def _table(title: str, rows: Sequence[str]) -> str:
    return "\n".join(
        [f"## {title}", "", "| key | takes | default | meaning |", "|---|---|---|---|", *rows]
    )


def _rows(
    section: type[Section], prefix: str, leaves_out: Sequence[str] = ("type", "import_names")
) -> list[str]:
    rows = []
    for name, field, meaning in _leaves(section):
        if name.split(".")[-1] in leaves_out and prefix:
            continue  # common to all parts
        shown = "required" if field.required else f"`{_value(field.default)}`"
        if field.section is not None and not field.required:
            shown = "see below"
        rows.append(f"| `{prefix}{name}` | {_takes(field)} | {shown} | {meaning} |")
    return rows


def _type_tables(path: str, types: Sequence[tuple[str, str, list[str]]]) -> Iterator[str]:
    """Yield the table of the keys that all types have, and the tables of the others.

    Args:
        path: Where a config names one of the types.
        types: Type key, description and rows of each. Equal types share a table.
    """
    common = [row for row in types[0][2] if all(row in rows for _, _, rows in types)]
    if len(types) == 1:
        common = []
    if common:
        yield _table(f"`{path}`, all types", common)
    alike: dict[tuple[str, ...], list[str]] = {}
    for key, text, rows in types:
        alike.setdefault((text, *(row for row in rows if row not in common)), []).append(key)
    for (text, *rows), keys in alike.items():
        names = " or ".join(f"`{key}`" for key in keys)
        title = f"`{path}`, type {names}\n\n{text}"
        none = "It has no other keys." if common else "It has no keys."
        yield _table(title, rows) if rows else f"## {title} {none}"


def _leaves(section: type[Section], path: str = "") -> Iterator[tuple[str, Field, str]]:
    meanings = documentation_of(section)
    for name, field in fields_of(section).items():
        if field.section is not None and section is not RunSection:
            yield from _leaves(field.section, f"{path}{name}.")
        else:
            yield f"{path}{name}", field, meanings[name]


def _parts_in(section: type[Section], path: str = "") -> Iterator[tuple[str, str]]:
    for name, field in fields_of(section).items():
        if field.part is not None:
            yield f"{path}{name}", field.part.kind
        elif field.section is not None:
            yield from _parts_in(field.section, f"{path}{name}.")


def _takes(field: Field) -> str:
    """Return a description of the values that a key accepts."""
    if field.part is not None:
        return f"a part of the `{field.part.kind}`"
    if field.section is not None:
        return "a section"
    number = number_of(field.type)
    words = _schema_in_words(msgspec.json.schema(number or field.type))
    return words if number is None else f"{words}, or a [schedule](#schedules)"


def _schema_in_words(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        words = [_schema_in_words(each) for each in schema["anyOf"]]
        # A whole number is also a number: name only one.
        return " or ".join(
            word for word in words if word != "a whole number" or "a number" not in words
        )
    if "enum" in schema:
        return ", ".join(f"`{choice}`" if choice != "" else '`""`' for choice in schema["enum"])
    words = _TYPE_WORDS.get(schema.get("type", ""), "anything")
    if words == "a list" and schema.get("items"):
        words = f"a list, each {_schema_in_words(schema['items'])}"
    bounds = [
        f"{sign} {schema[key]:,}" if schema[key] >= 1000 else f"{sign} {schema[key]:g}"
        for key, sign in _BOUNDS.items()
        if key in schema and schema[key] != LARGEST_INT
    ]
    return " ".join([words, " and ".join(bounds)]).strip()


_TYPE_WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "array": "a list",
    "object": "a section",
    "null": "null",
}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


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
    stale = []
    made = {
        **{f"reference/{name}": text for name, text in pages().items()},
        **{f"how-to/{name}": text for name, text in how_to_pages().items()},
    }
    for name, text in made.items():
        path = DOCS / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not is_check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if not is_check:  # the numbers of lines change with each edit, so they are not checked
        (DOCS / "images" / "house.svg").write_text(picture(), encoding="utf-8")
    if is_check and stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
