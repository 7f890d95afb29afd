"""The rules of the serial evaluators that play episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from dingsdk.errors import ConfigError, NotSetError
from dingsdk.testing import collector_rules
from dingsdk.testing.expect import expect, expect_equal, raises
from dingsdk.testing.runner import Contract, RuleBook, collect, needs

EVALUATOR_CAPABILITIES: Final[Mapping[str, str]] = {
    "waits": "An env that has played its share of episodes is not stepped any more.",
}
"""The optional capabilities of an evaluator, and what each promises."""

RETURNS = "eval_episode_return"


class EvaluatorBench(collector_rules.SerialBench):
    """The bench of an evaluator; an episode of length n has the return n (n + 1) / 2."""

    cfg: ClassVar = {"n_episode": 2}
    method = "eval"

    def saved(self, evaluator: Any, train_iter: int) -> list[str]:
        """Evaluate; return the names that ``save_ckpt_fn`` was called with."""
        names: list[str] = []
        evaluator.eval(names.append, train_iter=train_iter)
        return names


def rule_01_plays_as_many_episodes_as_asked_for(bench: EvaluatorBench) -> None:
    """``eval(n_episode=n)`` returns ``n`` returns and their mean; the config has the default.

    A missing ``n_episode`` raises NotSetError, fewer episodes than envs raise ConfigError.
    """
    evaluator = bench.ready(((2,), (3,)), n_episode=4)
    for count, expected in ((3, [3.0, 3.0, 6.0]), (None, [3.0, 3.0, 6.0, 6.0])):
        _, info = evaluator.eval(n_episode=count)
        expect_equal(sorted(info[RETURNS]), expected, f"{RETURNS} of {count} episodes")
        expect_equal(info[f"{RETURNS}_mean"], sum(expected) / len(expected), "their mean")
    evaluator = bench.ready()
    with raises("no n_episode", NotSetError):
        evaluator.eval()
    with raises("fewer episodes than envs", ConfigError):
        evaluator.eval(n_episode=1)


def rule_03_evaluations_begin_with_new_episodes(bench: EvaluatorBench) -> None:
    """Each evaluation starts with a reset of envs and policy; returns are of whole episodes.

    Episodes are divided evenly among the envs in advance, whatever their lengths are.
    ``policy.reset([env_id])`` is called for each episode that ended, ``policy_kwargs`` are passed
    to each ``forward``, and observer hooks are called with the mean, iteration and env steps.
    """
    evaluator = bench.ready(((2,), (9,)), n_episode=6)
    for train_iter in range(3):
        bench.policy.resets.clear()
        _, info = evaluator.eval(train_iter=train_iter, envstep=40, policy_kwargs={"eps": 0.25})
        expect_equal(sorted(info[RETURNS]), [3.0] * 3 + [45.0] * 3, "returns of an evaluation")
        first, *others = bench.policy.resets
        expect(first is None, "the policy was not reset before the evaluation")
        found = sorted(env_id for ids in others for env_id in ids or ())
        expect_equal(found, [0, 0, 0, 1, 1, 1], "resets of envs")
    told = [(24.0, train_iter, 40) for train_iter in range(3)]
    expect_equal(bench.observer.evaluations, told, "evaluations reported to the observer")
    for _, kwargs in bench.policy.asked:
        expect_equal(kwargs, {"eps": 0.25}, "keyword arguments of forward")


def rule_05_failed_episode_is_played_again(bench: EvaluatorBench) -> None:
    """An episode in which the env failed does not count; another is played instead."""
    evaluator = bench.ready(((4,), (3,)), (0, 1, 2), n_episode=2)
    _, info = evaluator.eval()
    expect_equal(sorted(info[RETURNS]), [6.0, 10.0], "returns after a failure")


def rule_07_better_policies_are_saved(bench: EvaluatorBench) -> None:
    """``save_ckpt_fn("ckpt_best")`` is called only if the mean is better than all before.

    Any trained policy (``train_iter`` other than 0) counts as better than the untrained policy.
    """
    # Each evaluation resets the envs first, so only every second episode counts: 4, 4, 2, 6 steps.
    lengths = (1, 4, 1, 4, 1, 2, 1, 6)
    evaluator = bench.ready((lengths, lengths), n_episode=2)
    found = [bench.saved(evaluator, train_iter) for train_iter in (1, 2, 3, 4)]
    expect_equal(found, [["ckpt_best"], [], [], ["ckpt_best"]], "saved of trained policies")
    evaluator = bench.ready((lengths[2:], lengths[2:]), n_episode=2)
    found = [bench.saved(evaluator, train_iter) for train_iter in (0, 1)]
    expect_equal(found, [["ckpt_best"]] * 2, "saved of the untrained, then of a trained policy")


def rule_08_stop_value_ends_the_training(bench: EvaluatorBench) -> None:
    """The first result is True if the mean reached ``stop_value`` and ``train_iter > 0``."""
    evaluator = bench.ready(((2,), (2,)), n_episode=2, stop_value=3.0)
    found = [evaluator.eval(train_iter=train_iter)[0] for train_iter in (-1, 0, 1)]
    expect_equal([bool(each) for each in found], [False, False, True], "results at the value")
    evaluator = bench.ready(((2,), (2,)), n_episode=2, stop_value=3.5)
    expect(not evaluator.eval(train_iter=1)[0], "a mean below stop_value ended the training")


def rule_09_evaluations_are_due_by_schedule(bench: EvaluatorBench) -> None:
    """``should_eval`` is True at first and every ``eval_freq`` iterations, once each time."""
    evaluator = bench.ready(n_episode=2, eval_freq=10)
    due = [at for at in range(35) for _ in range(2) if evaluator.should_eval(at)]
    expect_equal(due, [0, 10, 20, 30], "iterations that were due")


@needs("waits")
def rule_15_envs_wait_for_others(bench: EvaluatorBench) -> None:
    """An env that has played its share of the episodes is not stepped again."""
    evaluator = bench.ready(((1,), (9,)), n_episode=2)
    evaluator.eval()
    expect_equal(bench.steps, 10, "steps of an evaluation")


# Rules of collectors that are rules of evaluators too.
rule_10_unusable_answer_moves_no_env = collector_rules.rule_09_unusable_answer_moves_no_env
rule_12_env_and_policy_may_come_later = collector_rules.rule_11_env_and_policy_may_come_later

EVALUATOR_BOOK: Final = RuleBook(collect(__name__), EVALUATOR_CAPABILITIES, EvaluatorBench)
EVALUATOR_RULES: Final = EVALUATOR_BOOK.rules
"""All rules of the evaluators, ordered by number."""
check_evaluator = EVALUATOR_BOOK.check
"""Check a serial evaluator that plays episodes against every rule, as ``RuleBook.check``.

It plays with one policy. ``make(cfg, env, policy, tb_logger, exp_name)`` returns a new evaluator,
e.g. the class.
"""


class EvaluatorContract(Contract):
    """Contract tests of a serial evaluator that plays episodes; see ``EVALUATOR_CAPABILITIES``.

    ``make_evaluator`` takes the arguments of ``make`` of ``check_evaluator``; ``env`` may be None.
    """

    book = EVALUATOR_BOOK
    maker = "make_evaluator(cfg, env, policy, tb_logger, exp_name)"
