"""Learner hooks, wrappers, commands and observers with one defect each, for their rules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import click
import gymnasium
from click.shell_completion import CompletionItem

from dingsdk import hookimpl
from dingsdk.config import Section
from dingsdk.errors import UnknownKeyError
from dingsdk.worker import LearnerHook

from .mutant_list import MutantList

MUTANTS = MutantList()
mutant = MUTANTS.mutant


class HookArgs(Section, frozen=True, kw_only=True):
    """Arguments of the hook.

    Attributes:
        weight: Factor for the logged count.
    """

    weight: float = 0.5


class Hook(LearnerHook):
    """A hook that follows all rules; mutants override one of its methods."""

    kind: ClassVar[str] = "learner hook"
    declared: ClassVar[frozenset[str]] = frozenset({"args", "observes", "repeatable"})
    Args = HookArgs

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.count = 0

    def __call__(self, engine: Any) -> None:
        self.count += 1
        engine.add_log_vars({"count": self.count * self.args.weight})

    @classmethod
    def made(cls) -> Any:
        return cls


@mutant(1)
class HasItsOwnPriority(Hook):
    def __init__(self, name: str, priority: float, **kwargs: Any) -> None:
        super().__init__(name, priority, **kwargs)
        self.priority = 100


@mutant(2)
class TakesNegativePriorities(Hook):
    def __init__(self, name: str, priority: float, **kwargs: Any) -> None:
        super().__init__(name, abs(priority), **kwargs)


@mutant(2)
class TakesAnyArgument(Hook):
    def __init__(self, *args: Any, ext_args: Any = None, **kwargs: Any) -> None:
        try:
            super().__init__(*args, ext_args=ext_args, **kwargs)
        except UnknownKeyError:
            super().__init__(*args, **kwargs)


@mutant(5)
class ChangesThePolicy(Hook):
    def __call__(self, engine: Any) -> None:
        super().__call__(engine)
        state = engine.policy.state_dict()
        state["model"] = {name: value * 0.5 for name, value in state["model"].items()}
        engine.policy.load_state_dict(state)


@mutant(6)
class CountsForAll(Hook):
    total = 0

    def __call__(self, engine: Any) -> None:
        type(self).total += 1
        engine.add_log_vars({"count": self.total})


@mutant(7)
class LogsText(Hook):
    def __call__(self, engine: Any) -> None:
        engine.log_vars = {**engine.log_vars, "state": "fine"}


@mutant(1)
class ClosesOnce(Hook):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held = ["a file"]

    def close(self) -> None:
        if self.count == 0:
            self.held.pop()


class Wrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that follows all rules; mutants override one of its methods."""

    kind: ClassVar[str] = "wrapper"
    declared: ClassVar[frozenset[str]] = frozenset({"repeatable"})

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.steps = 0

    def reset(self, **kwargs: Any) -> Any:
        self.steps = 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.steps += 1
        obs, reward, *rest = super().step(action)
        return (obs, float(reward) + 0.01 * self.steps, *rest)

    @classmethod
    def made(cls) -> Callable[[Any], Any]:
        return lambda wrap: cls(wrap(gymnasium.make("CartPole-v1")))


@mutant(2)
class ReturnsLessThanItsSpace(Wrapper):
    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return (obs[:2], *rest)


@mutant(3)
class DividesByZero(Wrapper):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, float("inf"), *rest)


@mutant(5)
class CountsOn(Wrapper):
    def reset(self, **kwargs: Any) -> Any:
        return self.env.reset(**kwargs)


@mutant(7)
class DropsOptions(Wrapper):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


@mutant(7)
class StaysOpen(Wrapper):
    def close(self) -> None:
        """Close nothing."""


class Command:
    """A command that follows all rules; mutants change one of its parts."""

    kind: ClassVar[str] = "command"
    declared: ClassVar[frozenset[str]] = frozenset()
    help: ClassVar[str] = "Show the run in the folder RUN."
    settings: ClassVar[Mapping[str, Any]] = {}

    @staticmethod
    def complete(ctx: click.Context, param: click.Parameter, text: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in ("one", "two") if name.startswith(text)]

    @classmethod
    def made(cls) -> click.Command:
        run = click.Argument(["run"], shell_complete=cls.complete)
        option = click.Option(["--json"], is_flag=True, help="Print JSON.")
        return click.Command(
            "show", params=[run, option], help=cls.help, callback=print, **cls.settings
        )


@mutant(1)
class IsALongStory(Command):
    help = f"Show the run in the folder RUN, {'and more ' * 10}"


@mutant(4)
class HasNoHelpOption(Command):
    settings: ClassVar[Mapping[str, Any]] = {"add_help_option": False}


@mutant(6)
class CompletesKnownTextOnly(Command):
    @staticmethod
    def complete(ctx: click.Context, param: click.Parameter, text: str) -> list[CompletionItem]:
        if text == "no-such-text":
            raise LookupError(text)
        return []


class Observer:
    """An observer that follows all rules; mutants override one of its hooks."""

    kind: ClassVar[str] = "observer"
    declared: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self.lines: list[str] = []

    @hookimpl
    def dingsdk_run_started(self, config: Any, run_dir: Any) -> None:
        self.lines.append(f"{config['exp_name']} in {run_dir}")

    @hookimpl
    def dingsdk_after_evaluate(self, mean_return: float) -> None:
        self.lines.append(f"{mean_return:.1f}")

    @hookimpl
    def dingsdk_progress_columns(self) -> Any:
        return {"lines": len(self.lines)}

    @hookimpl
    def dingsdk_configure(self, config: Any) -> None:
        self.policy = config["policy"]["type"]

    @hookimpl
    def dingsdk_after_task(self, task: Any, outcome: Any) -> None:
        self.task = task["name"], task["task_info"]["task_id"], outcome.completed

    @hookimpl
    def dingsdk_after_checkpoint(self, path: Any) -> None:
        self.size_bytes = path.stat().st_size

    @hookimpl
    def dingsdk_read_checkpoint(self, path: Any) -> Any:
        self.size_bytes = path.stat().st_size

    @hookimpl
    def dingsdk_run_finished(self, result: Any) -> None:
        evaluated = [each["mean"] for each in result["evaluations"]]
        self.lines.append(f"{result['run_dir']} {result['mode']} {evaluated} {result['error']}")
        self.lines.clear()

    @classmethod
    def made(cls) -> Any:
        return cls()


@mutant(3)
class CutsTheConfig(Observer):
    @hookimpl
    def dingsdk_run_started(self, config: Any, run_dir: Any) -> None:
        config.pop("seed", None)


@mutant(3)
class NeedsAnEvaluation(Observer):
    @hookimpl
    def dingsdk_run_finished(self, result: Any) -> None:
        self.lines.append(f"{result['last_return']:.1f}")


@mutant(5)
class WorksInOneThread(Observer):
    @hookimpl
    def dingsdk_configure(self) -> None:
        self.thread = threading.current_thread()

    @hookimpl
    def dingsdk_after_evaluate(self, mean_return: float) -> None:
        if threading.current_thread() is not self.thread:
            raise RuntimeError("the file belongs to another thread")


@mutant(3)
class CreatesNoPart(Observer):
    @hookimpl
    def dingsdk_create_component(self, kind: str) -> Any:
        return 5 if kind == "buffers" else None
