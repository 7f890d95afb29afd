"""The base class of policies: what the author of a policy writes, and may call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, ClassVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from dingsdk.config import Configurable
from dingsdk.data import SampleBatch
from dingsdk.data.action_mask import draw_legal, legal_actions
from dingsdk.data.capture import Savable
from dingsdk.data.columns import mismatch
from dingsdk.data.pytree import flatten, map_leaves, part_of
from dingsdk.data.seeding import derive_seed
from dingsdk.errors import ConfigError, NonFiniteError, wrong_type
from dingsdk.policy.adam import Adam
from dingsdk.policy.adapter import ModeAdapter
from dingsdk.policy.distributions import ActionBox, BoxModelSection
from dingsdk.policy.modes import CollectMode, CommandMode, EvalMode, LearnMode, Piece
from dingsdk.policy.sections import ModelSection, PolicySection
from dingsdk.policy.weights import Stateful

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_UINT8 = np.dtype(np.uint8)


class BasePolicy(Configurable, ABC):
    """Makes the four modes of a policy from ``act``, ``samples``, ``learn`` and ``state``.

    A subclass declares its section as ``Config`` (a ``PolicySection``), makes its networks in
    ``build``, and writes the four methods, all in columns. ``ModeAdapter`` handles the dict form,
    the checks of outputs and batches, states and seeds.

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
        acting_parts: Objects that ``act`` changes beside ``rng``, by name, such as random numbers
            drawn in advance; set by ``build``. A resumed run restores them.

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
        if not isinstance(enable_field, Iterable | None):
            raise wrong_type("enable_field", "a list of modes", enable_field)
        self.learns = enable_field is None or "learn" in enable_field
        self.device = torch.device(_device(self.section.cuda))
        self._is_on_cpu = self.device.type == "cpu"
        self._keeps_float64 = normalize.obs
        self.rng = np.random.default_rng(
            None if seed is None else derive_seed(seed, "policy", "exploration")
        )
        self.acting_parts: dict[str, Savable] = {}
        self._adapter = ModeAdapter(self, cfg, enable_field, seed)

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
        return self._adapter.learn_mode()

    @property
    def collect_mode(self) -> CollectMode:
        """Functions for collectors."""
        return self._adapter.collect_mode()

    @property
    def eval_mode(self) -> EvalMode:
        """Functions for evaluators."""
        return self._adapter.eval_mode()

    @property
    def command_mode(self) -> CommandMode:
        """Functions for commanders."""
        return self._adapter.command_mode()


def _device(cuda: bool) -> str:
    if not cuda:
        return "cpu"
    if not torch.cuda.is_available():
        raise ConfigError(
            "policy.cuda is true, but torch finds no CUDA device here; set policy.cuda=false",
            path="policy.cuda",
        )
    return "cuda"
