"""``dingsdk check`` reports errors in a plugin and in its own arguments."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dingsdk.cli import main
from dingsdk.plugins import KINDS, PluginManager, use_manager
from dingsdk.testing import check_plugin
from tests.unit.plugins.conftest import write_dist

Provide = Callable[..., None]

HEAD = """
    from dingsdk import hookimpl
    from dingsdk.envs import InProcessEnvManager
    from dingsdk.worker.replay_buffer import Limiter, Remover, RowSampler
    from dingsdk.worker import LearnerHook, NaiveReplayBuffer

    @hookimpl
    def dingsdk_register_{kind}(registry):
        registry.register("mine", Mine)
"""


@pytest.fixture
def provide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provide]:
    """Return ``provide(kind, source)``: it installs ``Mine`` from the source as type ``mine``."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)

    def provide(kind: str, source: str, head: str = HEAD) -> None:
        text = textwrap.dedent(head).format(kind=kind) + textwrap.dedent(source)
        write_dist(site, "acme-mine", {f"dingsdk.{kind}": {"mine": "acme_mine"}}, acme_mine=text)

    with use_manager(PluginManager()):
        yield provide
    sys.modules.pop("acme_mine", None)


def failed(plugin: str) -> list[tuple[str, str]]:
    return [(s.name, s.detail) for s in check_plugin(plugin).steps if s.outcome == "failed"]


NEVER = """
    class Mine(Limiter):
        config = {"type": "mine"}

        def can_sample(self, n):
            return False
"""


def test_broken_rules_are_named_and_counted(
    provide: Provide, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    provide("limiters", NEVER)

    assert main(["check", "acme-mine", "--badge", "badge.json"]) == 1

    lines = capsys.readouterr().out.splitlines()
    broken = [line for line in lines if line.startswith("failed") and " rule " in line]
    badge = json.loads((tmp_path / "badge.json").read_text())
    assert broken
    assert badge["message"].startswith(f"{len(broken)} of ")
    assert (badge["schemaVersion"], badge["label"], badge["color"]) == (1, "dingsdk", "red")


def test_plugin_that_keeps_all_rules_passes(
    provide: Provide, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    provide("limiters", NEVER.replace("False", "self.size > 0"))

    assert main(["check", "limiters:mine", "--json", "--badge", "badge.json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["passed"] is True
    assert [step["name"] for step in told["steps"]] == ["import", "interface", "build", "rules"]
    assert json.loads((tmp_path / "badge.json").read_text())["color"] == "brightgreen"


WRONG = {
    "import": ("samplers", "raise RuntimeError('at the top')", "at the top"),
    "no hookimpl": (
        "samplers",
        "class Mine: pass\ndingsdk_register_samplers = lambda registry: None",
        "defines dingsdk_register_samplers without @hookimpl",
    ),
    "no subclass": ("samplers", "class Mine: pass", "no subclass of dingsdk.worker.replay_buffer"),
    "missing methods": ("removers", "class Mine(Remover): pass", "lacks allot, by_age, clear"),
    "build": (
        "limiters",
        "class Mine(Limiter):\n"
        "    def __init__(self, cfg, seed=None): raise ValueError('no limit')\n"
        "    def can_sample(self, n): ...",
        "ValueError: no limit",
    ),
    "env manager": (
        "env_managers",
        "class Mine(InProcessEnvManager):\n    def __init__(self, cfg, env_fns): self.cfg = cfg",
        "was given 2 functions that make envs, and has no envs",
    ),
    "hook": (
        "learner_hooks",
        "class Mine(LearnerHook):\n    def __call__(self, engine): engine.no_such_attribute",
        "no_such_attribute",
    ),
    "command": ("commands", "def Mine(): pass", "no click command"),
    "wrapper": (
        "env_wrappers",
        "class Mine:\n    def __init__(self, env): raise ValueError('no env')",
        "no env",
    ),
    "policy": (
        "policies",
        "class Mine:\n    def __init__(self, cfg, enable_field=None, seed=None): pass",
        "extend dingsdk.policy.BasePolicy",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_check_ends_at_the_step_that_fails(name: str, provide: Provide) -> None:
    kind, source, words = WRONG[name]
    provide(kind, source)

    ((_, detail),) = failed(f"{kind}:mine")

    assert words in detail


def test_observer_without_hooks_fails(provide: Provide) -> None:
    provide("plugins", "VALUE = 1", head="")

    ((step, detail),) = failed("observer:mine")

    assert step == "import"
    assert "implements no hook" in detail


def test_kind_may_be_given_by_its_template_name(provide: Provide) -> None:
    provide("limiters", "class Mine(Limiter):\n    def can_sample(self, n): return self.size > 0")

    assert not failed("limiter:mine")


def test_type_of_two_distributions_fails_with_the_names_of_both(
    provide: Provide, tmp_path: Path
) -> None:
    provide("limiters", "class Mine(Limiter):\n    def can_sample(self, n): return self.size > 0")
    write_dist(tmp_path / "site", "acme-other", {"dingsdk.limiters": {"mine": "acme_absent"}})

    ((step, detail),) = failed("limiters:mine")

    assert step == "import"
    assert "acme-mine" in detail
    assert "acme-other" in detail
    assert failed("acme-mine") == failed("acme-other") == [(step, detail)]


def test_type_with_the_key_of_a_builtin_type_fails(provide: Provide, tmp_path: Path) -> None:
    provide("limiters", "class Mine(Limiter): pass")
    entry_points = tmp_path / "site" / "acme_mine-1.0.dist-info" / "entry_points.txt"
    entry_points.write_text("[dingsdk.limiters]\nmin_size = acme_mine\n")
    module = tmp_path / "site" / "acme_mine.py"
    module.write_text(module.read_text().replace('"mine"', '"min_size"'))

    ((step, detail),) = failed("acme-mine")

    assert (step, detail) == (
        "import", "configs get the type 'min_size' of dingsdk-rl; choose another key"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        ("samplers:unifrom", "did you mean 'uniform'"),
        ("smaplers:uniform", "did you mean 'samplers'"),
        ("dingsdk-rl-in-memry", "did you mean 'dingsdk-rl-in-memory'"),
        ("", "kind:type"),
        (":", "kinds"),
        ("policies:", "kind:type"),
    ],
)
def test_unknown_plugin_gives_one_line_and_exit_code_2(
    plugin: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", plugin]) == 2

    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    assert words in told


@pytest.mark.parametrize("place", ["absent/badge.json", "."])
def test_badge_that_cannot_be_written_is_an_error(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["check", "limiters:min_size", "--badge", place]) == 2
    assert "--badge" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


LEFT_OUT = {
    *("async_subprocess", "subprocess"),  # minutes; `tests/contracts` checks them
    "auto",  # a storage that stands for `array` or `object`
    *("normalize_obs", "record_video"),  # need a file or a folder
}
GIVEN: Mapping[str, Mapping[str, Any]] = {
    "atari": {"env": {"env_id": "ale_py:ALE/Pong-v5", "kwargs": {"frameskip": 1}}},
    "clip_reward": {"config": {"min_reward": -1, "max_reward": 1}},
    "frame_stack": {"config": {"stack_size": 4}},
}
"""What functions and classes of gymnasium need, which have no ``contract_config``."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_builtin_types_pass(kind: str) -> None:
    with use_manager(PluginManager()) as manager:
        keys = set(manager.builtin_types(kind)) - LEFT_OUT
        found = {key: check_plugin(f"{kind}:{key}", **GIVEN.get(key, {})) for key in sorted(keys)}

    assert all(report.is_passed for report in found.values()), found
    for key, report in found.items():
        reasons = [step.detail for step in report.steps if step.outcome == "skipped"]
        assert report.kept or reasons, f"no rule of {kind}:{key} was checked, and no reason given"


def test_values_and_an_env_may_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    values = ["--set", "min_reward=-2", "--set", "max_reward=2"]

    assert main(["check", "env_wrappers:clip_reward", *values, "--env", "Acrobot-v1"]) == 0
    assert "with min_reward=-2, max_reward=2" in capfd.readouterr().out
    assert main(["check", "env_wrappers:clip_reward", *values, "--env", "Acrobt-v1"]) == 1
    assert "Acrobt-v1" in capfd.readouterr().out


def test_part_of_a_module_that_is_not_installed_is_imported_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    source = """
        from dingsdk import hookimpl
        from dingsdk.policy import DQNPolicy

        class Loose(DQNPolicy):
            pass

        @hookimpl
        def dingsdk_register_policies(registry):
            registry.register("loose", Loose)
    """
    (tmp_path / "loose_policy.py").write_text(textwrap.dedent(source))

    with use_manager(PluginManager()):
        assert main(["check", "policies:loose"]) == 2
        assert "import_names" in capfd.readouterr().err
        names = ["--set", 'import_names=["loose_policy"]']
        assert main(["check", "policies:loose", *names]) == 0
        assert main(["check", "policies:lose", *names]) == 1


def test_policy_of_other_spaces_is_checked_with_its_env(provide: Provide) -> None:
    source = """
        from dingsdk.policy import DQNPolicy

        class Mine(DQNPolicy):
            @staticmethod
            def model_from_spaces(observation_space, action_space):
                if observation_space.shape != (6,):
                    raise ValueError("six numbers only")
                return DQNPolicy.model_from_spaces(observation_space, action_space)
    """
    provide("policies", source)

    ((step, detail),) = failed("policies:mine")
    found = check_plugin("policies:mine", env="Acrobot-v1")

    assert step == "build"
    assert "six numbers only" in detail
    assert "--env, or contract_env" in detail
    assert found.is_passed, found.steps


def test_missing_argument_is_named(provide: Provide) -> None:
    provide("env_wrappers", "class Mine:\n    def __init__(self, env, scale): pass")

    ((step, detail),) = failed("env_wrappers:mine")

    assert step == "build"
    assert "missing 1 required positional argument: 'scale'" in detail


@pytest.mark.slow
def test_video_wrapper_is_checked_with_a_folder(tmp_path: Path) -> None:
    env = {"env_id": "CartPole-v1", "kwargs": {"render_mode": "rgb_array"}}
    report = check_plugin("env_wrappers:record_video", {"folder": str(tmp_path / "videos")}, env)

    assert report.is_passed, report.steps
