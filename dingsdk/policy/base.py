"""The policy contract: four immutable bundles of callables, one per use.

A policy is built with the modes that are needed (``enable_field``). Workers receive a
mode, never the policy, so that a collector cannot reach the optimizer. ``BasePolicy`` makes the
modes from a few methods; any other object with the four properties of ``Policy`` works too.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from dingsdk.config import Configurable, deep_merge_dicts, to_easydict
from dingsdk.data import SampleBatch, collate
from dingsdk.data.action_mask import draw_legal, legal_actions
from dingsdk.data.capture import capture
from dingsdk.data.collected import COLLECTED, DISCOUNTED_RETURN, with_collected
from dingsdk.data.columns import mismatch, rows_to_columns
from dingsdk.data.pytree import flatten, map_leaves, named_leaves, part_of
from dingsdk.data.seeding import derive_seed
from dingsdk.errors import (
    ConfigError,
    DingError,
    NonFiniteError,
    PolicyOutputError,
    PolicyOutputTypeError,
    SchemaMismatchError,
)
from dingsdk.plugins import default_manager
from dingsdk.policy.adam import Adam
from dingsdk.policy.distributions import ActionBox, BoxModelSection
from dingsdk.policy.memory import Memory
from dingsdk.policy.normalization import Normalizer, scaled_in
from dingsdk.policy.scheduled import ScheduledNumbers
from dingsdk.policy.sections import ModelSection, PolicySection
from dingsdk.policy.threads import isolated, own_settings
from dingsdk.policy.weights import load_state

FIELDS = ("learn", "collect", "eval", "command")

Piece = Literal["steps", "unroll", "episode"]
"""A piece of a trajectory that train samples are made of; see ``BasePolicy.piece``."""

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_UINT8 = np.dtype(np.uint8)


class LearnMode(NamedTuple):
    """Functions for learners. ``forward(data)`` trains on a SampleBatch or a list of dicts.

    ``observe(samples)``, if it is not None, updates statistics of what was collected, such as those
    of ``policy.normalize``. It is called once with all samples: a SampleBatch, a list of dicts, or
    a list of episodes that are either. Off-policy before they are stored, on-policy after the
    training on them.
    """

    forward: Callable[..., dict[str, Any] | list[dict[str, Any]]]
    reset: Callable[..., None]
    info: Callable[[], str]
    monitor_vars: Callable[[], list[str]]
    get_attribute: Callable[[str], Any]
    set_attribute: Callable[[str, Any], None]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]
    observe: Callable[[Any], None] | None = None


class CollectMode(NamedTuple):
    """Functions for collectors: the dict form, and the batched form if it is not None.

    Batched form:
        ``forward_batch(obs, env_ids, **kwargs) -> columns`` with at least ``action [n, ...]``;
            ``obs`` are the numpy columns of the env manager, the result is numpy too.
        ``make_transitions(obs, output, step) -> columns``: the columns to record for one
            step, from the observations, the policy's output and the manager's StepColumns.
        ``make_samples(columns, ends) -> SampleBatch``: train samples from whole trajectory
            pieces laid end to end; ``ends: int64[k]`` are their exclusive end offsets. A piece
            that does not end with ``done`` was cut while the episode went on.
    """

    forward: Callable[..., dict[int, dict[str, Any]]]
    process_transition: Callable[[Any, Any, Any], dict[str, Any]]
    get_train_sample: Callable[[list[dict[str, Any]]], list[Any]]
    reset: Callable[..., None]
    get_attribute: Callable[[str], Any]
    set_attribute: Callable[[str, Any], None]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]
    forward_batch: Callable[..., dict[str, Any]] | None = None
    make_transitions: Callable[..., dict[str, Any]] | None = None
    make_samples: Callable[..., Any] | None = None


class EvalMode(NamedTuple):
    """Functions for evaluators; ``forward_batch`` as in CollectMode, without exploration."""

    forward: Callable[..., dict[int, dict[str, Any]]]
    reset: Callable[..., None]
    get_attribute: Callable[[str], Any]
    set_attribute: Callable[[str, Any], None]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]
    forward_batch: Callable[..., dict[str, Any]] | None = None


class CommandMode(NamedTuple):
    """Functions for commanders: schedules that depend on the progress of the run."""

    get_setting_learn: Callable[[Mapping[str, Any]], dict[str, Any]]
    get_setting_collect: Callable[[Mapping[str, Any]], dict[str, Any]]
    get_setting_eval: Callable[[Mapping[str, Any]], dict[str, Any]]


class Policy(Protocol):
    """The properties that every policy has."""

    @property
    def learn_mode(self) -> LearnMode:
        """Functions for learners."""

    @property
    def collect_mode(self) -> CollectMode:
        """Functions for collectors."""

    @property
    def eval_mode(self) -> EvalMode:
        """Functions for evaluators."""

    @property
    def command_mode(self) -> CommandMode:
        """Functions for commanders."""


class Stateful(Protocol):
    """A part of a policy that is saved: a torch module, or any object with these two methods."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain data."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Restore a state that ``state_dict`` returned."""


class BasePolicy(Configurable, ABC):
    """Makes the four modes of a policy from ``act``, ``samples``, ``learn`` and ``state``.

    A subclass declares its section as ``Config`` (a ``PolicySection``), makes its networks in
    ``build``, and writes the four methods, all in columns. This class handles the dict form, the
    checks of states and batches, devices and seeds.

    Args:
        cfg: The config's ``policy`` section; absent keys take the defaults.
        enable_field: Modes to make; None for all. The modes of one policy share its weights.
        seed: Seed of the initial weights and of the exploration; None for a random one.

    Attributes:
        section: The typed config section. Where a number of it is a schedule, it has the number of
            today: that of the env steps of the latest training.
        device: Device of the networks.
        rng: Random numbers for exploration.
        learns: Whether the policy has the mode ``learn``; only then it needs optimizers.

    Raises:
        ConfigError: a value that cannot work, an unknown mode, or ``cuda`` without a GPU.
    """

    Config: ClassVar[type[PolicySection]] = PolicySection
    section: Any

    monitored: ClassVar[tuple[str, ...]] = ("total_loss",)
    """Names of the values from ``learn`` that are logged and plotted."""
    is_data_parallel: ClassVar[bool] = False
    """Whether several learners can train it together, each on a part of every batch, with averaged
    gradients. Needs losses that are means over the batch, and ``Adam`` objects of this package in
    ``state``."""
    piece: ClassVar[Piece] = "steps"
    """What one call of ``samples`` is given of each env: ``steps`` are steps of one episode, as
    many as ``collect`` asks for; ``unroll`` are exactly ``collect.unroll_len`` steps, across the
    ends of episodes and the loads of newer policies, and one sample; ``episode`` is a whole
    episode. ``policy.traj_len_inf`` makes episodes of steps."""
    trains_on: ClassVar[frozenset[str]] = frozenset({"rows", "sequences"})
    """What the samples of its replay buffer may consist of: ``rows``, ``sequences``, ``episodes``;
    see ``IBuffer.draws``."""
    is_offline: ClassVar[bool] = False
    """Whether it learns only from recorded data: a run needs ``policy.collect.collector.type`` to
    be ``dataset``, or another collector that takes no env steps."""
    state_size: int = 0
    """Length of the recurrent state of an env, set by ``build``; 0 if the policy has none."""

    def __init__(
        self,
        cfg: Mapping[str, Any],
        enable_field: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> None:
        self.section = self.read(cfg, "policy")
        normalize = self.section.normalize
        if normalize.obs and isinstance(self.section.model, ModelSection):
            model = self.section.model.normalized(normalize.clip)
            self.section = msgspec.structs.replace(self.section, model=model)
        self._scheduled = ScheduledNumbers(self.section) or None
        fields = FIELDS if enable_field is None else tuple(enable_field)
        if unknown := set(fields) - set(FIELDS):
            raise ConfigError(
                f"unknown policy modes {sorted(unknown)}; modes are {', '.join(FIELDS)}",
                path="policy",
                known=list(FIELDS),
            )
        self._fields = frozenset(fields)
        self.learns = "learn" in fields
        self.device = torch.device(_device(self.section.cuda))
        self._is_on_cpu = self.device.type == "cpu"
        self.rng = np.random.default_rng(
            None if seed is None else derive_seed(seed, "policy", "exploration")
        )
        self._keeps_float64 = normalize.obs
        self._normalizer: Normalizer | None = None
        self._attributes = {
            "cfg": to_easydict(deep_merge_dicts(self.config, cfg)),
            "device": str(self.device),
            "on_policy": self.section.on_policy,
            "priority": self.section.priority,
            "batch_size": self.section.learn.batch_size,
            "n_sample": self.section.collect.n_sample,
            "n_episode": self.section.collect.n_episode,
            "unroll_len": self.section.collect.unroll_len,
            "piece": piece_with(self.piece, self.section.traj_len_inf),
        }
        if self.learns:
            # Until a block of this size was freed once, glibc returns memory to the system and
            # requests the same memory again in each update: for SAC 700 page faults, 1.3 of 11 ms.
            torch.empty(6 * 2**20, device="cpu")
        if self._fields - {"command"}:
            with torch.random.fork_rng(devices=[]):
                if seed is None:
                    torch.seed()
                else:
                    torch.manual_seed(derive_seed(seed, "policy", "network"))
                self._build()
            if normalize.obs or normalize.reward:
                name = type(self).__name__
                self._normalizer = Normalizer(name, self.section, self.state(), self.device)
            if self._scheduled is not None:
                self._scheduled.bind(self.state().values())
        if self.section.compile:
            self._compile()
        # One per mode, as envs for collecting and envs for evaluating have the same ids.
        acting = ("collect", "eval") if self.state_size else ()
        self._memories = {field: Memory(self.state_size) for field in acting}

    def _build(self) -> None:
        try:
            with own_settings():
                self.build()
        except (RuntimeError, MemoryError) as error:
            # Sizes of 10**15 and more raise an error about an overflow.
            if not (_is_out_of_memory(error) or "overflow" in str(error)):
                raise
            raise self._no_room("the networks of policy.model do", "policy.model", error) from error

    @abstractmethod
    def build(self) -> None:
        """Make networks and, if ``learns``, optimizers.

        Called once; not called if the policy has only the mode ``command``. Torch's global random
        state is seeded during the call and restored after it.
        """

    @abstractmethod
    def act(
        self, obs: Any, env_ids: Sequence[int] | None = None, *, explore: bool, **setting: Any
    ) -> dict[str, NDArray[Any]]:
        """Choose actions.

        Args:
            obs: Observation columns ``[n, ...]``: an array, or a nest of dicts of arrays.
            env_ids: The env of each row.
            explore: True while collecting, False in evaluations.
            setting: The keyword arguments from ``setting``. A recurrent policy also receives
                ``state``, ``float32[n, state_size]``, zeros at the start of an episode.

        Returns:
            Numpy columns ``[n, ...]`` with at least ``action``; all of them are recorded with the
            transitions. A recurrent policy also returns ``next_state``, ``float32[n, state_size]``,
            which it receives as ``state`` at the next step of these envs. ``state`` is recorded,
            ``next_state`` is not.
        """

    @abstractmethod
    def learn(self, batch: dict[str, Any]) -> dict[str, Any] | list[dict[str, Any]]:
        """Train on a batch.

        Args:
            batch: Tensors ``[n, ...]`` on ``device``: the columns that ``samples`` made, and
                those that the replay buffer adds. For an ``on_policy`` policy these are all
                samples of a collect, else ``learn.batch_size`` samples.

        Returns:
            Scalars to log; ``priority``, a list of one number per sample, goes to the buffer. A
            list of dicts counts as one iteration per dict.
        """

    @abstractmethod
    def state(self) -> Mapping[str, Stateful]:
        """Return the parts to save, by name. ``model`` is used to act, and is published."""

    def samples(self, columns: dict[str, Any], ends: NDArray[np.int64]) -> SampleBatch:
        """Make train samples of whole trajectory pieces.

        Args:
            columns: The columns of ``transitions``, pieces laid end to end; may be changed.
            ends: int64[k], exclusive end offset of each piece. A piece whose last row is not
                ``done`` was cut while its episode went on.

        Returns:
            The transitions as they are, unless a subclass does otherwise. Unrolls become columns
            ``[k, unroll_len, ...]``; the batch of ``learn`` then is ``[n, unroll_len, ...]``. A
            recurrent state is that of the first step, ``[k, state_size]``.
        """
        if self.piece != "unroll":
            return SampleBatch(columns)
        unrolls = len(ends)
        state = columns.pop("state", None) if self.state_size else None
        made = map_leaves(lambda c: c.reshape(unrolls, -1, *c.shape[1:]), columns)
        if state is not None:
            made["state"] = state.reshape(unrolls, -1, self.state_size)[:, 0]
        return SampleBatch(made)

    def transitions(self, obs: Any, output: Mapping[str, Any], step: Any) -> dict[str, Any]:
        """Return the columns to record of one step of several envs.

        Args:
            obs: The observations that the policy acted on.
            output: The result of ``act``.
            step: The manager's ``StepColumns``.
        """
        return {
            "obs": obs,
            **output,
            "reward": step.reward,
            "next_obs": step.final_obs,
            "terminated": step.terminated,
            "done": step.terminated | step.truncated,
        }

    def setting(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of ``act`` for the next collect.

        Args:
            info: ``envstep``, env steps collected so far, and the values that the learner reports.
        """
        return {}

    def random_actions(self, obs: Any, env_ids: Sequence[int] | None = None) -> NDArray[Any]:
        """Return actions [n, ...] drawn uniformly from the action space; legal ones, with a mask.

        They replace those of ``act`` in the first ``policy.random_collect_size`` env steps. The
        action space is that of ``section.model``: the finite bounds of a ``BoxModelSection``, or
        the numbers of another ``ModelSection``.

        Args:
            obs: As in ``act``, like ``env_ids``.
        """
        model, count = self.section.model, len(flatten(obs)[0][1])
        if isinstance(model, BoxModelSection):
            return ActionBox(model, is_finite=True).draw(count, self.rng)
        start, legal = model.first_actions[0], legal_actions(obs, env_ids)
        if legal is not None:
            return draw_legal(legal, self.rng.random(count)) + int(start)
        drawn: NDArray[np.int64] = self.rng.integers(start, start + model.action_count, count)
        return drawn

    def reset(self, env_ids: Sequence[int] | None = None) -> None:
        """Clear the data stored for these envs (None: all), whose episodes ended."""

    def greedy(self, network: Any, obs: Any, *state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the actions of ``act`` without exploration, computed only with torch.

        Needed for exports only (``SavedPolicy.export``).

        Args:
            network: The module that ``state`` calls ``model``, or a copy of it.
            obs: Tensors ``[n, ...]`` as ``tensor`` returns them.
            state: ``float32[n, state_size]``; only for a recurrent policy.

        Returns:
            Actions ``[n, ...]``, and for a recurrent policy the next state.
        """
        raise NotImplementedError

    def on_loaded(self, missing: Set[str]) -> None:
        """Initialise the parts of ``state`` that a loaded state did not contain.

        ``target_<name>`` becomes a copy of the part ``<name>``, and an ``Adam`` is reset.

        Args:
            missing: Names of these parts; never ``model``.
        """
        parts = self.state()
        for name in missing:
            part, source = parts[name], parts.get(name.removeprefix("target_"))
            if isinstance(part, Adam):
                part.reset()
            elif name.startswith("target_") and source is not None:
                # A model has more than its target: the statistics of rewards.
                wanted, found = part.state_dict(), source.state_dict()
                part.load_state_dict({key: found[key] for key in wanted if key in found})

    def steps_of(self, samples: dict[str, Any]) -> dict[str, Any]:
        """Return the steps of collected samples, for the statistics of ``policy.normalize``.

        A subclass whose ``samples`` repeat steps, as in sequences that overlap, must override it so
        that each step is returned once.

        Args:
            samples: Tensors ``[n, ...]``, or ``[n, time, ...]`` of unrolls or sequences: those of
                ``obs``, ``discounted_return`` and ``mask`` that the samples have.

        Returns:
            The steps with one or two leading dimensions, without those that a mask leaves out.
        """
        mask = samples.get("mask")
        return samples if mask is None or mask.ndim < 2 else part_of(samples, mask.bool())

    def tensor(self, obs: Any) -> Any:
        """Return observation columns, arrays or tensors, as tensors on ``device``.

        Images of uint8 (columns of three dimensions or more) keep their dtype, and so does float64
        with ``normalize.obs``, where networks subtract the mean first. All other columns become
        float32.

        Raises:
            SchemaMismatchError: they are neither.
        """
        if type(obs) is not np.ndarray:
            if isinstance(obs, torch.Tensor):
                is_kept = (obs.dtype is torch.uint8 and obs.ndim > 2) or (
                    self._keeps_float64 and obs.dtype is torch.float64
                )
                return (obs if is_kept else obs.float()).to(self.device)
            if isinstance(obs, Mapping):
                return {key: self.tensor(value) for key, value in obs.items()}
            if not isinstance(obs, np.ndarray):
                expected = "an array, a tensor or a dict of these"
                raise mismatch("observations", "obs", expected, type(obs).__name__)
        # torch warns about read-only arrays.
        if obs.dtype != _FLOAT32 or not obs.flags.writeable:
            is_kept = (obs.dtype == _UINT8 and obs.ndim > 2) or (
                self._keeps_float64 and obs.dtype == _FLOAT64
            )
            obs = obs.astype(obs.dtype if is_kept else _FLOAT32)
        found = torch.from_numpy(obs)
        return found if self._is_on_cpu else found.to(self.device)

    def array(self, tensor: torch.Tensor) -> NDArray[Any]:
        """Return the output of a network as an array; on the CPU both share memory."""
        return (tensor if self._is_on_cpu else tensor.cpu()).numpy()

    def check_finite(
        self, values: NDArray[Any], obs: Any, env_ids: Sequence[int] | None = None
    ) -> None:
        """Raise an error if outputs of a network hold NaN or infinity.

        Args:
            values: float[n, ...], outputs of the network.
            obs: Inputs of the network.
            env_ids: The env of each row.

        Raises:
            NonFiniteError: names the envs, and says whether the observations are finite.
        """
        # Looking for a byte costs a fraction of all() on arrays this small.
        if 0 not in np.isfinite(values).tobytes():
            return
        rows = np.isfinite(values.reshape(len(values), -1)).all(axis=1).tolist()
        ids = range(len(rows)) if env_ids is None else env_ids
        envs = [int(env_id) for env_id, finite in zip(ids, rows, strict=True) if not finite]
        finite_obs = all(np.isfinite(leaf).all() for _, leaf in flatten(obs))
        cause = (
            "the observations are finite, so the weights diverged: lower the learning rate in "
            "policy.learn, or load an earlier checkpoint"
            if finite_obs
            else "the observations hold NaN or infinity: look at the env"
        )
        raise NonFiniteError(
            f"what {type(self).__name__} computed for env {', '.join(map(str, envs))} is not "
            f"finite; {cause}",
            key="action",
            env_ids=envs,
        )

    def check_shapes(self, batch: Mapping[str, Any], **shapes: tuple[int, ...]) -> None:
        """Raise an error if columns of a batch have other shapes, which torch might broadcast.

        Args:
            batch: The batch of ``learn``.
            shapes: The whole shape of each column, by name.

        Raises:
            SchemaMismatchError: names the column and both shapes.
        """
        for key, shape in shapes.items():
            if (found := tuple(batch[key].shape)) != shape:
                raise mismatch(f"column {key!r} of the batch", key, list(shape), list(found))

    @property
    def learn_mode(self) -> LearnMode:
        """Functions for learners."""
        return LearnMode(
            forward=self._train,
            info=lambda: f"{type(self).__name__}\n{self.section}",
            monitor_vars=lambda: list(self.monitored),
            state_dict=self._state_dict,
            load_state_dict=self._load_state_dict,
            observe=None if self._normalizer is None else self._observe,
            **self._common("learn"),
        )

    @property
    def collect_mode(self) -> CollectMode:
        """Functions for collectors."""
        return CollectMode(
            forward=partial(self._act_by_env, "collect"),
            process_transition=self._transition,
            get_train_sample=self._sample_rows,
            state_dict=self._model_state,
            load_state_dict=self._load_model,
            forward_batch=self._acting("collect"),
            make_transitions=self._recorded if self.state_size else self.transitions,
            make_samples=self._samples,
            **self._common("collect"),
        )

    @property
    def eval_mode(self) -> EvalMode:
        """Functions for evaluators."""
        return EvalMode(
            forward=partial(self._act_by_env, "eval"),
            state_dict=self._model_state,
            load_state_dict=self._load_model,
            forward_batch=self._acting("eval"),
            **self._common("eval"),
        )

    @property
    def command_mode(self) -> CommandMode:
        """Functions for commanders."""
        self._check_serves("command")
        return CommandMode(
            get_setting_learn=lambda info: {},
            get_setting_collect=self._setting,
            get_setting_eval=lambda info: {},
        )

    def _setting(self, info: Mapping[str, Any]) -> dict[str, Any]:
        found = self.setting(info)
        if size := self.section.random_collect_size:
            found = {**found, "is_random": info.get("envstep", 0) < size}
        return found

    def _compile(self) -> None:
        compilers = (os.environ.get("CXX", "g++"), "clang++")
        if self._is_on_cpu and not any(map(shutil.which, compilers)):
            raise ConfigError(
                "policy.compile is true, but torch.compile needs a C++ compiler on the CPU, and "
                f"there is neither {compilers[0]} nor clang++; install one, or set it to false",
                path="policy.compile",
            )
        for part in vars(self).values():
            if isinstance(part, torch.nn.Module):
                for name in ("forward", "unroll"):
                    if hasattr(part, name):
                        setattr(part, name, torch.compile(getattr(part, name)))

    def _check_serves(self, field: str) -> None:
        if field not in self._fields:
            raise ConfigError(
                f"this policy was created without its {field} mode (it has "
                f"{', '.join(sorted(self._fields))}); add {field!r} to enable_field",
                path="policy",
            )

    def _common(self, field: str) -> dict[str, Any]:
        """Return the functions that several modes share."""
        self._check_serves(field)

        def reset(env_ids: Sequence[int] | None = None) -> None:
            if field in self._memories:
                self._memories[field].reset(env_ids)
            self.reset(env_ids)

        return {
            "reset": reset,
            "get_attribute": self._get_attribute,
            "set_attribute": self._set_attribute,
        }

    @isolated
    def _train(self, data: Any, **_: Any) -> dict[str, Any] | list[dict[str, Any]]:
        batch = collate(data)
        if self._scheduled is not None:
            self._scheduled.check_known()
        try:
            if not self._is_on_cpu:
                batch = map_leaves(self._staged, batch)
            if self._normalizer is not None:
                batch = self._normalizer.scale_batch(batch)
            return self.learn(batch)
        except KeyError as error:
            raise self._missing(error, batch) from error
        except NonFiniteError as error:
            bad = [key for key, column in named_leaves(batch) if not _is_finite(column)]
            if not bad:
                raise
            raise NonFiniteError(
                f"{error}; the batch's {', '.join(bad)} hold NaN or infinity: look at the env",
                **{**error.facts, "key": bad[0]},
            ) from error
        except (RuntimeError, TypeError, IndexError, MemoryError) as error:
            if _is_out_of_memory(error):
                what = f"an update on {_length(batch)} samples (policy.learn.batch_size) does"
                raise self._no_room(what, "policy.learn.batch_size", error) from error
            raise self._misfit("batch does", batch, error) from error

    def _samples(self, columns: Mapping[str, Any], ends: NDArray[np.int64]) -> SampleBatch:
        # The caller adds the columns that collectors record, as samples may be of several steps.
        rest = {name: column for name, column in columns.items() if name not in COLLECTED}
        if self._normalizer is not None:
            self._normalizer.scale_collected(rest)
        try:
            return self.samples(rest, ends)
        except KeyError as error:
            raise self._missing(error, rest) from error

    def _missing(self, error: KeyError, columns: Mapping[str, Any]) -> SchemaMismatchError:
        return SchemaMismatchError(
            f"{type(self).__name__} trains on a column {error} that the batch does not have; it "
            f"has {', '.join(sorted(columns))}",
            key=str(error.args[0]),
            expected=str(error.args[0]),
            found=sorted(columns),
        )

    def _no_room(self, what: str, path: str, error: Exception) -> ConfigError:
        if self._is_on_cpu:
            where = "main memory"
            free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        else:
            where, free_bytes = "the GPU's memory", torch.cuda.mem_get_info()[0]
        text = str(error).partition("\n")[0]
        return ConfigError(
            f"{what} not fit memory ({text}; {free_bytes:,} bytes of {where} are free); lower it, "
            f"or the sizes of policy.model {self.section.model}",
            path=path,
            expected=free_bytes,
            found=text,
        )

    def _staged(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the GPU; it is copied while the host prepares the next one."""
        # CUDA copies in the background only from pinned memory; the driver stages small copies.
        if leaf.nbytes >= _LEAST_PINNED_BYTES:
            leaf = leaf.pin_memory()
        return leaf.to(self.device, non_blocking=True)

    def _acting(self, field: str) -> Callable[..., dict[str, NDArray[Any]]]:
        act, explore, memory = self.act, field == "collect", self._memories.get(field)

        def forward_batch(
            obs: Any,
            env_ids: Sequence[int] | None = None,
            is_random: bool = False,
            **setting: Any,
        ) -> dict[str, NDArray[Any]]:
            if is_random and explore:
                for _, leaf in flatten(obs):
                    self.check_finite(np.asarray(leaf), obs, env_ids)
                return {"action": self.random_actions(obs, env_ids)}
            try:
                if memory is None:
                    return self._checked(act(obs, env_ids, explore=explore, **setting))
                ids = range(len(flatten(obs)[0][1])) if env_ids is None else env_ids
                state = memory.read(ids)
                output = self._checked(act(obs, env_ids, explore=explore, state=state, **setting))
            except (RuntimeError, TypeError, IndexError) as error:
                raise self._misfit("observations do", {"obs": obs}, error) from error
            memory.write(ids, self._next_state(output, state.shape))
            return {**output, "state": state} if explore else output

        return isolated(forward_batch, has_gradients=False)

    def _checked(self, output: Any) -> dict[str, Any]:
        if isinstance(output, dict):
            return output
        raise PolicyOutputTypeError(
            f"{type(self).__name__}.act must return a dict with an 'action'; it returned a "
            f"{type(output).__name__}",
            key="action",
            expected="dict",
            found=type(output).__name__,
        )

    def _next_state(self, output: dict[str, Any], shape: tuple[int, ...]) -> NDArray[np.float32]:
        found = output.pop("next_state", None)
        if isinstance(found, np.ndarray) and found.shape == shape:
            return found
        shown = type(found).__name__ if not isinstance(found, np.ndarray) else found.shape
        raise PolicyOutputError(
            f"{type(self).__name__} is recurrent, so act must return next_state as an array of "
            f"shape {shape}; found {shown}",
            key="next_state",
            expected=shape,
            found=shown,
        )

    def _recorded(self, obs: Any, output: Mapping[str, Any], step: Any) -> dict[str, Any]:
        """Call ``transitions``; random actions of a collector get zeros as recurrent state."""
        if self.state_size and "state" not in output:
            rows = np.shape(output["action"])[: np.ndim(step.reward)]
            output = {**output, "state": np.zeros((*rows, self.state_size), np.float32)}
        return self.transitions(obs, output, step)

    def _misfit(self, what: str, given: Any, error: Exception) -> Exception:
        """Return a SchemaMismatchError for a torch error about shapes, dtypes or indices.

        Other errors are returned as they are.
        """
        if isinstance(error, DingError) or not any(word in str(error) for word in _MISFITS):
            return error
        shapes = {key: tuple(getattr(leaf, "shape", ())) for key, leaf in named_leaves(given)}
        return SchemaMismatchError(
            f"the {what} not fit the networks of {type(self).__name__}: found the shapes {shapes} "
            f"({str(error).splitlines()[0]}), where policy.model is {self.section.model}; does it "
            "match the env?",
            key="obs",
            expected=str(self.section.model),
            found=shapes,
        )

    def _act_by_env(
        self, field: str, obs: Mapping[int, Any], **setting: Any
    ) -> dict[int, dict[str, Any]]:
        """The dict form of ``act``: ``{env_id: obs} -> {env_id: {"action": ...}}``."""
        if not isinstance(obs, Mapping):
            raise mismatch(
                f"{field}_mode.forward",
                "obs",
                "a dict {env_id: observation}",
                type(obs).__name__,
                "pass columns of observations to forward_batch",
            )
        if not obs:
            return {}
        env_ids = list(obs)
        stacked = rows_to_columns([{"obs": value} for value in obs.values()])["obs"]
        columns = self._acting(field)(stacked, env_ids, **setting)
        return {
            env_id: {key: column[row] for key, column in columns.items()}
            for row, env_id in enumerate(env_ids)
        }

    def _transition(self, obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
        """The dict form of ``transitions``."""
        done = bool(timestep.done)
        terminated = bool(timestep.info.get("terminated", done))
        step = SimpleNamespace(
            final_obs=timestep.obs,
            reward=timestep.reward,
            terminated=terminated,
            truncated=done and not terminated,
        )
        return self._recorded(obs, output, step)

    def _sample_rows(self, piece: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The dict form of ``samples`` for one piece."""
        if not piece:
            return []
        columns, ends = rows_to_columns([dict(row) for row in piece]), np.array([len(piece)])
        made = self._samples(columns, ends)
        if isinstance(made, SampleBatch):
            own = {name: columns[name] for name in COLLECTED if name in columns}
            made = with_collected(made, own, ends)
        # Rows of tensors, as in transitions of the dict form; they are views of the columns.
        tensors = made.tensors()
        return [part_of(tensors, row) for row in range(len(made))]

    def _get_attribute(self, key: str) -> Any:
        if key == "acting_state":
            memories = {field: memory.state_dict() for field, memory in self._memories.items()}
            return {"rng": capture(self.rng), "memories": memories}
        if key == "norms" and self.learns:
            return dict(self._norms())
        if key == "statistics" and self._normalizer is not None:
            return self._normalizer.statistics
        if key == "scheduled" and self.learns:
            return {} if self._scheduled is None else dict(self._scheduled.values)
        try:
            return self._attributes[key]
        except KeyError:
            raise NotImplementedError(
                f"{type(self).__name__} has no attribute {key!r}; it has "
                f"{', '.join(sorted(self._attributes))}"
            ) from None

    def _set_attribute(self, key: str, value: Any) -> None:
        if key == "average_over_ranks" and self.is_data_parallel:
            for part in self.state().values():
                if isinstance(part, Adam):
                    part.average = value
            return
        if key == "env_steps" and self.learns:
            if self._scheduled is not None:
                self._scheduled.advance(int(value))
            return
        if key == "learning_rate_factor" and self.learns:
            if self._scheduled is not None and self._scheduled.sets_rates:
                raise ConfigError(
                    "learning_rate_factor cannot be set: a learning rate of policy.learn is a "
                    "schedule; change that",
                    path="policy.learn",
                )
            for part in self.state().values():
                if isinstance(part, Adam):
                    part.scale_rate(float(value))
                elif isinstance(part, torch.optim.Optimizer):
                    for group in part.param_groups:
                        # torch's own schedulers use this key.
                        rate = group.setdefault("initial_lr", group["lr"])
                        group["lr"] = rate * float(value)
            return
        if key == "statistics" and self._normalizer is not None:
            self._normalizer.statistics = value
            return
        if key == "acting_state":
            for field, memory in self._memories.items():
                memory.load_state_dict(value["memories"][field])
            self.rng = capture(value["rng"])
            return
        if key not in {"n_sample", "n_episode", "unroll_len", "batch_size"}:
            raise NotImplementedError(f"{type(self).__name__}'s attribute {key!r} cannot be set")
        self._attributes[key] = value

    def _norms(self) -> Iterator[tuple[str, float]]:
        """Yield the Euclidean norm of each module's parameters and each optimizer's gradient."""
        for name, part in self.state().items():
            if isinstance(part, Adam):
                yield f"grad_norm/{name}", part.gradient_norm
            elif isinstance(part, torch.optim.Optimizer):
                held = [each.grad for group in part.param_groups for each in group["params"]]
                yield f"grad_norm/{name}", _norm([each for each in held if each is not None])
            elif isinstance(part, torch.nn.Module):
                yield f"param_norm/{name}", _norm([each.detach() for each in part.parameters()])

    def _state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.state().items()}

    def _model_state(self) -> dict[str, Any]:
        return {"model": self.state()["model"].state_dict()}

    def _load_model(self, state: Mapping[str, Any]) -> None:
        load_state({"model": self.state()["model"]}, state)

    def _load_state_dict(self, state: Mapping[str, Any]) -> None:
        parts = self.state()
        load_state(parts, state)
        if self._scheduled is not None:
            self._scheduled.restore()
        missing = parts.keys() - state.keys()
        self.on_loaded(missing)
        own = scaled_in(parts["model"])
        for name in missing:
            for target, source in zip(scaled_in(parts[name]), own, strict=False):
                target.load_state_dict(source.state_dict())

    @isolated
    def _observe(self, samples: Any) -> None:
        """Update the statistics of ``policy.normalize``; see ``LearnMode``."""
        assert self._normalizer is not None
        names = ("obs", DISCOUNTED_RETURN, "mask")
        for batch in _batches(samples):
            columns = {name: batch.columns[name] for name in names if name in batch.columns}
            steps = SampleBatch.trusted(columns, len(batch)).tensors()
            self._normalizer.observe(self.steps_of(steps))


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    norms = [torch.linalg.vector_norm(each) for each in tensors]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0


def _batches(samples: Any) -> Iterator[SampleBatch]:
    """Yield samples in columns: a SampleBatch, a list of dicts, or a list of such episodes."""
    if isinstance(samples, SampleBatch):
        yield samples
    elif samples and isinstance(samples[0], Mapping):
        yield SampleBatch.from_rows(samples)
    else:
        for episode in samples:
            yield from _batches(episode)


def _device(cuda: bool) -> str:
    if not cuda:
        return "cpu"
    if not torch.cuda.is_available():
        raise ConfigError(
            "policy.cuda is true, but torch finds no CUDA device here; set policy.cuda=false",
            path="policy.cuda",
        )
    return "cuda"


_LEAST_PINNED_BYTES = 64 << 10
"""Smaller columns are copied to the GPU without page-locked memory, which would be slower."""
# Words in torch's errors about lack of memory.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
# Words in torch's errors about shapes, dtypes or indices that do not fit.
_MISFITS = (
    *("shape", "size", "out of bounds", "out of range", "scalar type"),
    *("must be Tensor", "invalid data type", "too many indices", "only integers"),
)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY)


def _length(batch: Mapping[str, Any]) -> int:
    return len(flatten(batch)[0][1])


def _is_finite(column: Any) -> bool:
    return not isinstance(column, torch.Tensor) or bool(torch.isfinite(column).all())


def create_policy(
    cfg: Mapping[str, Any],
    enable_field: Sequence[str] | None = None,
    seed: int | None = None,
) -> Policy:
    """Build the policy that ``cfg["type"]`` names; arguments as ``BasePolicy``.

    Raises:
        UnknownPluginError: nothing provides that type.
        ConfigError: no type, or a value that the policy cannot work with.
    """
    policy: Policy = default_manager().create(
        "policies", to_easydict(cfg), enable_field=enable_field, seed=seed, config_path="policy"
    )
    return policy


def piece_with(declared: Piece, traj_len_inf: bool) -> Piece:
    """Return the piece of a policy by what its class declares and ``policy.traj_len_inf``."""
    return "episode" if declared == "steps" and traj_len_inf else declared


def piece_of(mode: Any) -> Piece:
    """Return the ``piece`` of a collect mode; policies that do not declare one have steps."""
    try:
        found: Piece = mode.get_attribute("piece")
    except (NotImplementedError, KeyError, AttributeError):
        return piece_with("steps", mode.get_attribute("cfg").get("traj_len_inf", False))
    return found


def mixes_versions(policy_cfg: Mapping[str, Any]) -> bool:
    """Return whether one piece of a trajectory may have steps of several versions of a policy.

    True unless it is on-policy and ``other.commander.max_policy_lag`` limits the age of samples.
    """
    commander = (policy_cfg.get("other") or {}).get("commander") or {}
    return not policy_cfg.get("on_policy") or commander.get("max_policy_lag", 0) is None


def acting_state(mode: Any) -> Any:
    """Return the random generators and recurrent states of a mode; None if it has none.

    ``mode.set_attribute("acting_state", ...)`` restores them.
    """
    try:
        return mode.get_attribute("acting_state")
    except (NotImplementedError, KeyError, AttributeError):
        return None


def get_policy_cls(cfg: Mapping[str, Any]) -> type[Policy]:
    """Return the class of the policy that ``cfg["type"]`` names; errors as ``create_policy``."""
    cls: type[Policy] = default_manager().class_of("policies", cfg, config_path="policy")
    return cls
