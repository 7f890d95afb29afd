"""Checks of whole plugins: imports and builds each part, and checks it against its rules."""

from __future__ import annotations

import importlib
import inspect
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple

from dingsdk.config import config_type, deep_merge_dicts, defaults_of
from dingsdk.errors import UnknownPluginError, listing, nearest_name, raised_at
from dingsdk.plugins import KINDS, TEMPLATES, PluginManager, default_manager
from dingsdk.plugins.interfaces import BASES, missing_methods
from dingsdk.plugins.kinds import NAMES, OBSERVERS
from dingsdk.plugins.switches import is_named
from dingsdk.testing.rule import ContractError, ContractReport

Outcome = Literal["ok", "failed", "skipped"]


class Step(NamedTuple):
    """One step of the check of one part.

    Attributes:
        part: ``kind:type``.
        name: ``import``, ``interface``, ``build``, ``rules`` or ``rule <number>``.
        outcome: ``skipped`` means that there is nothing to check, such as no rules for the kind.
        detail: The result in words.
    """

    part: str
    name: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class PluginReport:
    """The result of the check of a plugin.

    Attributes:
        plugin: The name that ``check_plugin`` was called with.
        steps: The steps of the check, in order.
        kept: Number of rules that were followed.
        broken: Number of rules that were broken.
    """

    plugin: str
    steps: tuple[Step, ...]
    kept: int
    broken: int

    @property
    def is_passed(self) -> bool:
        """Whether no step failed."""
        return all(step.outcome != "failed" for step in self.steps)

    def badge(self) -> dict[str, Any]:
        """Return the JSON for an endpoint badge of shields.io."""
        if self.is_passed:
            message = f"{self.kept} rules kept" if self.kept else "checked"
        elif self.broken:
            message = f"{self.broken} of {self.kept + self.broken} rules broken"
        else:
            message = "failed"
        return {
            "schemaVersion": 1,
            "label": "dingsdk",
            "message": message,
            "color": "brightgreen" if self.is_passed else "red",
        }


@dataclass(slots=True)
class _Part:
    """A part under check."""

    kind: str
    key: str
    manager: PluginManager
    asked: Mapping[str, Any] = field(default_factory=dict)
    env: str | None = None
    target: Any = None
    rules: list[ContractReport] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kind}:{self.key}"

    @property
    def cfg(self) -> dict[str, Any]:
        """The part's section: its defaults with the values of ``given``."""
        defaults = defaults_of(config_type(self.target))
        return deep_merge_dicts(defaults, {**self.given, "type": self.key})

    @property
    def given(self) -> dict[str, Any]:
        """Values of the section for the check: ``contract_config``, overridden by ``asked``."""
        own = getattr(self.target, "contract_config", _VALUES.get(str(self), {}))
        return deep_merge_dicts(own, self.asked)

    def create(self, over: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return self.manager.create(self.kind, deep_merge_dicts(self.cfg, over), *args, **kwargs)

    @property
    def capabilities(self) -> Collection[str]:
        declared: Collection[str] | None = getattr(self.target, "contract_capabilities", None)
        return _family(self) if declared is None else declared


def check_plugin(
    name: str, config: Mapping[str, Any] | None = None, env: str | None = None
) -> PluginReport:
    """Import a plugin, check its interface, build its parts, and check them against their rules.

    A class may have these attributes for the check:

    - ``contract_capabilities``: its optional capabilities, or None if the rules do not apply to it
    - ``contract_config``: values of its section that it needs in a check
    - ``contract_env``, for a wrapper or a policy: the id of an env that it can wrap, or whose
      spaces it accepts, or a section ``env``

    Args:
        name: ``kind:type``, such as ``policies:mine``, or the name of an installed distribution;
            then all its parts are checked.
        config: Values of the part's section; they override ``contract_config``. ``import_names``
            are modules to import first, which register a part that is not installed.
        env: The id of an env to use instead of ``contract_env``.

    Raises:
        UnknownPluginError: there is no such type or distribution.
    """
    manager = default_manager()
    manager.forget_adverts()
    asked = config or {}
    parts = list(_find(name, manager, asked.get("import_names") or ()))
    for part in parts:
        part.asked, part.env = asked, env
    steps: list[Step] = []
    for part in parts:
        steps += _check(part)
    results = [r for part in parts for report in part.rules for r in report.results if r.applies]
    broken = sum(result.error is not None for result in results)
    return PluginReport(name, tuple(steps), len(results) - broken, broken)


def _find(name: str, manager: PluginManager, import_names: Sequence[str]) -> Iterator[_Part]:
    kind, is_part, key = name.partition(":")
    if is_part:
        template = TEMPLATES.get(kind)
        group = template.group if template else kind
        if group != OBSERVERS:
            manager.registry(group)  # raises for an unknown kind
        adverts = manager.adverts(group)
        known = manager.known(group) if group in KINDS else [advert.key for advert in adverts]
        if not (import_names or key in known or manager.adverts(group, key)):
            raise _unknown(f"{group} type", key, known)
        yield _Part(group, key, manager)
        return
    own = [advert for advert in manager.adverts() if is_named([name], [advert.distribution])]
    if not own:
        raise _unknown("installed plugin", name, {a.distribution for a in manager.adverts()})
    for advert in own:
        is_contested = advert.kind in KINDS and (
            len(manager.adverts(advert.kind, advert.key)) > 1
            or advert.key in manager.builtin_types(advert.kind)
        )
        key = f"{advert.key}@{advert.distribution}" if is_contested else advert.key
        yield _Part(advert.kind, key, manager)


def _unknown(what: str, asked: str, known: Collection[str]) -> UnknownPluginError:
    nearest = nearest_name(asked, known)
    spelling = f" Did you mean {nearest!r}?" if nearest else ""
    return UnknownPluginError(
        f"there is no {what} {asked!r}.{spelling} Known: {listing(known)}. Check a plugin as "
        "kind:type, such as policies:mine, or by the name of its distribution; add "
        "--set 'import_names=[\"module\"]' for a module that is not installed",
        asked=asked,
        known=sorted(known),
        nearest=nearest,
    )


# Values for functions and classes of gymnasium, which have no ``contract_config``.
_VALUES: Mapping[str, Mapping[str, Any]] = {
    "env_wrappers:clip_reward": {"min_reward": -1, "max_reward": 1},
    "env_wrappers:frame_stack": {"stack_size": 4},
}
_ENVS: Mapping[str, Mapping[str, Any]] = {
    "env_wrappers:atari": {"env_id": "ale_py:ALE/Pong-v5", "kwargs": {"frameskip": 1}},
    "env_wrappers:record_video": {
        "env_id": "CartPole-v1",
        "kwargs": {"render_mode": "rgb_array"},
    },
}
# Part -> (a value without which it cannot be checked, or "", and the reason to skip it).
_LEFT_OUT: Mapping[str, tuple[str, str]] = {
    "storages:auto": ("", "it stands for array or object, as the first rows are: check those"),
    "env_wrappers:normalize_obs": ("statistics", "it needs a file: --set statistics=FILE"),
    "env_wrappers:record_video": ("folder", "it needs a folder: --set folder=DIR"),
}


def _check(part: _Part) -> Iterator[Step]:
    value, why = _LEFT_OUT.get(str(part), ("", ""))
    if why and value not in part.asked:
        yield Step(str(part), "build", "skipped", why)
        return
    for name, step in (("import", _import), ("interface", _interface), ("build", _build)):
        try:
            detail = step(part)
        except _Wrong as error:
            yield Step(str(part), name, "failed", str(error))
            return
        except Exception as error:
            text = f"{type(error).__name__}: {error}{raised_at(error)}"
            yield Step(str(part), name, "failed", text)
            return
        if detail:
            yield Step(str(part), name, "ok", detail)
    yield from _hold_to_rules(part)


class _Wrong(Exception):  # noqa: N818 - ends the check of one part
    """A part is wrong; the message says how."""


def _import(part: _Part) -> str:
    if part.kind == NAMES:
        part.target = part.manager.named(part.key)
        return str(part.target.__module__)
    if part.kind == OBSERVERS:
        advert = part.manager.adverts(part.kind, part.key)[0]
        part.manager.load(advert.module, advert.distribution, must_provide=True)
        part.target = importlib.import_module(advert.module)
        return str(advert)
    modules = part.asked.get("import_names") or ()
    part.target = part.manager.get(part.kind, part.key, modules)
    entry = part.manager.registry(part.kind).entry(part.key)
    return f"{_name(part.target)}, from {entry.owner if entry else 'unknown'}"


# Kind -> (number of positional arguments, names of keyword arguments).
_ARGUMENTS: Mapping[str, tuple[int, Sequence[str]]] = {
    "transports": (2, ()),
    "buffers": (2, ("exp_name", "instance_name")),
    "storages": (3, ()),
    "samplers": (3, ()),
    "removers": (3, ()),
    "limiters": (2, ()),
    "collectors": (4, ("exp_name", "instance_name")),
    "parallel_collectors": (1, ()),
    "comm_collectors": (3, ()),
    "comm_learners": (3, ()),
    "evaluators": (4, ("exp_name", "instance_name")),
    "learners": (4, ("exp_name", "instance_name")),
    "learner_hooks": (2, ("position", "ext_args")),
    "commanders": (1, ()),
    "serial_commanders": (6, ()),
    "leagues": (1, ("seed",)),
    "policies": (1, ("enable_field", "seed")),
    "env_managers": (2, ()),
    "env_wrappers": (1, ()),
    "roles": (0, ()),
}


def _interface(part: _Part) -> str:
    target = part.target
    if part.kind == "commands":
        import click

        if not isinstance(target, click.Command):
            raise _Wrong(f"{target!r} is no click command; decorate it with @click.command()")
        return "a click command"
    if part.kind == OBSERVERS:
        hooks = [name for name in vars(target) if name.startswith("dingsdk_")]
        return f"implements {listing(hooks)}" if hooks else ""
    if part.kind not in _ARGUMENTS:
        return ""
    positional, keywords = _ARGUMENTS[part.kind]
    if not callable(target):
        raise _Wrong(f"{target!r} cannot be called")
    found = "called as its kind is"
    if part.kind in BASES:
        place = BASES[part.kind]
        base = resolve_name(place)
        if not (isinstance(target, type) and issubclass(target, base)):
            raise _Wrong(f"{_name(target)} is no subclass of {place.replace(':', '.')}")
        if missing := missing_methods(part.kind, target):
            raise _Wrong(f"{_name(target)} lacks {listing(missing)}")
        if wrong := list(_misfits(target, base)):
            raise _Wrong("; ".join(wrong))
        found = f"a subclass of {base.__name__}"
    if positional:
        if part.kind == "env_wrappers":
            keywords = list(part.given)
        try:
            inspect.signature(target).bind(*[None] * positional, **dict.fromkeys(keywords))
        except TypeError as error:
            asked = [f"{positional} by position", *(f"{name}=..." for name in keywords)]
            raise _Wrong(
                f"{_name(target)}{inspect.signature(target)} cannot be given "
                f"{', '.join(asked)}: {error}"
            ) from error
    return found


def _misfits(target: type, base: type) -> Iterator[str]:
    """Yield a message for each method that cannot be called like that of the base class."""
    for name, expected in inspect.getmembers(base, inspect.isfunction):
        own = getattr(target, name)
        if name.startswith("_") or own is expected or not inspect.isfunction(own):
            continue
        parameters = inspect.signature(expected).parameters.values()
        by_position = [p for p in parameters if _is_plain(p) and p.default is p.empty]
        by_name = [
            p.name
            for p in parameters
            if p.kind is p.KEYWORD_ONLY or (_is_plain(p) and p.default is not p.empty)
        ]
        try:
            inspect.signature(own).bind(*by_position, **dict.fromkeys(by_name))
        except TypeError as error:
            yield (
                f"{target.__qualname__}.{name}{inspect.signature(own)} cannot be called as "
                f"{base.__qualname__}.{name}{inspect.signature(expected)}: {error}"
            )


def _is_plain(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)


def _build(part: _Part) -> str:
    build = _BUILDS.get(part.kind)
    if build is None:
        return ""
    with tempfile.TemporaryDirectory(prefix="dingsdk-check-") as folder:
        made = build(part, Path(folder))
        close = getattr(made, "close", None)
        if callable(close):
            close()
    given = ", ".join(f"{key}={value!r}" for key, value in part.given.items())
    return f"with {given or 'its defaults'}"


def _hook_maker(part: _Part) -> Callable[..., Any]:
    def make(name: str, priority: float, *, position: str, ext_args: Mapping[str, Any]) -> Any:
        ext_args = {**part.given, **ext_args}
        return part.target(name, priority, position=position, ext_args=ext_args)

    return make


def _build_hook(part: _Part, folder: Path) -> Any:
    """Train with one hook at each position in ``positions`` of the class."""
    from dingsdk.testing.extension_rules.learner_hooks import train

    make = _hook_maker(part)
    hooks = [
        make(f"at_{position}", 50, position=position, ext_args={})
        for position in part.target.positions
    ]
    train(str(folder), hooks)


def _build_manager(part: _Part) -> Any:
    import gymnasium

    manager = part.create({}, [partial(gymnasium.make, part.env or "CartPole-v1")] * 2)
    found = getattr(manager, "_env_num", None)
    if found != 2:
        raise _Wrong(
            f"{_name(part.target)}(cfg, env_fns) was given 2 functions that make envs, and has "
            f"{found or 'no'} envs; pass cfg and env_fns on to super().__init__"
        )
    return manager


def _build_wrapper(part: _Part, folder: Path) -> Any:
    from dingsdk.envs import check_env

    env = _env_of(part)
    wrappers = [{"type": part.key, **part.given}]
    found = check_env(env["env_id"], env.get("kwargs"), wrappers)
    problems = [f"{each.name}: {each.detail}" for each in found if each.state == "problem"]
    if problems:
        raise _Wrong(f"around {env['env_id']}: {'; '.join(problems)}")


def _env_of(part: _Part, default: str = "CartPole-v1") -> Mapping[str, Any]:
    """Return the section of an env for the part."""
    own: Any = _ENVS.get(str(part), default)
    own = part.env or getattr(part.target, "contract_env", own)
    return own if isinstance(own, Mapping) else {"env_id": str(own)}


_Build = Callable[[_Part, Path], Any]

_BUILDS: Mapping[str, _Build] = {
    "transports": lambda part, folder: part.create({}, folder),
    "buffers": lambda part, folder: part.create({}),
    "storages": lambda part, folder: part.create(_folder_of(part, folder), 10),
    "samplers": lambda part, folder: part.create({}, 10, 0),
    "removers": lambda part, folder: part.create({}, 10, 0),
    "limiters": lambda part, folder: part.create({}, 0),
    "collectors": lambda part, folder: part.create({}, exp_name=str(folder)),
    "evaluators": lambda part, folder: part.create({}, exp_name=str(folder)),
    "env_managers": lambda part, folder: _build_manager(part),
    "learner_hooks": _build_hook,
    "policies": lambda part, folder: _policy_maker(part)[0](None, 0),
    "env_wrappers": _build_wrapper,
}


def _hold_to_rules(part: _Part) -> Iterator[Step]:
    from dingsdk import testing

    if getattr(part.target, "contract_capabilities", "") is None:
        yield Step(str(part), "rules", "skipped", "those of its kind are not for it, as it says")
        return
    if part.kind not in _RULES:
        if part.kind != NAMES:
            yield Step(str(part), "rules", "skipped", "there are none for its kind")
        return
    name, given = _RULES[part.kind]
    try:
        check = getattr(testing, f"check_{name}")
        report = check(*given(part), capabilities=part.capabilities)
    except ContractError as error:
        report = error.facts["report"]
    except Exception as error:
        detail = f"{type(error).__name__}: {error}{raised_at(error)}"
        yield Step(str(part), "rules", "failed", detail)
        return
    part.rules.append(report)
    applying = [result for result in report.results if result.applies]
    others = len(report.results) - len(applying)
    kept = len(applying) - len(report.broken)
    promised = f"; promises {listing(part.capabilities)}" if part.capabilities else ""
    yield Step(
        str(part),
        "rules",
        "failed" if report.broken else "ok",
        f"{kept} of {len(applying)} kept, {others} do not apply{promised}",
    )
    for result in applying:
        if result.error is not None:
            detail = f"{result.rule.title}: {type(result.error).__name__}: {result.error}"
            yield Step(str(part), f"rule {result.rule.number}", "failed", detail)


def _policy_maker(part: _Part) -> tuple[Callable[..., Any], Any, Any]:
    """Return a function that makes the policy, and the first spaces that the policy accepts."""
    reasons = []
    for observation, action in _spaces(part):
        try:
            model = {"model": part.target.model_from_spaces(observation, action)}
            # The class fills in the defaults, because those of its parts depend on their types.
            section = {**part.given, "type": part.key}
            cfg = deep_merge_dicts(section if hasattr(part.target, "read") else part.cfg, model)

            def make(fields: Sequence[str] | None, seed: int, cfg: Any = cfg) -> Any:
                return part.target(cfg, enable_field=fields, seed=seed)

            make(None, 0)
        except Exception as error:
            reasons.append(
                f"for {observation} and {action}: {type(error).__name__}: {error}{raised_at(error)}"
            )
            continue
        return make, observation, action
    raise _Wrong(f"{'; '.join(reasons)}. An env with other spaces: --env, or contract_env")


def _spaces(part: _Part) -> list[tuple[Any, Any]]:
    """Return the spaces of observations and actions to try with a policy."""
    import numpy as np
    from gymnasium import spaces

    env = _env_of(part, default="")
    if env["env_id"]:
        from dingsdk.envs import EnvFn

        with closing(EnvFn(env)()) as made:
            return [(made.observation_space, made.action_space)]
    observation = spaces.Box(-1, 1, (4,), np.float32)
    actions = (spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32))
    return [(observation, action) for action in actions]


def _wrapper_maker(part: _Part) -> Callable[..., Any]:
    from dingsdk.envs import EnvFn

    env_fn = EnvFn(_env_of(part))
    return lambda wrap: part.target(wrap(env_fn()), **part.given)


def _folder_of(part: _Part, folder: Path) -> dict[str, Any]:
    """Return the settings with which a durable storage opens the rows in a folder."""
    return part.target.reopening({"path": str(folder)}) if part.target.is_durable else {}


def _serial(part: _Part) -> tuple[Callable[..., Any]]:
    """Return a function that makes the part; settings of the rules override its own."""
    return (lambda cfg, *args: part.target(deep_merge_dicts(part.cfg, cfg), *args),)


def _drawing(kind: str) -> Callable[[_Part], tuple[Any, ...]]:
    return lambda part: (kind, lambda capacity, seed, _folder: part.create({}, capacity, seed))


def _storage(part: _Part) -> tuple[Any, ...]:
    def make(capacity: int, seed: int, folder: Path) -> Any:
        return part.create(_folder_of(part, folder), capacity)

    return "storage", make


# Kind -> (X for ``dingsdk.testing.check_X``, a function that returns its arguments).
_RULES: Mapping[str, tuple[str, Callable[[_Part], tuple[Any, ...]]]] = {
    "transports": ("transport", lambda part: (lambda run_dir: part.create({}, run_dir),)),
    "buffers": ("buffer", lambda part: (part.create,)),
    "storages": ("part", _storage),
    "samplers": ("part", _drawing("sampler")),
    "removers": ("part", _drawing("remover")),
    "limiters": ("part", lambda part: ("limiter", lambda _, seed, __: part.create({}, seed))),
    "collectors": ("collector", _serial),
    "evaluators": ("evaluator", _serial),
    "env_managers": ("env_manager", _serial),
    "policies": ("policy", _policy_maker),
    "commanders": ("commander", lambda part: (part.target,)),
    "learner_hooks": ("extension", lambda part: ("learner hook", _hook_maker(part))),
    "env_wrappers": ("extension", lambda part: ("wrapper", _wrapper_maker(part))),
    "commands": ("extension", lambda part: ("command", part.target)),
    OBSERVERS: ("extension", lambda part: ("observer", part.target)),
}


def _family(part: _Part) -> Collection[str]:
    """Return the capabilities that follow from the class if it declares none."""
    if part.kind == "collectors":
        counts = {"n_sample": {"samples"}, "n_episode": {"episodes"}}
        return counts.get(part.target.counts, frozenset())
    if part.kind == "env_managers":
        from dingsdk.testing.env_rules import ENV_CAPABILITIES

        found = asdict(_build_manager(part).capabilities)
        return {name for name in ENV_CAPABILITIES if found.get(name) is True}
    if part.kind == "learner_hooks":
        return {"args"}
    if part.kind == "samplers":
        from dingsdk.worker import replay_buffer as bases

        families = {
            bases.RowSampler: {"rows"},
            bases.PrioritySampler: {"priorities"},
            bases.SequenceSampler: {"sequences"},
        }
        return next((c for base, c in families.items() if issubclass(part.target, base)), ())
    return frozenset()


def _name(target: Any) -> str:
    return f"{target.__module__}.{getattr(target, '__qualname__', target)}"
