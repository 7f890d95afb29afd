"""Checks of whole plugins: imports and builds each part, and checks it against its rules."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dingsdk.config import config_type, deep_merge_dicts, defaults_of
from dingsdk.errors import PluginLoadError, error_text, listing, raised_at
from dingsdk.plugins import KINDS, TEMPLATES, PluginManager, default_manager
from dingsdk.plugins.interfaces import describe_interface, name_of
from dingsdk.plugins.kinds import NAMES, OBSERVERS
from dingsdk.plugins.registry import unknown
from dingsdk.plugins.switches import is_named
from dingsdk.testing.expect import RuleBroken
from dingsdk.testing.runner import PATIENCE_S, ContractError, RuleResult, book_of

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

    def __str__(self) -> str:
        """Return a line for each step that failed."""
        failed = (step for step in self.steps if step.outcome == "failed")
        return "\n".join(f"{step.part} {step.name}: {step.detail}" for step in failed)

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
    """A part under check; ``owner`` is its distribution, if that is what is checked.

    ``results`` has the results of the rules that apply.
    """

    kind: str
    key: str
    owner: str
    manager: PluginManager
    asked: Mapping[str, Any]
    env: str | Mapping[str, Any] | None
    target: Any = None
    family: Collection[str] = ()
    results: Sequence[RuleResult] = ()

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
        own = getattr(self.target, "contract_config", {})
        return deep_merge_dicts(own, self.asked)

    def create(self, over: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return self.manager.create(self.kind, deep_merge_dicts(self.cfg, over), *args, **kwargs)

    @property
    def capabilities(self) -> Collection[str]:
        declared: Collection[str] | None = getattr(self.target, "contract_capabilities", None)
        return self.family if declared is None else declared


def check_plugin(
    name: str,
    config: Mapping[str, Any] | None = None,
    env: str | Mapping[str, Any] | None = None,
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
        env: The env to use instead of ``contract_env``: its id, or a section ``env``.

    Raises:
        UnknownPluginError: there is no such type or distribution.
    """
    manager = default_manager()
    manager.forget_adverts()
    asked = config or {}
    found = list(_find(name, manager, asked.get("import_names") or ()))
    parts = [_Part(kind, key, owner, manager, asked, env) for kind, key, owner in found]
    steps = tuple(step for part in parts for step in _check(part))
    errors = [result.error for part in parts for result in part.results]
    kept = errors.count(None)
    return PluginReport(name, steps, kept, len(errors) - kept)


def _find(
    name: str, manager: PluginManager, import_names: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield kind, type key, and the distribution if its parts are checked, of each part."""
    kind, is_part, key = name.partition(":")
    if is_part:
        template = TEMPLATES.get(kind)
        group = template.group if template else kind
        if group != OBSERVERS:
            manager.registry(group)  # raises for an unknown kind
        adverts = manager.adverts(group)
        known = manager.known(group) if group in KINDS else [advert.key for advert in adverts]
        if not (import_names or key in known or manager.adverts(group, key)):
            raise unknown(group, key, known, _ADVICE)
        yield group, key, ""
        return
    own = [advert for advert in manager.adverts() if is_named([name], [advert.distribution])]
    if not own:
        installed = sorted({advert.distribution for advert in manager.adverts()})
        raise unknown("installed plugins", name, installed, _ADVICE)
    for advert in own:
        is_shared = advert.kind == OBSERVERS and len(manager.adverts(OBSERVERS, advert.key)) > 1
        key = f"{advert.key}@{advert.distribution}" if is_shared else advert.key
        yield advert.kind, key, advert.distribution


_ADVICE = (
    " Check a plugin as kind:type, such as policies:mine, or by the name of its distribution; add "
    "--set 'import_names=[\"module\"]' for a module that is not installed."
)


def _check(part: _Part) -> Iterator[Step]:
    for name, step in _STEPS.items():
        try:
            outcome, detail = step(part)
        except Exception as error:
            is_told = isinstance(error, PluginLoadError | RuleBroken)
            text = str(error) if is_told else f"{error_text(error)}{raised_at(error)}"
            outcome, detail = "failed", text
        if detail:
            yield Step(str(part), name, outcome, detail)
        if outcome == "failed":
            break
    for result in part.results:
        if result.error is not None:
            detail = f"{result.rule.title}: {error_text(result.error)}"
            yield Step(str(part), f"rule {result.rule.number}", "failed", detail)


def _import(part: _Part) -> tuple[Outcome, str]:
    part.target = part.manager.import_part(
        part.kind, part.key, part.asked.get("import_names") or ()
    )
    if part.kind == NAMES:
        return "ok", str(part.target.__module__)
    if part.kind == OBSERVERS:
        return "ok", str(part.target.__name__)
    entry = part.manager.registry(part.kind).entry(part.key)
    if part.owner and entry and entry.owner != part.owner:
        raise PluginLoadError(
            f"configs get the type {part.key!r} of {entry.owner}; choose another key",
            kind=part.kind,
            plugin=part.owner,
        )
    return "ok", f"{name_of(part.target)}, from {entry.owner if entry else 'unknown'}"


def _build(part: _Part) -> tuple[Outcome, str]:
    if part.kind not in _MAKERS:
        return "ok", ""
    book, make = book_of(part.kind), _MAKERS[part.kind](part)
    with (
        tempfile.TemporaryDirectory(prefix="dingsdk-check-") as folder,
        book.bench(make, Path(folder), (), PATIENCE_S) as bench,
    ):
        made = bench.build()
        part.family = _family(part, made)
    given = ", ".join(f"{key}={value!r}" for key, value in part.given.items())
    return "ok", "" if made is None else f"with {given or 'its defaults'}"


def _hold_to_rules(part: _Part) -> tuple[Outcome, str]:
    if getattr(part.target, "contract_capabilities", "") is None:
        return "skipped", "those of its kind are not for it, as it says"
    if part.kind not in _MAKERS:
        return "skipped", "" if part.kind == NAMES else "there are none for its kind"
    try:
        make = _MAKERS[part.kind](part)
        report = book_of(part.kind).check(make, capabilities=part.capabilities)
    except ContractError as error:
        report = error.facts["report"]
    part.results = [result for result in report.results if result.applies]
    others = len(report.results) - len(part.results)
    kept = len(part.results) - len(report.broken)
    promised = f"; promises {listing(part.capabilities)}" if part.capabilities else ""
    text = f"{kept} of {len(part.results)} kept, {others} do not apply{promised}"
    return "failed" if report.broken else "ok", text


_STEPS: Mapping[str, Callable[[_Part], tuple[Outcome, str]]] = {
    "import": _import,
    "interface": lambda part: ("ok", describe_interface(part.kind, part.target)),
    "build": _build,
    "rules": _hold_to_rules,
}


def _policy_maker(part: _Part) -> Any:
    """Return how to make the policy, and the first spaces that the policy accepts."""
    from dingsdk.testing.policy_rules import PolicyUnderTest

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
            reasons.append(f"for {observation} and {action}: {error_text(error)}{raised_at(error)}")
            continue
        return PolicyUnderTest(make, observation, action)
    raise RuleBroken(f"{'; '.join(reasons)}. An env with other spaces: --env, or contract_env")


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


def _hook_maker(part: _Part) -> Callable[..., Any]:
    def make(name: str, priority: float, *, position: str, ext_args: Mapping[str, Any]) -> Any:
        ext_args = {**part.given, **ext_args}
        return part.target(name, priority, position=position, ext_args=ext_args)

    return make


def _env_of(part: _Part, default: str = "CartPole-v1") -> Mapping[str, Any]:
    """Return the section of an env for the part."""
    own = part.env or getattr(part.target, "contract_env", default)
    return own if isinstance(own, Mapping) else {"env_id": str(own)}


def _wrapper_maker(part: _Part) -> Callable[..., Any]:
    from dingsdk.envs import EnvFn

    env_fn = EnvFn(_env_of(part))
    return lambda wrap: part.target(wrap(env_fn()), **part.given)


def _storage_maker(part: _Part) -> Callable[..., Any]:
    has_path = "path" in part.target.Config.__struct_fields__
    return lambda capacity, _, folder: part.create(
        {"path": str(folder)} if has_path else {}, capacity
    )


def _serial(part: _Part) -> Callable[..., Any]:
    """Return a function that makes the part; settings of the rules override its own."""
    return lambda cfg, *args: part.target(deep_merge_dicts(part.cfg, cfg), *args)


def _drawing(part: _Part) -> Callable[..., Any]:
    return lambda capacity, seed, _folder, **options: part.create(options, capacity, seed)


# Kind -> a function that returns how its rules make the part.
_MAKERS: Mapping[str, Callable[[_Part], Any]] = {
    "transports": lambda part: lambda run_dir: part.create({}, run_dir),
    "buffers": lambda part: part.create,
    "storages": _storage_maker,
    "samplers": _drawing,
    "removers": _drawing,
    "limiters": lambda part: lambda _, seed, __: part.create({}, seed),
    "collectors": _serial,
    "evaluators": _serial,
    "env_managers": _serial,
    "policies": _policy_maker,
    "commanders": lambda part: part.target,
    "learner_hooks": _hook_maker,
    "env_wrappers": _wrapper_maker,
    "commands": lambda part: part.target,
    OBSERVERS: lambda part: part.target,
}


def _family(part: _Part, made: Any) -> Collection[str]:
    """Return the capabilities that follow from a part that was made, if it declares none."""
    if part.kind == "collectors":
        counts = {"n_sample": {"samples"}, "n_episode": {"episodes"}}
        return counts.get(part.target.counts, frozenset())
    if part.kind == "env_managers":
        from dingsdk.testing.env_rules import ENV_CAPABILITIES

        found = asdict(made.capabilities)
        return {name for name in ENV_CAPABILITIES if found.get(name) is True}
    return frozenset()
