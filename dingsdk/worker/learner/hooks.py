"""The four hooks that come with the learner."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dingsdk.config import check_known_keys
from dingsdk.errors import CheckpointError, ConfigError, ConfigTypeError, StorageFullError
from dingsdk.worker.learner.checkpoint import load_checkpoint, prune_checkpoints, save_checkpoint
from dingsdk.worker.learner.hook import LearnerHook
from dingsdk.worker.learner.monitor import as_number

if TYPE_CHECKING:
    import torch

    from dingsdk.worker.learner.base import BaseLearner

_logger = logging.getLogger(__name__)


class LoadCkptHook(LearnerHook):
    """Loads a checkpoint into the policy, and continues its iteration and env step counts.

    Args:
        ext_args: ``load_path`` (required; see ``load_checkpoint``; ``''`` loads nothing).
    """

    def __init__(
        self, name: str, priority: float, *, ext_args: Mapping[str, Any], **kwargs: Any
    ) -> None:
        super().__init__(name, priority, **kwargs)
        check_known_keys(ext_args, {"load_path": ""}, "ext_args")
        if not isinstance(ext_args.get("load_path"), str):
            raise ConfigTypeError(
                f"the hook {name!r} needs ext_args.load_path, the path of a checkpoint as text",
                path="ext_args.load_path",
                expected="str",
                found=type(ext_args.get("load_path")).__name__,
            )
        self._load_path: str = ext_args["load_path"]

    def __call__(self, engine: BaseLearner) -> None:
        if not self._load_path:
            return
        checkpoint = load_checkpoint(self._load_path)
        try:
            engine.policy.load_state_dict(checkpoint.state)
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint {checkpoint.path} does not fit this policy: {error}. Use the "
                "config that it was saved under (beside it in the run folder).",
                path=str(checkpoint.path),
            ) from error
        engine.last_iter.update(checkpoint.iteration)
        engine.collector_envstep = checkpoint.envstep
        engine.info(f"loaded checkpoint {checkpoint.path} of iteration {checkpoint.iteration}")


class _PeriodicHook(LearnerHook):
    """Acts every ``freq`` iterations (of ``ext_args``, default 1)."""

    def __init__(
        self,
        name: str,
        priority: float,
        *,
        ext_args: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, priority, **kwargs)
        self._freq = _freq(name, ext_args, 1)


class SaveCkptHook(_PeriodicHook):
    """Saves a checkpoint every ``freq`` iterations, from rank 0 alone.

    It is named ``engine.ckpt_name``, or ``iteration_<n>`` where that is None; of the latter
    the ``engine.keep_last_ckpt`` written last are kept. Where the disk is full after an iteration,
    that checkpoint is left out with a warning; after the run it is an error.

    Args:
        ext_args: ``freq`` (default 1): save when the iteration is divisible by it.
    """

    def __call__(self, engine: BaseLearner) -> None:
        iteration = engine.last_iter.val
        if engine.rank != 0 or iteration % self._freq:
            return
        try:
            path = save_checkpoint(
                engine.checkpoint_dir,
                engine.ckpt_name or f"iteration_{iteration}",
                engine.policy.state_dict(),
                iteration=iteration,
                envstep=engine.collector_envstep,
                meta={"instance_name": engine.instance_name},
            )
        except StorageFullError as error:
            if self.position != "after_iter":
                raise
            _logger.warning("no checkpoint of iteration %d, training goes on: %s", iteration, error)
            return
        engine.info(f"saved checkpoint {path}")
        if engine.keep_last_ckpt:
            prune_checkpoints(engine.checkpoint_dir, engine.keep_last_ckpt)


class LogShowHook(_PeriodicHook):
    """Follows the logged variables, and shows their moving averages every ``freq`` iterations.

    Shown are the variables that the policy's ``monitor_vars()`` names, as a text table and as
    tensorboard curves ``{instance}_iter/{var}_avg`` over iterations and (where env steps are
    known) ``{instance}_step/{var}_avg`` over env steps; ``[scalars]name`` as
    ``{instance}_iter/{name}/{key}``, ``[histogram]name`` as ``{instance}/{name}``.

    Args:
        ext_args: ``freq`` (default 1).

    Difference from the reference: it collects ``[scalars]`` and never writes them.
    """

    def __call__(self, engine: BaseLearner) -> None:
        if engine.is_logging:
            engine.monitor.record(engine.log_buffer["scalar"])
            engine.monitor.tick()
            if engine.last_iter.val % self._freq == 0:
                self._show(engine)
        engine.clear_log_buffer()

    def _show(self, engine: BaseLearner) -> None:
        iteration, envstep = engine.last_iter.val, engine.collector_envstep
        averages = engine.monitor.averages()
        means = {f"{name}_avg": mean for name, mean in averages.items()}
        if means:
            table = engine.logger.get_tabulate_vars_hor(means)
            engine.info(f"iteration {iteration}, env step {envstep}\n{table}")
        writer = engine.tb_logger
        if writer is None:
            return
        instance = engine.instance_name
        for name, mean in means.items():
            writer.add_scalar(f"{instance}_iter/{name}", mean, iteration)
            if envstep >= 0:
                writer.add_scalar(f"{instance}_step/{name}", mean, envstep)
        for group, scalars in engine.log_buffer["scalars"].items():
            for key, value in scalars.items():
                tag = f"{instance}_iter/{group}/{key}"
                writer.add_scalar(tag, as_number(tag, value), iteration)
        for name, values in engine.log_buffer["histogram"].items():
            writer.add_histogram(f"{instance}/{name}", np.asarray(values), iteration)


class LogReduceHook(LearnerHook):
    """Replaces the log variables by their mean over all ranks; one message an iteration.

    Every rank must log the same variables. Names that begin with ``noreduce_`` are left as
    they are, and histograms too. At world size 1 nothing happens. Works with any
    torch.distributed backend (the reference needs CUDA).
    """

    def __init__(
        self,
        name: str,
        priority: float,
        *,
        ext_args: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, priority, **kwargs)
        check_known_keys(ext_args or {}, {}, "ext_args")

    def __call__(self, engine: BaseLearner) -> None:
        if engine.world_size == 1:
            return
        import torch
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise ConfigError(
                f"a learner of {engine.world_size} ranks cannot average its logs: call "
                "torch.distributed.init_process_group() first",
                path="policy.learn.learner.hook.log_reduce_after_iter",
            )
        slots = [
            (holder, key)
            for holder in (engine.log_buffer["scalar"], *engine.log_buffer["scalars"].values())
            for key in sorted(holder)
            if not key.startswith("noreduce_")
        ]
        values = torch.tensor(
            [as_number(key, holder[key]) for holder, key in slots],
            dtype=torch.float64,
            device=_reduce_device(dist.get_backend()),
        )
        dist.all_reduce(values)
        means = (values / dist.get_world_size()).tolist()
        for (holder, key), mean in zip(slots, means, strict=True):
            holder[key] = mean


def _reduce_device(backend: str) -> torch.device:
    import torch

    if backend == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _freq(name: str, ext_args: Mapping[str, Any] | None, default: int) -> int:
    ext_args = ext_args or {}
    check_known_keys(ext_args, {"freq": default}, "ext_args")
    freq = ext_args.get("freq", default)
    if isinstance(freq, bool) or not isinstance(freq, int) or freq < 1:
        raise ConfigTypeError(
            f"the hook {name!r} has ext_args.freq {freq!r}; use a whole number of iterations >= 1",
            path="ext_args.freq",
            expected="int >= 1",
            found=repr(freq),
        )
    return freq
