"""The rules of the other extensions: learner hooks, env wrappers, commands and observers.

The rules of a kind are the functions whose names begin with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import click
import gymnasium
import msgspec
import numpy as np
from click.testing import CliRunner

from dingsdk.data import SampleBatch
from dingsdk.data.pytree import flatten
from dingsdk.envs.make import EnvFn
from dingsdk.envs.spaces import ObservationSchema
from dingsdk.errors import ConfigError, DingError, HookError, error_text
from dingsdk.plugins import PluginManager, Switches, use_manager
from dingsdk.plugins.hooks import DECISIONS
from dingsdk.policy import create_policy
from dingsdk.testing.expect import RuleBroken, expect, expect_equal, expect_same, raises
from dingsdk.testing.runner import (
    Contract,
    ContractReport,
    RuleBench,
    RuleBook,
    book_of,
    collect,
    needs,
)
from dingsdk.worker import BaseLearner, LearnerHook, SoloCommander
from dingsdk.worker.comm.transport import TaskAnswer
from dingsdk.worker.learner.checkpoint import SUFFIX, checkpoint_contents, save_checkpoint

MakeHook = Callable[..., LearnerHook]
"""``make(name, priority, *, position, ext_args)`` returns a new hook, e.g. the class.

It adds the arguments that the hook requires to ``ext_args``.
"""

ITERATIONS = 3


def small_learner(folder: str) -> BaseLearner:
    """Return a learner of a small DQN policy, without hooks."""
    model = {"obs_shape": 2, "action_shape": 2}
    policy = create_policy({"type": "dqn", "model": model}, enable_field=["learn"], seed=0)
    return BaseLearner({"hook": {}}, policy.learn_mode, exp_name=folder)


def small_batch() -> SampleBatch:
    """Return eight transitions for that policy."""
    obs = np.linspace(-1, 1, 16, dtype=np.float32).reshape(8, 2)
    return SampleBatch(
        {
            "obs": obs,
            "next_obs": obs[::-1].copy(),
            "action": np.arange(8) % 2,
            "reward": np.ones(8, np.float32),
            "discount": np.full(8, 0.9, np.float32),
        }
    )


class HookBench(RuleBench[MakeHook]):
    """The bench of a learner hook: makes hooks, and trains learners with them."""

    def hook(self, position: str, priority: float = 50, **ext_args: Any) -> LearnerHook:
        """Return a fresh hook."""
        return self._make("rule", priority, position=position, ext_args=ext_args)

    def build(self) -> Sequence[LearnerHook]:
        hooks = [self.hook(position) for position in self.positions()]
        self.train("build", hooks)
        return hooks

    def positions(self) -> Sequence[str]:
        """Return the positions that the hook accepts."""
        allowed = []
        for each in LearnerHook.positions:
            with suppress(HookError):
                self.hook(each).close()
                allowed.append(each)
        expect(bool(allowed), f"none of the positions {list(LearnerHook.positions)} is allowed")
        return allowed

    def train(self, name: str, hooks: Sequence[LearnerHook]) -> tuple[Any, dict[str, float]]:
        """Train a new learner with hooks; return its policy's state and the values logged last."""
        with closing(small_learner(str(self.folder / name))) as learner:
            for hook in hooks:
                learner.register_hook(hook)
            learner.call_hook("before_run")
            for _ in range(ITERATIONS):
                learner.train(small_batch(), 0)
            learner.call_hook("after_run")
            return learner.policy.state_dict(), dict(learner.log_vars)

    def added(self, position: str) -> dict[str, float]:
        """Return the values that a new hook adds to ``log_vars``."""
        _, own = self.train("without", [])
        _, found = self.train("with", [self.hook(position)])
        return {name: value for name, value in found.items() if name not in own}


def hook_rule_01_keeps_its_arguments(bench: HookBench) -> None:
    """A hook has the ``name``, ``priority`` and ``position`` that it was made with.

    ``close()`` may be called before any use, and twice.
    """
    for position in bench.positions():
        hook = bench.hook(position, 7)
        found = (hook.name, hook.priority, hook.position)
        expect_equal(found, ("rule", 7, position), "name, priority and position")
        hook.close()
        hook.close()


def hook_rule_02_wrong_arguments_are_refused(bench: HookBench) -> None:
    """An unknown position and a negative priority raise HookError.

    With ``args``, an unknown key of ``ext_args`` raises ConfigError.
    """
    with raises("an unknown position", HookError):
        bench.hook("no_such_position")
    with raises("the priority -1", HookError):
        bench.hook(bench.positions()[0], -1)
    if bench.has("args"):
        with raises("an unknown key of ext_args", ConfigError):
            bench.hook(bench.positions()[0], no_such_argument=1)


@needs("observes")
def hook_rule_05_leaves_training_as_it_is(bench: HookBench) -> None:
    """Training gives the same policy with the hook as without it."""
    expected, _ = bench.train("without", [])
    for position in bench.positions():
        found, _ = bench.train(position, [bench.hook(position)])
        expect_same(found, expected, f"the policy trained with the hook {position}")


@needs("repeatable")
def hook_rule_06_hooks_share_nothing(bench: HookBench) -> None:
    """The hook of a second learner logs the same values as the hook of the first."""
    for position in bench.positions():
        first, second = (bench.added(position) for _ in range(2))
        expect_equal(second, first, f"what the hook {position} of the second learner logged")


def hook_rule_07_logs_numbers(bench: HookBench) -> None:
    """The values that a hook adds to ``log_vars`` are numbers, and their names are strings."""
    for position in bench.positions():
        for name, value in bench.added(position).items():
            is_number = isinstance(value, int | float | np.number)
            expect(isinstance(name, str) and is_number, f"logged {name!r}: {value!r}")


HOOK_BOOK: Final = RuleBook(
    collect(__name__, "hook_"),
    {
        "args": "It declares its `ext_args` as the section `Args`.",
        "observes": "Training is the same as without the hook.",
        "repeatable": "What it logs depends only on the training, not on the time.",
    },
    HookBench,
)


class LearnerHookContract(Contract):
    """Contract tests of a learner hook; see ``EXTENSION_RULES``.

    ``make_hook(name, priority, *, position, ext_args)`` returns a new hook, and adds the arguments
    that the hook requires to ``ext_args``.
    """

    book = HOOK_BOOK
    maker = "make_hook(name, priority, *, position, ext_args)"


Env = gymnasium.Env[Any, Any]
MakeWrapped = Callable[[Callable[[Env], Env]], Env]
"""``make(wrap)`` makes an env and returns ``wrap(env)`` in the tested wrapper."""

STEPS = 60


class Witness(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records the calls of ``reset`` and ``close`` that reach the wrapped env."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.resets: list[dict[str, Any]] = []
        self.closed = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.resets.append(kwargs)
        return super().reset(seed=kwargs.get("seed"))

    def close(self) -> None:
        self.closed += 1
        super().close()


class WrapperBench(RuleBench[MakeWrapped]):
    """The bench of a wrapper: makes wrapped envs."""

    witness: Witness

    def build(self) -> Env:
        return self.env()

    def env(self) -> Env:
        """Return a wrapped env; ``self.witness`` is between it and the wrapper."""
        return self.keep(self._make(self._watch))

    def _watch(self, env: Env) -> Env:
        self.witness = Witness(env)
        return self.witness

    def actions(self, env: Env) -> list[Any]:
        """Return random actions for an env; they are the same in each call."""
        env.action_space.seed(0)
        return [env.action_space.sample() for _ in range(STEPS)]

    def episode(self, env: Env, other: Env | None = None) -> list[Any]:
        """Play an episode with seed 3 and these actions; return the results of its steps.

        ``other`` is reset and stepped between the steps.
        """
        rows: list[Any] = [env.reset(seed=3)[0]]
        for action in self.actions(env):
            if other is not None:
                other.reset()
                other.step(action)
            obs, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, np.asarray(reward), terminated, truncated))
            if terminated or truncated:
                break
        return rows


def wrapper_rule_02_observations_fit_their_space(bench: WrapperBench) -> None:
    """The wrapper returns a ``gymnasium.Env`` whose spaces are spaces of gymnasium.

    Observations have the shapes and dtypes of ``observation_space``.
    """
    env = bench.env()
    expect(isinstance(env, gymnasium.Env), f"it is a {type(env).__name__}, no gymnasium.Env")
    for space in (env.observation_space, env.action_space):
        expect(isinstance(space, gymnasium.Space), f"{space!r} is no space")
    schema = ObservationSchema(env.observation_space)
    first, *steps = bench.episode(env)
    for obs in (first, *(row[0] for row in steps)):
        try:
            expected = schema.conform(obs)
        except DingError as error:
            raise RuleBroken(str(error)) from error
        given = dict(flatten(obs))
        for path, leaf in flatten(expected):
            own, found = (str(getattr(each, "dtype", "")) for each in (leaf, given.get(path)))
            name = ".".join(map(str, ("obs", *path)))
            expect(found in ("", own), f"{name} has the dtype {found}, its space {own}")


def wrapper_rule_03_rewards_are_finite(bench: WrapperBench) -> None:
    """Rewards are finite numbers; ``terminated`` and ``truncated`` are bools."""
    _, *steps = bench.episode(bench.env())
    for _, reward, *ends in steps:
        is_number = reward.dtype.kind in "biuf" and bool(np.isfinite(reward).all())
        expect(is_number, f"the reward {reward!r}")
        expect(all(isinstance(each, bool | np.bool_) for each in ends), f"the ends {ends!r}")


@needs("repeatable")
def wrapper_rule_05_reset_starts_over(bench: WrapperBench) -> None:
    """After ``reset`` with a seed, a used env gives the same episode as a new env.

    This holds also if another wrapped env is used between its steps.
    """
    expected = bench.episode(bench.env())
    env = bench.env()
    env.reset(seed=1)
    for action in bench.actions(env)[:5]:
        env.step(action)
    expect_same(bench.episode(env, bench.env()), expected, "the episode after a reset")


def wrapper_rule_07_calls_reach_the_env(bench: WrapperBench) -> None:
    """``reset(seed=, options=)`` passes both arguments on, and ``close()`` closes the wrapped env.

    ``unwrapped`` is the ``unwrapped`` of the wrapped env.
    """
    env = bench.env()
    expect(env.unwrapped is bench.witness.unwrapped, f"unwrapped is {env.unwrapped!r}")
    bench.witness.resets.clear()
    env.reset(seed=9, options={"easy": True})
    expect_equal(len(bench.witness.resets), 1, "resets of the wrapped env")
    given = bench.witness.resets[0]
    expect_equal((given.get("seed"), given.get("options")), (9, {"easy": True}), "passed on")
    env.close()
    expect(bench.witness.closed > 0, "the wrapped env was not closed")


WRAPPER_BOOK: Final = RuleBook(
    collect(__name__, "wrapper_"),
    {"repeatable": "The same seed and the same actions give the same episode."},
    WrapperBench,
)


class EnvWrapperContract(Contract):
    """Base class of the contract tests of an env wrapper.

    See ``EXTENSION_RULES["wrapper"].known_capabilities``. ``make_wrapper(env)`` returns the wrapper
    around an env.

    Attributes:
        env_id: gymnasium id of an env that the wrapper can wrap.
    """

    book = WRAPPER_BOOK
    maker = "make_wrapper(env)"
    env_id: ClassVar[str] = "CartPole-v1"

    def _part(self) -> Any:
        make, env_fn = super()._part(), EnvFn({"env_id": self.env_id})
        return lambda wrap: make(wrap(env_fn()))


SHORT_HELP_CHARS = 90


class CommandBench(RuleBench[click.Command]):
    """The bench of a command: yields the command and its subcommands."""

    def commands(self) -> Iterator[click.Command]:
        """Yield the command and all of its subcommands."""
        waiting = [self._make]
        while waiting:
            command = waiting.pop(0)
            yield command
            if isinstance(command, click.Group):
                waiting += command.commands.values()


def command_rule_01_says_what_it_does(bench: CommandBench) -> None:
    """A command has a help text, and a short help of one line for the list of commands.

    The help text mentions each argument by the name that the usage line shows. Each option that is
    not hidden has a help text.
    """
    for command in bench.commands():
        help_text = (command.help or "").strip()
        expect(bool(help_text), f"{command.name} has no help")
        short = command.get_short_help_str(limit=1000)
        is_line = 0 < len(short) <= SHORT_HELP_CHARS and "\n" not in short
        expect(is_line, f"the short help of {command.name} is {short!r}")
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                name = parameter.make_metavar(click.Context(command)).strip("[].")
                expect(name in help_text, f"the help of {command.name} omits {name}")
            elif isinstance(parameter, click.Option) and not parameter.hidden:
                expect(bool(parameter.help), f"{command.name} {parameter.opts[-1]} has no help")


def command_rule_04_help_is_shown(bench: CommandBench) -> None:
    """``--help`` shows the help and exits with 0.

    An unknown option is an error that names it, with exit code 2.
    """
    for command in bench.commands():
        done = CliRunner().invoke(command, ["--help"])
        expect_equal(done.exit_code, 0, f"exit code of {command.name} --help ({done.exception!r})")
        expect("Usage:" in done.output, f"{command.name} --help shows {done.output!r}")
        done = CliRunner().invoke(command, ["--no-such-option"])
        expect_equal(done.exit_code, 2, f"exit code of {command.name} --no-such-option")
        expect("--no-such-option" in done.output, f"the error of {command.name}: {done.output!r}")


def command_rule_06_completion_never_fails(bench: CommandBench) -> None:
    """Shell completion of each parameter does not fail, also for a text that matches nothing."""
    for command in bench.commands():
        context = click.Context(command)
        for parameter in command.params:
            for text in ("", "no-such-text"):
                parameter.shell_complete(context, text)


COMMAND_BOOK: Final = RuleBook(collect(__name__, "command_"), {}, CommandBench)


class CommandContract(Contract):
    """Base class of a command's contract tests.

    Attributes:
        command: The click command.
    """

    book = COMMAND_BOOK
    maker = "command"
    command: ClassVar[Any]


Facts = dict[str, Any]
_OBJECTS = ("cls", "learner", "manager", "plugin")
"""Arguments that cannot be compared."""
THREADS = 4
WORK = (
    "create_component", "before_task", "after_episode", "after_collect", "after_iter",
    "after_evaluate", "write_checkpoint", "after_checkpoint", "read_checkpoint", "pace_changed",
    "connection_lost", "after_task",
)  # fmt: skip
"""The hooks that workers call, in this process or another one, in order."""
RUN = (
    *("plugin_registered", "convert_config", "configure", "run_started"),
    *WORK,
    *("progress_columns", "should_stop", "result_fields", "run_finished", "unconfigure"),
)
"""The hooks that a short serial run calls, in order."""


class ObserverBench(RuleBench[Any]):
    """The bench of an observer: calls its hooks with arguments like those of a run."""

    def __enter__(self) -> ObserverBench:
        self.manager = PluginManager(Switches(), discover=list)
        self.manager.register_plugin(self._make, "observer")
        return self

    def call(self, hook: str, facts: Mapping[str, Any]) -> Any:
        """Call the observer's implementation of a hook; return None if it has none.

        If it writes no checkpoint, the checkpoint is written as dingsdk writes it.
        """
        answer = None
        for impl in getattr(self.manager.hook, hook).get_hookimpls():
            try:
                answer = self.keep(impl.function(*(facts[name] for name in impl.argnames)))
            except (Exception, SystemExit) as error:
                raise RuleBroken(f"{hook} raised {error_text(error)}") from error
        if hook == "dingsdk_write_checkpoint" and answer is not True:
            path, state = facts["path"], facts["contents"]["state"]
            with use_manager(PluginManager(Switches(), discover=list)):
                save_checkpoint(path.parent, path.stem, state, iteration=2, envstep=64)
        return answer

    @cached_property
    def config(self) -> Any:
        """The compiled config of a run of DQN on CartPole."""
        from dingsdk.pipeline.compile import compile_config

        return compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"type": "dqn"}})

    def calls(
        self, hooks: Sequence[str], name: str, mean_return: float | None = 5.0
    ) -> list[tuple[str, Facts]]:
        """Return hooks with the arguments that they have in a run.

        Args:
            hooks: Some of ``RUN``.
            name: The name of the run and its folder.
            mean_return: The return of its evaluation; None without an evaluation.
        """
        run_dir = self.folder / name
        path = run_dir / "ckpt" / f"ckpt_best{SUFFIX}"
        path.parent.mkdir(parents=True, exist_ok=True)
        config = copy.deepcopy(self.config)
        config.exp_name = name
        section = config.policy.other.replay_buffer
        commander = SoloCommander(config)
        commander.get_learner_task()
        with closing(small_learner(str(run_dir))) as learner:
            weights = learner.policy.state_dict()
        facts: Facts = {
            "plugin": self._make, "name": "observer", "manager": self.manager, "config": config,
            "run_dir": run_dir, "result": self.result(config, run_dir, mean_return),
            "status": {"env_steps": 64, "train_iter": 2, "elapsed_s": 1.0, "buffer_fill": 64,
                       "workers": 1, "last_return": mean_return, "best_return": mean_return,
                       "numbers": {}},
            "kind": "buffers", "type_key": section.type, "cfg": section, "args": (None,),
            "cls": self.manager.class_of("buffers", section),
            "kwargs": {"exp_name": str(run_dir), "instance_name": "buffer"}, "worker_id": "w1",
            "task": {"name": "collector_start_task", "task_info": commander.get_collector_task()},
            "outcome": TaskAnswer("t1", True, {"message": "collector task has started"}),
            "reason": "lease", "source": "collector", "env_id": 0, "episode_return": 5.0,
            "length": 5, "numbers": {"is_success": 1.0}, "sample_count": 32, "envstep": 64,
            "train_iter": 2, "mean_return": 5.0, "relative_pace": 0.2, "is_straggler": True,
            "learner": learner, "iteration": 2, "log_vars": {"total_loss": 0.5}, "path": path,
            "contents": checkpoint_contents(weights, iteration=2, envstep=64),
        }  # fmt: skip
        found = []
        for hook in (f"dingsdk_{each}" for each in hooks):
            names = getattr(self.manager.hook, hook).spec.argnames
            found.append((hook, {key: facts[key] for key in names}))
            if hook == "dingsdk_after_evaluate":
                found[-1][1]["source"] = "evaluator"
        return found

    def result(self, config: Any, run_dir: Path, mean_return: float | None) -> Facts:
        """Return the content of ``result.json`` of that run."""
        from dingsdk.pipeline.context import RunContext, RunStatus
        from dingsdk.pipeline.results import result_record

        context = RunContext(config, run_dir)
        context.recorder.mark_first_step()
        if mean_return is not None:
            context.recorder.add_evaluation([mean_return], 64, 2)
        context.status = lambda: RunStatus(64, 2, elapsed_s=1.0)
        return result_record(run_dir, context.finish("limit", "serial"), seed=config.seed)


def observer_rule_03_serves_one_run_after_another(bench: ObserverBench) -> None:
    """No hook raises in later runs of the process, or in a run without an evaluation.

    Hooks do not change their arguments. Answers of decide hooks can be used: ``should_stop``
    returns a string or None, ``create_component`` an object with the methods of its kind; once
    ``write_checkpoint`` returns True, there is a file. Columns and result fields are dicts; values
    of columns are numbers, strings or None, values of result fields can be encoded as JSON.
    """
    for name, mean_return in (("first", 5.0), ("second", None), ("third", 6.0)):
        for hook, facts in bench.calls(RUN, name, mean_return):
            given = {name: value for name, value in facts.items() if name not in _OBJECTS}
            before = copy.deepcopy(given)
            answer = bench.call(hook, facts)
            expect_same(given, before, f"what {hook} was given, after it,")
            if answer is not None:
                _expect_usable(answer, hook, facts)


def observer_rule_05_threads_may_call_at_once(bench: ObserverBench) -> None:
    """No hook raises in the process of a worker, where ``dingsdk_run_started`` was not called.

    Several threads may call the hooks at the same time, as workers that are threads do. Decide
    hooks are called by one thread.
    """
    bench.call("dingsdk_configure", {"config": bench.config})
    calls = []
    for hook, facts in bench.calls(WORK, "run"):
        if hook in DECISIONS:
            bench.call(hook, facts)
        else:
            calls.append((hook, facts))

    def work() -> None:
        for _ in range(50):
            for hook, facts in calls:
                bench.call(hook, facts)

    bench.together(*[work] * THREADS)


def _expect_usable(answer: Any, hook: str, facts: Mapping[str, Any]) -> None:
    if hook in DECISIONS:
        wrong = DECISIONS[hook](answer, facts)
        expect(not wrong, f"{hook} returned {answer!r:.80}; {wrong}")
    elif hook in ("dingsdk_progress_columns", "dingsdk_result_fields"):
        expect(isinstance(answer, Mapping), f"{hook} returned {answer!r}")
        for name, value in answer.items():
            is_column = isinstance(value, str | int | float | None)
            is_plain = is_column if hook == "dingsdk_progress_columns" else _is_json(value)
            expect(isinstance(name, str) and is_plain, f"{hook} returned {name!r}: {value!r}")


def _is_json(value: Any) -> bool:
    try:
        msgspec.json.encode(value)
    except TypeError:
        return False
    return True


OBSERVER_BOOK: Final = RuleBook(collect(__name__, "observer_"), {}, ObserverBench)


class ObserverContract(Contract):
    """Base class of the contract tests of a plugin that only observes.

    Attributes:
        plugin: The module or object that has the hookimpls.
    """

    book = OBSERVER_BOOK
    maker = "plugin"
    plugin: ClassVar[Any]


EXTENSION_RULES: Final[Mapping[str, RuleBook[Any]]] = {
    "learner hook": HOOK_BOOK,
    "wrapper": WRAPPER_BOOK,
    "command": COMMAND_BOOK,
    "observer": OBSERVER_BOOK,
}
"""The rules and the optional capabilities for each kind of extension."""


def check_extension(kind: str, made: Any, **options: Any) -> ContractReport:
    """Check an extension against every rule for its kind, as ``RuleBook.check``.

    Args:
        kind: ``learner hook``, ``wrapper``, ``command`` or ``observer``.
        made: For a learner hook ``make(name, priority, *, position, ext_args)``, e.g. the class.
            For a wrapper ``make(wrap)``: it makes a new env, calls ``wrap`` with it, and returns
            the result in the wrapper. For a command the click command. For an observer the module
            or object with the hookimpls.
        options: ``capabilities``, from ``EXTENSION_RULES[kind].known_capabilities``, and
            ``patience_s``.
    """
    return book_of(kind).check(made, **options)
