"""The rules of the policies, and the bench that checks them."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import numpy as np
import torch

from dingsdk.config import Section
from dingsdk.data import SampleBatch
from dingsdk.data.action_mask import sample_obs
from dingsdk.data.pytree import different_leaves, flatten, map_leaves, named_leaves
from dingsdk.envs.steps import StepColumns, Timestep
from dingsdk.errors import ConfigError, NonFiniteError, SchemaMismatchError
from dingsdk.policy.modes import FIELDS, Policy, piece_of
from dingsdk.policy.scheduled import scheduled_fields, settings_of
from dingsdk.testing.expect import expect, expect_equal, expect_same, raises
from dingsdk.testing.runner import (
    PATIENCE_S,
    Contract,
    ContractReport,
    RuleBench,
    RuleBook,
    collect,
    needs,
)

POLICY_CAPABILITIES: Final[Mapping[str, str]] = {
    "seeded": (
        "The seed decides the initial weights and the exploration, and torch's, numpy's and "
        "Python's own random states do not change."
    ),
    "batched": "The collect mode offers the whole batched form, the eval mode `forward_batch`.",
    "per_step": "Each transition becomes one train sample.",
}
"""The optional capabilities of a policy, and what each promises."""


@dataclass(frozen=True, slots=True)
class PolicyUnderTest:
    """How to make a policy, and the spaces of its envs.

    Attributes:
        make: ``make(enable_field, seed)`` returns a new policy.
        observation_space: gymnasium space of one env's observation.
        action_space: gymnasium space of one env's action.
    """

    make: Callable[[Sequence[str] | None, int], Policy]
    observation_space: Any
    action_space: Any


class PolicyBench(RuleBench[PolicyUnderTest]):
    """The bench of a policy: makes policies, observations of the space, and training data."""

    def __enter__(self) -> Self:
        self._make.observation_space.seed(0)
        return self

    def policy(self, enable_field: Sequence[str] | None = None, seed: int = 0) -> Any:
        """Return a fresh policy."""
        return self._make.make(enable_field, seed)

    def build(self) -> Any:
        return self.policy()

    def observations(self, count: int) -> list[Any]:
        """Return finite observations of the space."""
        space = self._make.observation_space
        return [map_leaves(_finite, sample_obs(space)) for _ in range(count)]

    def by_env(self, count: int = 3) -> dict[int, Any]:
        """Return observations by env id; the ids are 1, 3, 5..."""
        return {2 * env + 1: obs for env, obs in enumerate(self.observations(count))}

    def expect_action(self, action: Any, what: str) -> None:
        """Expect ``action`` to be in the action space."""
        found = np.asarray(_as_arrays(action))
        space = self._make.action_space
        expect(
            found.shape == space.shape and space.contains(found.astype(space.dtype)),
            f"{what} is {found!r}, no action of {space}",
        )

    def setting(self, policy: Policy, envstep: int = 100) -> dict[str, Any]:
        """Return keyword arguments for the collect mode, from the command mode."""
        return dict(policy.command_mode.get_setting_collect({"envstep": envstep}))

    def piece(self, policy: Policy, length: int = 6, *, ends: bool = True) -> list[dict[str, Any]]:
        """Act for ``length`` steps of one env; return the transitions in the dict form."""
        mode, made = policy.collect_mode, []
        obs = self.observations(length + 1)
        for step in range(length):
            done = ends and step == length - 1
            output = mode.forward({5: obs[step]}, **self.setting(policy))[5]
            info = {"terminated": done, "eval_episode_return": 1.0} if done else {}
            timestep = Timestep(obs[step + 1], np.float32(0.5 + step), done, info)
            made.append(mode.process_transition(obs[step], output, timestep))
        return made

    def samples(self, policy: Policy, pieces: int = 3) -> list[Any]:
        """Return train samples in the dict form."""
        found: list[Any] = []
        for _ in range(pieces):
            found += policy.collect_mode.get_train_sample(self.piece(policy))
        return found

    def trained(self, seed: int = 0) -> Any:
        """Return a fresh policy that was trained once."""
        policy = self.policy(seed=seed)
        self.train(policy, self.samples(policy))
        return policy

    def train(self, policy: Policy, samples: Any) -> list[dict[str, Any]]:
        """Train once; return the logged values, one dict per iteration."""
        logs = policy.learn_mode.forward(samples)
        return list(logs) if isinstance(logs, list) else [logs]

    def greedy(self, policy: Policy, obs: Mapping[int, Any]) -> list[Any]:
        """Return the actions of the eval mode."""
        return _actions(policy.eval_mode.forward(obs))


def rule_02_only_modes_that_were_asked_for_are_served(bench: PolicyBench) -> None:
    """A mode that is not in ``enable_field`` raises ConfigError; so does an unknown name."""
    for field in FIELDS:
        policy = bench.policy([field])
        getattr(policy, f"{field}_mode")
        for other in set(FIELDS) - {field}:
            with raises(f"{other}_mode of a policy made for {field}", ConfigError):
                getattr(policy, f"{other}_mode")
    with raises("enable_field=['nothing']", ConfigError):
        bench.policy(["nothing"])


def rule_03_each_env_gets_an_action_from_the_space(bench: PolicyBench) -> None:
    """``forward`` returns an action of the action space for each env in its input.

    Without any env it returns ``{}``. The collect mode accepts the settings that
    ``get_setting_collect`` returns, at any progress.
    """
    policy = bench.policy()
    for envs, envstep in ((3, 0), (3, 1), (3, 10**7), (0, 1)):
        obs, setting = bench.by_env(envs), bench.setting(policy, envstep)
        for what, answers in {
            "collect_mode.forward": policy.collect_mode.forward(obs, **setting),
            "eval_mode.forward": policy.eval_mode.forward(obs),
        }.items():
            expect_equal(sorted(answers), sorted(obs), f"envs in the answer of {what}")
            for env_id, answer in answers.items():
                bench.expect_action(answer["action"], f"{what} for env {env_id}")
    for ask in (policy.command_mode.get_setting_learn, policy.command_mode.get_setting_eval):
        expect(isinstance(ask({"envstep": 3}), dict), "a setting is no dict")


def rule_05_arguments_are_not_written_to(bench: PolicyBench) -> None:
    """Acting, recording, making samples and training do not change their arguments."""
    policy = bench.policy()
    obs = bench.by_env()
    before: Any = copy.deepcopy(obs)
    policy.collect_mode.forward(obs, **bench.setting(policy))
    policy.eval_mode.forward(obs)
    expect_same(obs, before, "observations after acting")
    piece = bench.piece(policy)
    before = copy.deepcopy(piece)
    samples = policy.collect_mode.get_train_sample(list(piece))
    expect_same(piece, before, "transitions after get_train_sample")
    before = copy.deepcopy(samples)
    bench.train(policy, samples)
    expect_same(samples, before, "samples after training")


def rule_06_evaluating_is_repeatable_and_changes_nothing(bench: PolicyBench) -> None:
    """The eval mode gives equal actions for equal observations, and does not change the weights.

    After ``reset`` it gives the same actions again.
    """
    policy, obs = bench.policy(), bench.by_env()
    weights = copy.deepcopy(policy.learn_mode.state_dict())
    first = bench.greedy(policy, obs)
    policy.eval_mode.reset()
    expect_equal(bench.greedy(policy, obs), first, "actions of a second evaluation")
    expect_same(policy.learn_mode.state_dict(), weights, "the state after evaluating")


@needs("seeded")
def rule_08_seed_decides_weights_and_exploration(bench: PolicyBench) -> None:
    """The same seed gives the same weights and actions; another seed gives other weights.

    The actions of the collect mode do not depend on evaluations between its calls. Making a policy,
    acting and training do not change the global random states.
    """
    before, obs = _random_states(), bench.by_env(8)
    same, again, other = (bench.policy(seed=seed) for seed in (7, 7, 8))
    weights = [each.learn_mode.state_dict()["model"] for each in (same, again, other)]
    expect_same(weights[1], weights[0], "weights of the same seed")
    expect(not _is_same(weights[2], weights[0]), "another seed gives the same weights")
    for _ in range(6):
        first, second = (
            _actions(each.collect_mode.forward(obs, **bench.setting(each)))
            for each in (same, again)
        )
        expect_equal(second, first, "actions of the same seed, with evaluations between them")
        again.eval_mode.forward(obs)
    bench.train(same, bench.samples(same))
    for name, state in _random_states().items():
        expect(
            _is_same(state, before[name]),
            f"the global random state of {name} has changed; draw from a generator of the policy, "
            "such as rng of BasePolicy",
        )


def rule_10_observations_that_are_not_finite_are_noticed(bench: PolicyBench) -> None:
    """NaN in an observation raises NonFiniteError, or the output contains NaN.

    Collectors refuse output with NaN; an action that looks valid would hide the fault.
    """
    policy = bench.policy()
    leaves = flatten(bench.observations(1)[0])
    if not any(np.asarray(leaf).dtype.kind == "f" for _, leaf in leaves):
        return  # a space without floats has no NaN
    acting: dict[str, Callable[[Any], Any]] = {
        "collect_mode": lambda obs: policy.collect_mode.forward(obs, **bench.setting(policy)),
        "eval_mode": policy.eval_mode.forward,
    }
    for name, act in acting.items():
        obs = {1: bench.observations(1)[0], 3: map_leaves(_spoilt, bench.observations(1)[0])}
        try:
            answer = act(obs)[3]
        except NonFiniteError:
            continue
        found = [np.asarray(leaf) for _, leaf in flatten(_as_arrays(answer))]
        shown = any(not np.isfinite(leaf).all() for leaf in found)
        expect(shown, f"{name}.forward answered an observation of NaN with {answer}")


def rule_11_reset_takes_all_envs_or_some(bench: PolicyBench) -> None:
    """``reset()`` and ``reset([ids])`` may be called at any time, also for unknown envs.

    After the reset of one env, the actions for the other envs do not change, and the policy acts
    for the reset env as in a first step.
    """
    obs = bench.by_env()
    kept, reset, fresh = (bench.policy() for _ in range(3))
    for policy in (reset, fresh):
        policy.learn_mode.load_state_dict(copy.deepcopy(kept.learn_mode.state_dict()))
    for mode in ("collect_mode", "eval_mode", "learn_mode"):
        getattr(reset, mode).reset()
        getattr(reset, mode).reset([1, 99])
    for policy in (kept, reset):
        policy.eval_mode.forward(obs)
    first, *rest = obs.items()
    reset.eval_mode.reset([first[0]])
    for some, other, what in (
        (dict(rest), kept, "of the other envs"),
        (dict([first]), fresh, "of an env that was reset"),
    ):
        expect_equal(bench.greedy(reset, some), bench.greedy(other, some), f"actions {what}")


def rule_13_pieces_of_any_length_become_samples(bench: PolicyBench) -> None:
    """Samples are made from pieces of whole episodes and from pieces that end before the episode.

    ``process_transition`` returns the transitions: dicts with ``obs``, ``action``, ``reward`` and
    ``done``. An empty piece gives no samples. The samples of a piece do not depend on other pieces.
    With ``per_step``, each transition becomes one sample, in their order, with its action.
    """
    policy = bench.policy()
    make = policy.collect_mode.get_train_sample
    expect_equal(list(make([])), [], "samples of no transitions")
    for ends in (False, True):
        piece = bench.piece(policy, ends=ends)
        for transition in piece:
            missing = {"obs", "action", "reward", "done"} - set(transition)
            expect(not missing, f"process_transition leaves out {sorted(missing)}")
        expect_equal([bool(row["done"]) for row in piece], [False] * 5 + [ends], "done")
        alone = [_as_arrays(row) for row in make(list(piece))]
        expect(len(alone) > 0, "a piece of 6 became no sample")
        make(bench.piece(policy))
        again = [_as_arrays(row) for row in make(list(piece))]
        expect_same(again, alone, "samples made again")
        if bench.has("per_step"):
            actions = [_as_arrays(row["action"]) for row in piece]
            expect_same([row["action"] for row in alone], actions, "actions of the samples")


def rule_15_learning_logs_finite_numbers(bench: PolicyBench) -> None:
    """Training on the policy's samples returns a dict, or a list of dicts, of finite numbers.

    Each dict has the names in ``monitor_vars``; ``priority`` has one number per sample. Training
    changes the model; the collect and eval modes then have the same new weights.
    """
    policy = bench.policy()
    before = copy.deepcopy(policy.learn_mode.state_dict()["model"])
    samples = bench.samples(policy)
    logs = bench.train(policy, samples)
    expect(len(logs) > 0, "learn_mode.forward returned no log at all")
    for log in logs:
        missing = set(policy.learn_mode.monitor_vars()) - set(log)
        expect(
            not missing,
            f"monitor_vars names {sorted(missing)}, which this training did not return; return the "
            "last value, or do not name it",
        )
        for name, value in log.items():
            if name == "priority":
                expect_equal(len(value), len(samples), "priorities")
            elif not name.startswith("["):
                expect(math.isfinite(float(value)), f"training returned {name} {value!r}")
    for _ in range(2):  # the first update may train only a critic
        bench.train(policy, bench.samples(policy))
    after = policy.learn_mode.state_dict()["model"]
    expect(not _is_same(after, before), "three updates changed no weight")
    for name in ("collect_mode", "eval_mode"):
        found = getattr(policy, name).state_dict()["model"]
        expect_same(found, after, f"weights of {name} after training")


def rule_17_samples_that_cannot_be_trained_on_are_refused(bench: PolicyBench) -> None:
    """A batch that lacks required columns raises SchemaMismatchError and changes no weight."""
    policy = bench.policy()
    before = copy.deepcopy(policy.learn_mode.state_dict())
    with raises("training on a foreign column alone", SchemaMismatchError):
        policy.learn_mode.forward(SampleBatch({"foreign": np.zeros(4, np.float32)}))
    expect_same(policy.learn_mode.state_dict(), before, "the state after a refused batch")


def rule_18_state_holds_plain_data(bench: PolicyBench) -> None:
    """The state is a nested dict of tensors, arrays, numbers and text, with the key ``model``."""
    policy = bench.trained()
    for name in ("learn_mode", "collect_mode", "eval_mode"):
        state = getattr(policy, name).state_dict()
        expect("model" in state, f"the state of {name} has no 'model'; it has {sorted(state)}")
        for path, leaf in flatten(state):
            plain = isinstance(leaf, torch.Tensor | np.ndarray | bool | int | float | str)
            expect(
                plain or leaf is None,
                f"{name}.state_dict() holds a {type(leaf).__name__} at {'.'.join(map(str, path))}",
            )


def rule_19_loaded_state_continues_the_training(bench: PolicyBench) -> None:
    """A policy that loads a state acts and trains as the policy that the state is from."""
    first, second = bench.policy(seed=1), bench.policy(seed=2)
    samples = bench.samples(first)
    per_iteration = policy_is_deterministic(bench)
    bench.train(first, samples)
    second.learn_mode.load_state_dict(copy.deepcopy(first.learn_mode.state_dict()))
    obs = bench.by_env(8)
    expect_equal(bench.greedy(second, obs), bench.greedy(first, obs), "actions after loading")
    if per_iteration:
        bench.train(first, samples)
        bench.train(second, samples)
        found, expected = (each.learn_mode.state_dict() for each in (second, first))
        expect_same(found, expected, "the state after training on")


def policy_is_deterministic(bench: PolicyBench) -> bool:
    """Whether training uses no random numbers: from one state, two seeds give the same state."""
    one, other = bench.policy(seed=1), bench.policy(seed=2)
    samples = bench.samples(one)
    other.learn_mode.load_state_dict(copy.deepcopy(one.learn_mode.state_dict()))
    for _ in range(3):  # the first updates may train only a critic
        bench.train(one, samples)
        bench.train(other, samples)
    return _is_same(*(each.learn_mode.state_dict() for each in (one, other)))


def rule_20_published_weights_are_enough_to_act(bench: PolicyBench) -> None:
    """Collect and eval modes load ``{"model": arrays, "iter": version}``, also read-only arrays."""
    first, second = bench.trained(seed=1), bench.policy(["collect", "eval"], seed=2)
    model = map_leaves(_read_only, first.learn_mode.state_dict()["model"])
    obs = bench.by_env(8)
    second.eval_mode.load_state_dict({"model": model, "iter": 3})
    expect_equal(bench.greedy(second, obs), bench.greedy(first, obs), "actions after loading")
    second.collect_mode.load_state_dict({"model": model, "iter": 4})


def rule_21_state_that_does_not_fit_changes_nothing(bench: PolicyBench) -> None:
    """A state that does not fit raises SchemaMismatchError, and the policy does not change.

    Such a state has no ``model``, lacks a weight, or has a weight of another shape.
    """
    policy = bench.trained()
    before = copy.deepcopy(policy.learn_mode.state_dict())
    other = copy.deepcopy(bench.policy(seed=9).learn_mode.state_dict())
    name = sorted(other["model"])[-1]
    misshapen = {**other, "model": {**other["model"], name: np.zeros((3, 1, 7), np.float32)}}
    lacking = {**other, "model": {k: v for k, v in other["model"].items() if k != name}}
    for what, wrong in {
        "no model": {key: value for key, value in other.items() if key != "model"},
        f"{name} of another shape": misshapen,
        f"no {name}": lacking,
    }.items():
        with raises(f"loading a state with {what}", SchemaMismatchError):
            policy.learn_mode.load_state_dict(wrong)
        expect_same(policy.learn_mode.state_dict(), before, f"the state after one with {what}")


def rule_22_workers_find_the_attributes_that_they_read(bench: PolicyBench) -> None:
    """``get_attribute`` has all names that workers read; others raise NotImplementedError."""
    policy = bench.policy()
    for mode, names in {
        policy.collect_mode: ("cfg", "n_sample", "n_episode", "unroll_len", "on_policy"),
        policy.learn_mode: ("cfg", "batch_size", "on_policy", "device"),
        policy.eval_mode: ("cfg",),
    }.items():
        for name in names:
            mode.get_attribute(name)
        with raises("get_attribute('no_such_attribute')", NotImplementedError):
            mode.get_attribute("no_such_attribute")
    expect(isinstance(policy.learn_mode.info(), str), "learn_mode.info() is no text")


@needs("batched")
def rule_24_batched_actions_are_those_of_the_dict_form(bench: PolicyBench) -> None:
    """``forward_batch`` gives numpy columns, one row per env, with the actions of ``forward``."""
    policy, obs = bench.policy(), bench.by_env(4)
    found = policy.eval_mode.forward_batch(_stacked(list(obs.values())), list(obs))
    policy.eval_mode.reset()
    batched = [np.asarray(row).tolist() for row in found["action"]]
    expect_equal(batched, bench.greedy(policy, obs), "batched actions")
    setting = bench.setting(policy)
    columns = policy.collect_mode.forward_batch(_stacked(list(obs.values())), list(obs), **setting)
    for name, column in named_leaves(columns):
        expect(isinstance(column, np.ndarray), f"column {name} is a {type(column).__name__}")
        expect_equal(len(column), len(obs), f"rows of column {name}")
    for row, env_id in enumerate(obs):
        bench.expect_action(columns["action"][row], f"the batched action of env {env_id}")


@needs("batched")
def rule_25_batched_samples_are_those_of_the_dict_form(bench: PolicyBench) -> None:
    """Concatenated pieces give the same samples as each piece alone in the dict form."""
    policy = bench.policy()
    mode = policy.collect_mode
    second = 4 if piece_of(mode) == "unroll" else 3  # unrolls have one length
    pieces = [bench.piece(policy, 4), bench.piece(policy, second, ends=False)]
    alone = [_as_arrays(row) for piece in pieces for row in mode.get_train_sample(list(piece))]
    rows = [row for piece in pieces for row in piece]
    ends = np.cumsum([len(piece) for piece in pieces])
    together = mode.make_samples(SampleBatch.from_rows(rows).columns, ends)
    rows_together = [_as_arrays(dict(row)) for row in together]
    for one, other in zip(flatten(rows_together), flatten(alone), strict=True):
        # A network may round differently for another number of rows.
        is_close = np.allclose(one[1], other[1], rtol=1e-5, atol=1e-5, equal_nan=True)
        expect(one[0] == other[0] and is_close, f"batched sample {one}, not {other}")


@needs("batched")
def rule_26_batched_transitions_record_episode_ends(bench: PolicyBench) -> None:
    """``make_transitions`` records ``final_obs`` as the next observation, and ends as ``done``."""
    policy = bench.policy()
    obs, after = (_stacked(bench.observations(3)) for _ in range(2))
    output = policy.collect_mode.forward_batch(obs, [0, 1, 2], **bench.setting(policy))
    step = StepColumns(
        obs=_stacked(bench.observations(3)),
        final_obs=after,
        reward=np.arange(3, dtype=np.float32),
        terminated=np.array([False, True, False]),
        truncated=np.array([False, False, True]),
    )
    made = policy.collect_mode.make_transitions(obs, output, step)
    expect_equal(np.asarray(made["reward"]).tolist(), [0.0, 1.0, 2.0], "rewards")
    expect_equal(np.asarray(made["done"]).tolist(), [False, True, True], "done")
    if "next_obs" in made:
        expect_same(made["next_obs"], after, "what came next")


def rule_27_numbers_that_may_be_schedules_are_used(bench: PolicyBench) -> None:
    """Each number that ``section`` declares as ``Scheduled`` is read by ``learn`` each time.

    Or it is a setting of an optimizer in ``state``. A schedule of another number would do nothing.
    """
    policy = bench.policy()
    section = getattr(policy, "section", None)
    if not isinstance(section, Section):
        return
    batches = [bench.samples(policy) for _ in range(3)]  # the first update may train only a critic
    read: set[str] = set()
    policy.section = _Recorded(section, "", read)
    for samples in batches:
        bench.train(policy, samples)
    settings = [each.value for part in policy.state().values() for each in settings_of(part)]
    for holder, name, path in scheduled_fields(section):
        value = getattr(holder, name)
        expect(
            path in read or any(value is each or value == each for each in settings),
            f"{path} is declared as Scheduled, but learn does not read self.section.{path}, and no "
            "optimizer in state was made with it; declare it as a plain number",
        )


class _Recorded:
    """A section that records the paths of the fields that are read."""

    def __init__(self, section: Section, path: str, read: set[str]) -> None:
        self._section, self._path, self._read = section, path, read

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._section, name)
        self._read.add(self._path + name)
        if isinstance(value, Section):
            return _Recorded(value, f"{self._path}{name}.", self._read)
        return value


POLICY_BOOK: Final = RuleBook(collect(__name__), POLICY_CAPABILITIES, PolicyBench)
POLICY_RULES: Final = POLICY_BOOK.rules
"""All rules of the policies, ordered by number."""
check_policy_rule = POLICY_BOOK.check_rule


def check_policy(
    make: Callable[[Sequence[str] | None, int], Policy],
    observation_space: Any,
    action_space: Any,
    *,
    capabilities: Collection[str] = (),
    patience_s: float = PATIENCE_S,
) -> ContractReport:
    """Check a policy against every rule, as ``RuleBook.check``.

    Args:
        make: ``make(enable_field, seed)`` returns a new policy, e.g.
            ``lambda fields, seed: MyPolicy(CFG, enable_field=fields, seed=seed)``.
        observation_space: gymnasium space of one env's observation.
        action_space: gymnasium space of one env's action.
        capabilities: Which of ``POLICY_CAPABILITIES`` the policy has.
        patience_s: How many seconds to wait for something that must happen.
    """
    tested = PolicyUnderTest(make, observation_space, action_space)
    return POLICY_BOOK.check(tested, capabilities=capabilities, patience_s=patience_s)


def _finite(leaf: Any) -> Any:
    array = np.asarray(leaf)
    if array.dtype.kind != "f":
        return leaf
    return np.clip(array, -10, 10).astype(array.dtype)


def _spoilt(leaf: Any) -> Any:
    array = np.array(leaf)
    if array.dtype.kind == "f":
        array[...] = np.nan
    return array


def _read_only(leaf: Any) -> Any:
    array = np.array(_as_arrays(leaf))
    array.flags.writeable = False
    return array


def _as_arrays(tree: Any) -> Any:
    return map_leaves(
        lambda leaf: leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf, tree
    )


def _is_same(one: Any, other: Any) -> bool:
    return not different_leaves(dict(flatten(one)), dict(flatten(other)))


def _actions(answers: Mapping[int, Any]) -> list[Any]:
    return [_as_arrays(answers[env_id]["action"]).tolist() for env_id in sorted(answers)]


def _stacked(rows: Sequence[Any]) -> Any:
    return SampleBatch.from_rows([{"obs": row} for row in rows]).columns["obs"]


def _random_states() -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "numpy": [str(kind), keys, *rest],
        "random": repr(random.getstate()),
    }


class PolicyContract(Contract):
    """Base class of a policy's contract tests; see ``POLICY_CAPABILITIES``.

    ``make_policy(enable_field, seed)`` returns a new policy.

    Attributes:
        observation_space: gymnasium space of one env's observation.
        action_space: gymnasium space of one env's action.
    """

    book = POLICY_BOOK
    maker = "make_policy(enable_field, seed)"
    observation_space: ClassVar[Any]
    action_space: ClassVar[Any]

    def _part(self) -> Any:
        return PolicyUnderTest(super()._part(), self.observation_space, self.action_space)
