"""The rules of learner hooks, and the bench that checks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError, HookError
from dingsdk.policy import create_policy
from dingsdk.testing.expect import expect, expect_equal, expect_same, raises
from dingsdk.testing.runner import Contract, RuleBench, RuleBook, collect, needs
from dingsdk.worker import BaseLearner, LearnerHook

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


def train(folder: str, hooks: Sequence[LearnerHook]) -> tuple[Any, dict[str, float]]:
    """Train a new learner with hooks; return its policy's state and the values logged last."""
    learner = small_learner(folder)
    with closing(learner):
        for hook in hooks:
            learner.register_hook(hook)
        learner.call_hook("before_run")
        for _ in range(ITERATIONS):
            learner.train(small_batch(), 0)
        learner.call_hook("after_run")
        return learner.policy.state_dict(), dict(learner.log_vars)


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
        allowed = [each for each in LearnerHook.positions if self._may_be(each)]
        expect(bool(allowed), f"none of the positions {list(LearnerHook.positions)} is allowed")
        return allowed

    def train(self, name: str, hooks: Sequence[LearnerHook]) -> tuple[Any, dict[str, float]]:
        """Train a new learner with hooks, as the function ``train``."""
        return train(str(self.folder / name), hooks)

    def added(self, position: str) -> dict[str, float]:
        """Return the values that a new hook adds to ``log_vars``."""
        _, own = self.train("without", [])
        _, found = self.train("with", [self.hook(position)])
        return {name: value for name, value in found.items() if name not in own}

    def _may_be(self, position: str) -> bool:
        try:
            self.hook(position).close()
        except HookError:
            return False
        return True


def rule_01_keeps_its_arguments(bench: HookBench) -> None:
    """A hook has the ``name``, ``priority`` and ``position`` that it was made with."""
    for position in bench.positions():
        hook = bench.hook(position, 7)
        found = (hook.name, hook.priority, hook.position)
        expect_equal(found, ("rule", 7, position), "name, priority and position")


def rule_02_wrong_positions_are_refused(bench: HookBench) -> None:
    """An unknown position and a negative priority raise HookError."""
    with raises("an unknown position", HookError):
        bench.hook("no_such_position")
    with raises("the priority -1", HookError):
        bench.hook(bench.positions()[0], -1)


@needs("args")
def rule_03_unknown_arguments_are_refused(bench: HookBench) -> None:
    """An unknown key of ``ext_args`` raises ConfigError."""
    with raises("an unknown key of ext_args", ConfigError):
        bench.hook(bench.positions()[0], no_such_argument=1)


@needs("observes")
def rule_05_leaves_training_as_it_is(bench: HookBench) -> None:
    """Training gives the same policy with the hook as without it."""
    expected, _ = bench.train("without", [])
    for position in bench.positions():
        found, _ = bench.train(position, [bench.hook(position)])
        expect_same(found, expected, f"the policy trained with the hook {position}")


@needs("repeatable")
def rule_06_hooks_share_nothing(bench: HookBench) -> None:
    """The hook of a second learner logs the same values as the hook of the first."""
    for position in bench.positions():
        first, second = (bench.added(position) for _ in range(2))
        expect_equal(second, first, f"what the hook {position} of the second learner logged")


def rule_07_logs_numbers(bench: HookBench) -> None:
    """The values that a hook adds to ``log_vars`` are numbers, and their names are strings."""
    for position in bench.positions():
        for name, value in bench.added(position).items():
            is_number = isinstance(value, int | float | np.number)
            expect(isinstance(name, str) and is_number, f"logged {name!r}: {value!r}")


def rule_08_close_may_be_repeated(bench: HookBench) -> None:
    """``close()`` may be called before any use, and twice."""
    hook = bench.hook(bench.positions()[0])
    hook.close()
    hook.close()


HOOK_BOOK: Final = RuleBook(
    collect(__name__),
    {
        "args": "It declares its `ext_args` as the section `Args`.",
        "observes": "Training is the same as without the hook.",
        "repeatable": "What it logs depends only on the training, not on the time.",
    },
    HookBench,
)


class LearnerHookContract(Contract):
    """Contract tests of a learner hook; see ``EXTENSION_RULES``.

    ``make_hook`` adds the arguments that the hook requires to ``ext_args``.
    """

    book = HOOK_BOOK
    maker = "make_hook(name, priority, *, position, ext_args)"
