"""The collector that gives the samples of a recorded data set in place of collecting."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import PartSection
from dingsdk.data import Dataset, SampleBatch
from dingsdk.data.collected import DISCOUNTED_RETURN, with_collected, without_returns
from dingsdk.envs.steps import StepColumns
from dingsdk.errors import ConfigError
from dingsdk.policy.modes import CollectMode, create_policy
from dingsdk.worker.collector.base import ISerialCollector
from dingsdk.worker.collector.factory import added_columns, gamma_of
from dingsdk.worker.datasets import read_dataset
from dingsdk.worker.factory import get_serial_collector_cls
from dingsdk.worker.replay_buffer.interface import IBuffer


def samples_of_dataset(
    dataset: Dataset,
    policy: CollectMode,
    gamma: float | None = None,
) -> SampleBatch:
    """Return the train samples that a policy makes of the pieces of a data set.

    The policy makes transitions and samples as of its own steps, so that for example rewards are
    summed over ``nstep`` steps. Of the columns that its config adds, ``env_id`` is 0, and
    ``episode_return`` is the return of the piece.

    Args:
        dataset: The data set; its arrays are not changed.
        policy: A collect mode with the batched form.
        gamma: Discount of the column ``discounted_return``; None for no such column.

    Raises:
        SchemaMismatchError: the policy needs a column that data sets do not have.
        ConfigError: the policy does not have the batched form.
    """
    make_transitions: Any = policy.make_transitions
    make_samples: Any = policy.make_samples
    if make_transitions is None or make_samples is None:
        raise ConfigError(
            "policy.type: a policy without the batched form (make_transitions and make_samples) "
            "cannot make samples of a data set",
            path="policy.type",
        )
    columns, ends = dataset.columns, dataset.ends
    step = StepColumns(
        obs=columns["next_obs"],
        final_obs=columns["next_obs"],
        reward=columns["reward"],
        terminated=columns["terminated"],
        truncated=columns["truncated"],
    )
    made = dict(make_transitions(columns["obs"], {"action": columns["action"]}, step))
    if gamma is not None:
        made[DISCOUNTED_RETURN] = discounted_returns(columns["reward"], ends, gamma)
    added = added_columns(policy)
    extra: dict[str, Any] = {}
    if "env_id" in added:
        extra["env_id"] = np.zeros(len(dataset), np.int64)
    if "episode_return" in added:
        lengths = np.diff(ends, prepend=0)
        extra["episode_return"] = dataset.returns().astype(np.float32).repeat(lengths)
    samples: SampleBatch = make_samples({**made, **extra}, ends)
    return with_collected(samples, extra, ends)


def discounted_returns(
    reward: NDArray[Any], ends: NDArray[np.int64], gamma: float
) -> NDArray[np.float32]:
    """Return the column ``discounted_return`` of pieces laid end to end; each begins at 0.

    Args:
        reward: float[n].
        ends: int64[k], exclusive end of each piece.
        gamma: Discount of one step.
    """
    found = np.empty(len(reward), np.float32)
    for start, stop in pairwise([0, *ends.tolist()]):
        total = 0.0
        for row, each in enumerate(reward[start:stop].tolist(), start):
            total = gamma * total + each
            found[row] = total
    return found


def push_recorded(
    buffer: IBuffer,
    policy_cfg: Mapping[str, Any],
    observe: Callable[[Any], None] | None = None,
) -> int:
    """Push the samples of the data set of a section ``policy`` into a buffer; return their number.

    Args:
        buffer: An empty buffer.
        policy_cfg: The section ``policy``.
        observe: ``LearnMode.observe`` of the policy, which is called with all samples.

    Raises:
        DatasetError: as ``read_dataset``.
        SchemaMismatchError, ConfigError: as ``samples_of_dataset``.
    """
    section = policy_cfg["collect"]["collector"]
    cls: Any = get_serial_collector_cls(section)
    mode = create_policy(policy_cfg, enable_field=["collect"]).collect_mode
    samples = samples_of_dataset(cls.recorded(section), mode, gamma_of(mode))
    if observe is not None:
        observe(samples)
    buffer.push(without_returns(samples), 0)
    return len(samples)


def no_batch(buffer: object, train_iter: int) -> ConfigError:
    """Return the error for a buffer that gives no batch of the samples of a data set."""
    path = "policy.other.replay_buffer.type"
    return ConfigError(
        f"{path}: after iteration {train_iter} the {type(buffer).__name__} gave no batch, and no "
        "sample follows those of the data set; choose a buffer that draws rows again",
        path=path,
    )


class DatasetCollector(ISerialCollector):
    """Gives the samples of a data set at the first ``collect``, and then none; key ``dataset``.

    It takes no env steps and needs no env. Of a resumed run it gives the samples only if the saved
    run had not got them: they are in the run's replay buffer.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``policy.collect.collector``.

        Attributes:
            path: The data set: a file with the suffix .npz, .h5 or .hdf5, a folder that a replay
                buffer saved, or ``KEY:NAME`` with the type key of a plugin's data sets.
            digest: Digest of the data, set when the config is compiled; other data is then refused,
                for example when the run is resumed. None for any data.
        """

        type: str = "dataset"
        path: str
        digest: str | None = None

    # The rules of the kit are for collectors that step envs.
    contract_config: ClassVar[Mapping[str, Any]] = {"path": "recorded.npz"}
    contract_capabilities: ClassVar[None] = None
    needs_env: ClassVar[bool] = False
    resumes = True
    saved = (*ISerialCollector.saved, "is_exhausted")

    _cfg: Config

    @classmethod
    def recorded(cls, cfg: Mapping[str, Any]) -> Dataset:
        """Return the data set of a section ``policy.collect.collector``.

        Raises:
            DatasetError: as ``read_dataset``, like PluginLoadError.
        """
        return read_dataset(cfg["path"], cfg.get("digest"))

    def collect(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> SampleBatch | list[Any]:
        """Return all samples of the data set; an empty list if they were returned before.

        Args:
            n_sample: Not used; the first call returns everything.
            train_iter: Iteration of the learner, for the observers.
            policy_kwargs: Not used, because the policy does not act.

        Raises:
            NotSetError: there is no policy.
            DatasetError: as ``read_dataset``.
            SchemaMismatchError, ConfigError: as ``samples_of_dataset``.
        """
        if self.is_exhausted:
            return []
        started = time.perf_counter()
        dataset = read_dataset(self._cfg.path, self._cfg.digest)
        samples = samples_of_dataset(dataset, self.policy, gamma_of(self.policy))
        self.is_exhausted = True
        self._logger.info("%d samples of %r", len(samples), dataset)
        self._end_collect(
            (),
            envsteps=0,
            samples=len(samples),
            seconds=time.perf_counter() - started,
            train_iter=train_iter,
            policy_kwargs=policy_kwargs,
        )
        return samples

    def reset_policy(self, _policy: Any = None) -> None:
        """As ``SerialWorker.reset_policy``; no env is needed."""
        self._take_policy(_policy)

    def _zero(self) -> None:
        super()._zero()
        self.is_exhausted = False
