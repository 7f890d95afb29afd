"""The learner: hands batches to a policy, counts iterations, logs, saves checkpoints."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter
from types import MappingProxyType
from typing import Any

import msgspec

from dingsdk.config import Configurable, Count, PartSection, Whole, deep_merge_dicts
from dingsdk.data import SampleBatch
from dingsdk.errors import (
    CheckpointCorruptError,
    ConfigError,
    NonFiniteError,
    PolicyOutputTypeError,
    wrong_type,
)
from dingsdk.plugins import observe
from dingsdk.policy.modes import LearnMode, attribute_of
from dingsdk.runtime.deadline import returns_within, warn_of_left
from dingsdk.worker.learner.checkpoint import EXCEPTION, LATEST
from dingsdk.worker.learner.hooks import (
    LearnerHook,
    SaveCkptHook,
    add_learner_hook,
    build_learner_hook_by_cfg,
)
from dingsdk.worker.learner.monitor import LearnerMonitor, as_number
from dingsdk.worker.run_logger import TensorboardLogger, build_logger

_log = logging.getLogger(__name__)

LEAST_CLOSE_S = 0.1
"""Time that a hook has for ``close()`` even if other hooks have used up ``hook_close_s``."""
_SAVE_HOOK = "save_ckpt_after_run"
_OWN_VARS = ("train_time", "data_time")


Batch = SampleBatch | list[Any]
"""A training batch: columns, or rows."""


@dataclass(slots=True)
class CountVar:
    """A count that several objects share, such as the learner's iteration."""

    val: int = 0

    def update(self, val: int) -> None:
        """Set the count to ``val``."""
        self.val = val

    def add(self, add_num: int) -> None:
        """Add ``add_num`` to the count."""
        self.val += add_num


class BaseLearner(Configurable):
    """Trains a policy batch by batch, and runs hooks around every run and iteration.

    In serial mode the caller runs ``call_hook("before_run")``, then ``train`` any number of
    times, then ``call_hook("after_run")``. In parallel mode the owner of the learner attaches
    ``get_data(batch_size)`` (a subclass may define it), calls ``setup_dataloader()`` and runs
    ``start()`` in a thread of its choice; ``close()`` may be called from any other thread.

    The first iteration is number 0. Hooks after an iteration see the number of the iteration
    just finished; ``last_iter`` is increased after them.

    Args:
        cfg: Section ``policy.learn.learner``; missing keys are taken from ``default_config()``.
        policy: Learn mode of a policy; may be set later.
        tb_logger: Tensorboard writer to share; None opens one below the run folder.
        dist_info: ``(rank, world_size)``; None is ``(0, 1)``.
        exp_name: The run folder.
        instance_name: Prefix of logged names, and name of the log folder.

    Attributes:
        train_iterations: Largest number of batches that the next ``start()`` trains on.
        checkpoint_meta: Returns what the owner of the learner adds to ``meta`` of its checkpoints.

    Raises:
        ConfigError: A config value that cannot work.
        RunFolderError: The run folder cannot be written.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``policy.learn.learner``.

        Attributes:
            train_iterations: Largest number of batches that one ``start()`` trains on.
            dataloader: Has no effect; accepted because configs of DI-engine have it.
            log_policy: Whether to log the policy's ``info()`` when the policy is set.
            is_multitask_pipeline: Whether every rank logs, instead of only rank 0.
            only_monitor_rank0: Whether only rank 0 logs.
            keep_last_ckpt: How many ``iteration_<n>`` checkpoints to keep; 0 keeps all.
            hook: The learner hooks, by name; see ``build_learner_hook_by_cfg``.
        """

        type: str = "base"
        train_iterations: Count = 10**9
        dataloader: dict[str, Any] = msgspec.field(default_factory=dict)
        log_policy: bool = True
        is_multitask_pipeline: bool = False
        only_monitor_rank0: bool = True
        keep_last_ckpt: Whole = 5
        hook: dict[str, Any] = msgspec.field(
            default_factory=lambda: {
                "load_ckpt_before_run": "",
                "log_show_after_iter": 100,
                "save_ckpt_after_iter": 10000,
                "save_ckpt_after_run": True,
            }
        )

    @classmethod
    def check_config(cls, section: Mapping[str, Any], path: str) -> None:
        """Build the hooks of a section once, so that a wrong one is found before the run.

        Raises:
            ConfigError, HookError: as ``build_learner_hook_by_cfg``.
        """
        build_learner_hook_by_cfg(section["hook"], f"{path}.hook")

    def __init__(
        self,
        cfg: Mapping[str, Any],
        policy: LearnMode | None = None,
        tb_logger: TensorboardLogger | None = None,
        dist_info: tuple[int, int] | None = None,
        exp_name: str = "default_experiment",
        instance_name: str = "learner",
    ) -> None:
        self._cfg: BaseLearner.Config = self.read(cfg, "policy.learn.learner")
        if self._cfg.dataloader:
            _log.warning(
                "policy.learn.learner.dataloader has no effect: batches come from get_data as "
                "columns, without worker processes; leave it out"
            )
        self.train_iterations = self._cfg.train_iterations
        self.exp_name = exp_name
        self.instance_name = instance_name
        self.ckpt_name: str | None = None
        """Name for the next checkpoint instead of ``iteration_<n>``."""
        self.rank, self.world_size = dist_info or (0, 1)
        self.last_iter = CountVar(0)
        self._untold = 0  # iterations of the current training whose hooks have not all run
        self.collector_envstep = 0
        """Environment steps collected when the last batch was drawn; -1 if unknown."""
        self.priority_info: dict[str, Any] = {}
        """Argument for ``buffer.update`` after the last ``train``; empty without priorities."""
        self.log_vars: Mapping[str, Any] = MappingProxyType({})
        """Variables that the latest iteration logged: the policy's scalars, ``train_time``,
        ``data_time`` and those that hooks added. Read-only; it is never cleared."""
        self.sample_count = 0
        """Number of samples (rows, or sequences) passed to ``train``."""
        self.log_buffer: dict[str, dict[str, Any]] = {}
        self.clear_log_buffer()
        self.monitor = LearnerMonitor()

        self.patience: Callable[[Callable[[], object]], object] = lambda write: write()
        """Called with a function that writes a checkpoint that the run cannot do without."""
        self._policy: LearnMode | None = None
        self.scheduled: Mapping[str, float] = {}
        """Today's values of the policy's numbers that are schedules, by name, for the logs."""
        self._scheduled_at: int | None = None  # env steps that the policy was last told
        self._data_time: float | None = None
        self._draw: Callable[[], Any] | None = None
        self._is_done = False
        self._is_running = False
        self._is_closed = self._is_released = False
        # If ``close`` is called during ``start``, ``start`` releases the logs when it ends.
        self._state_lock = threading.Lock()

        hook_cfg = deep_merge_dicts(self.config["hook"], self._cfg.hook)
        if self.world_size > 1:
            hook_cfg.setdefault("log_reduce_after_iter", True)
        self._hooks = build_learner_hook_by_cfg(hook_cfg)
        self._save_hook = SaveCkptHook(_SAVE_HOOK, 20, position="after_run")

        every_rank = self._cfg.is_multitask_pipeline or not self._cfg.only_monitor_rank0
        self.is_logging: bool = self.rank == 0 or every_rank
        self.logger, own_tb_logger = build_logger(
            Path(exp_name) / "log" / instance_name,
            name=instance_name if self.rank == 0 else f"{instance_name}_rank{self.rank}",
            need_tb=self.is_logging and tb_logger is None,
            need_text=self.is_logging,
        )
        self._own_tb_logger = own_tb_logger
        self.checkpoint_meta: Callable[[], Mapping[str, Any]] = dict
        self.hook_close_s: float | None = None
        """Time limit in seconds for the ``close()`` of all hooks together. Each hook is closed in a
        separate thread; hooks that do not return in time are abandoned. None: hooks are closed in
        the caller's thread, without a limit."""
        self.tb_logger = tb_logger if tb_logger is not None else own_tb_logger
        if policy is not None:
            self.policy = policy

    @property
    def policy(self) -> LearnMode:
        """Learn mode of the policy to train; setting it replaces the monitor with a new one.

        Raises:
            ConfigError: No policy was set.
        """
        if self._policy is None:
            raise ConfigError("please set learner policy: learner.policy = policy.learn_mode")
        return self._policy

    @policy.setter
    def policy(self, policy: LearnMode) -> None:
        if not hasattr(policy, "monitor_vars"):
            raise wrong_type("policy", "a learn mode, such as policy.learn_mode", policy)
        self._policy = policy
        self.scheduled, self._scheduled_at = _scheduled(policy), None
        self.monitor = LearnerMonitor([*policy.monitor_vars(), *_OWN_VARS])
        if self._cfg.log_policy:
            self.info(policy.info())

    @property
    def train_iter(self) -> int:
        """Number of finished iterations, including those of a loaded checkpoint."""
        return self.last_iter.val

    @property
    def updates(self) -> int:
        """Number of iterations that the policy has been trained for.

        The hooks after an iteration run before ``train_iter`` counts it, and, if one training makes
        several iterations, after all of them: there it is larger than ``train_iter``.
        """
        return self.last_iter.val + self._untold

    @property
    def keep_last_ckpt(self) -> int:
        """How many ``iteration_<n>`` checkpoints to keep; 0 keeps all."""
        return self._cfg.keep_last_ckpt

    @property
    def checkpoint_dir(self) -> Path:
        """Folder of this learner's checkpoints; it is created with the first one."""
        name = self.instance_name
        return Path(self.exp_name) / ("ckpt" if name == "learner" else f"ckpt_{name}")

    @property
    def loss(self) -> float | None:
        """The ``total_loss`` of the latest iteration; None if the policy logs no such number."""
        try:
            return as_number("total_loss", self.log_vars.get("total_loss"))
        except PolicyOutputTypeError:
            return None  # the log hooks raise an error for values that are not numbers

    @property
    def learn_info(self) -> dict[str, Any]:
        """Progress of the training, for the source of the data."""
        return {
            "learner_step": self.last_iter.val,
            "priority_info": self.priority_info,
            "learner_done": self._is_done,
            "loss": self.loss,
        }

    def train(
        self,
        data: Batch,
        envstep: int = -1,
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Train the policy on one batch.

        Args:
            envstep: Environment steps collected so far; -1 if unknown. The policy's schedules need
                it.
            policy_kwargs: Passed on to the policy's ``forward``.

        Returns:
            The policy's log variables, one dict for each iteration (several if the policy
            returns a list), without ``priority`` and without entries that only log hooks use.

        Raises:
            ConfigError: No policy is set, or it has schedules and ``envstep`` is unknown.
            PolicyOutputTypeError: The policy returned neither a dict nor a list of dicts.
            NonFiniteError: The policy's ``total_loss`` is NaN or infinite.
        """
        policy = self.policy
        self.call_hook("before_iter")
        if self.scheduled and envstep != self._scheduled_at:
            self._advance_schedules(policy, envstep)
        started = perf_counter()
        output = policy.forward(data, **policy_kwargs) if policy_kwargs else policy.forward(data)
        timings = {"train_time": perf_counter() - started}
        if self._data_time is not None:
            timings["data_time"], self._data_time = self._data_time, None
        logs = [output] if isinstance(output, dict) else output
        _check_logs(logs)
        # Each of several iterations gets its share, so that sums over iterations are right.
        timings = {name: seconds / max(1, len(logs)) for name, seconds in timings.items()}
        self.sample_count += len(data)
        self.priority_info = _priority_info(logs[-1].get("priority") if logs else None, data)
        self.collector_envstep = envstep
        observers = observe()
        answers = []
        self._untold = len(logs)
        for log in logs:
            if self.scheduled:
                log = {**log, **self.scheduled}
            scalars = self._fill_log_buffer(log, timings)
            self.call_hook("after_iter")
            observers.after_iter(learner=self, iteration=self.last_iter.val, log_vars=scalars)
            self.last_iter.add(1)
            self._untold -= 1
            answers.append(scalars)
        return answers

    def setup_dataloader(self) -> None:
        """Prepare to draw batches of the policy's ``batch_size`` from ``get_data``.

        ``get_data(batch_size)`` returns data for ``to_batch``, or None when there is no more.
        ``get_data`` may block.

        Raises:
            ConfigError: ``get_data`` is not attached.
        """
        source = getattr(self, "get_data", None)
        if source is None:
            raise ConfigError(
                "this learner has no data source: attach learner.get_data(batch_size), or define "
                "it in a subclass"
            )
        batch_size = self.policy.get_attribute("batch_size")
        self._draw = partial(source, batch_size)

    def start(self) -> None:
        """Train on ``train_iterations`` batches, or until the data ends or ``close()`` is called.

        At the end it sets ``learn_info["learner_done"]`` to True and runs the hooks after the
        run. On a closed learner it returns at once.

        Raises:
            Exception: An error of the policy, a hook or the data source. A checkpoint named
                ``ckpt_exception`` is saved first, if that is possible.
        """
        with self._state_lock:
            if self._is_closed:
                return
            self._is_running = True
        try:
            if self._draw is None:
                self.setup_dataloader()
            self._is_done = False
            self.call_hook("before_run")
            self._train_loop()
            self._is_done = True
            self.call_hook("after_run")
        except Exception as error:
            self._save_after(error)
            raise
        finally:
            with self._state_lock:
                self._is_running = False
            self._release()

    def close(self) -> None:
        """End ``start()`` after its current batch, and release the logs; idempotent.

        Returns at once. A running ``start()`` still runs the hooks after the run, and then
        releases the logs itself. If ``get_data`` blocks, its owner must make it return None.
        """
        with self._state_lock:
            self._is_closed = True
        self._release()

    def call_hook(self, position: str) -> None:
        """Run the hooks of one position in order."""
        for hook in self._hooks[position]:
            try:
                hook(self)
            except Exception as error:
                error.add_note(f"raised by the learner hook {hook.name!r} ({position})")
                raise

    def add_log_vars(self, values: Mapping[str, float]) -> None:
        """Add to ``log_vars`` and to the curves ``{instance}_iter/{name}``; for hooks.

        Hooks that come later in the order see them.
        """
        self.log_vars = MappingProxyType({**self.log_vars, **values})
        if self.tb_logger is not None:
            for name, value in values.items():
                self.tb_logger.add_scalar(
                    f"{self.instance_name}_iter/{name}", value, self.train_iter
                )

    def register_hook(self, hook: LearnerHook) -> None:
        """Add a hook, after those of equal priority."""
        add_learner_hook(self._hooks, hook)

    def save_checkpoint(self, ckpt_name: str | None = None) -> None:
        """Save a checkpoint now, with the hook named ``save_ckpt_after_run`` if there is one.

        Args:
            ckpt_name: A name such as ``ckpt_best`` (or ``ckpt_best.pth.tar``). None or
                ``latest`` saves ``iteration_<n>``, and ``latest`` then points to it.

        Raises:
            RunFolderError, StorageFullError: The folder cannot be written.
        """
        after_run = self._hooks["after_run"]
        hook = next((h for h in after_run if h.name == _SAVE_HOOK), self._save_hook)
        previous, self.ckpt_name = self.ckpt_name, None if ckpt_name == LATEST else ckpt_name
        try:
            hook(self)
        finally:
            self.ckpt_name = previous

    def state_dict(self) -> dict[str, Any]:
        """Return counters, moving averages and the states of hooks that have a ``state_dict``.

        The policy's own state is not included.
        """
        hooks = {
            position: [hook.state_dict() if hasattr(hook, "state_dict") else None for hook in found]
            for position, found in self._hooks.items()
        }
        return {
            "train_iter": self.last_iter.val,
            "envstep": self.collector_envstep,
            "monitor": self.monitor.state_dict(),
            "hooks": hooks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from ``state_dict``.

        Raises:
            CheckpointCorruptError: the state is from a learner with other hooks.
        """
        saved = {position: len(found) for position, found in state["hooks"].items()}
        if saved != {position: len(found) for position, found in self._hooks.items()}:
            raise CheckpointCorruptError("the saved learner had other hooks")
        self.monitor.load_state_dict(state["monitor"])
        for position, found in self._hooks.items():
            for hook, own in zip(found, state["hooks"][position], strict=True):
                if own is not None:
                    hook.load_state_dict(own)  # type: ignore[attr-defined]
        self.last_iter.update(state["train_iter"])
        self.collector_envstep = state["envstep"]

    def info(self, text: str) -> None:
        """Write a line to the learner's text log."""
        self.logger.info(text)

    def debug(self, text: str) -> None:
        """Write a line to the learner's text log if that shows debug lines."""
        self.logger.debug(text)

    def clear_log_buffer(self) -> None:
        """Clear the log variables of the last iteration."""
        self.log_buffer = {"scalar": {}, "scalars": {}, "histogram": {}}

    def _train_loop(self) -> None:
        assert self._draw is not None
        for _ in range(self.train_iterations):
            started = perf_counter()
            drawn = None if self._is_closed else self._draw()
            if drawn is None or self._is_closed:
                break
            data = to_batch(drawn)
            self._data_time = perf_counter() - started
            self.train(data, self.collector_envstep)

    def _advance_schedules(self, policy: LearnMode, envstep: int) -> None:
        """Tell the policy the env steps, by which it sets the numbers that are schedules."""
        if envstep >= 0:
            policy.set_attribute("env_steps", int(envstep))
            self.scheduled, self._scheduled_at = _scheduled(policy), envstep

    def _fill_log_buffer(self, log: Mapping[str, Any], timings: Mapping[str, float]) -> Any:
        self.clear_log_buffer()
        scalars = {}
        for name, value in log.items():
            if name.startswith("[scalars]"):
                self.log_buffer["scalars"][name.removeprefix("[scalars]")] = dict(value)
            elif name.startswith("[histogram]"):
                self.log_buffer["histogram"][name.removeprefix("[histogram]")] = value
            elif name != "priority":
                scalars[name] = value
        # The caller may keep the returned dict; the hooks change and clear the buffer.
        self.log_buffer["scalar"] = {**scalars, **timings}
        self.log_vars = MappingProxyType({**scalars, **timings})
        return scalars

    def _save_after(self, error: Exception) -> None:
        if self._policy is None:
            return
        try:
            self.save_checkpoint(EXCEPTION)
        except Exception as second:
            # The first error is the one to report.
            _log.warning("cannot save %s: %s", EXCEPTION, second)
            error.add_note(f"No checkpoint {EXCEPTION} was saved: {second}")

    def _release(self) -> None:
        """Release logs and hooks once, if the learner is closed and does not run."""
        with self._state_lock:
            if self._is_released or self._is_running or not self._is_closed:
                return
            self._is_released = True
        own, limit_s = self._own_tb_logger, self.hook_close_s
        until = None if limit_s is None else monotonic() + limit_s
        with ExitStack() as stack:  # the others are released even if one fails or hangs
            if own is not None:
                stack.callback(own.close)
            stack.callback(self.logger.close)
            for hook in reversed([each for found in self._hooks.values() for each in found]):
                stack.callback(self._close_hook, hook, until)

    @staticmethod
    def _close_hook(hook: LearnerHook, until: float | None) -> None:
        try:
            if until is None:
                hook.close()
            elif not returns_within(max(LEAST_CLOSE_S, until - monotonic()), hook.close):
                warn_of_left("policy.learn.learner", f"the hook {hook.name!r}")
        except Exception as error:
            _log.warning("the learner hook %r could not be closed: %s", hook.name, error)


def to_batch(data: Any) -> Batch:
    """Return data from a data source as a train batch.

    Args:
        data: SampleBatch, a list of rows, or a list of callables that each return a row.

    Raises:
        PolicyOutputTypeError: The data has another type.
    """
    if isinstance(data, SampleBatch):
        return data
    if isinstance(data, list):
        return [item() if callable(item) else item for item in data]
    wanted = "a SampleBatch, a list of rows, a list of callables that return rows, or None"
    raise _wrong_type("get_data", "SampleBatch | list | None", data, wanted)


def _scheduled(policy: LearnMode) -> dict[str, float]:
    """Return the scheduled numbers of a policy as log variables; none of other policies."""
    found = attribute_of(policy, "scheduled") or {}
    return {f"scheduled/{name}": value for name, value in found.items()}


def _check_logs(logs: Any) -> None:
    if not (isinstance(logs, list) and all(isinstance(log, dict) for log in logs)):
        wanted = "a dict of log variables, or a list of such dicts, one for each iteration"
        raise _wrong_type("forward", "dict | list[dict]", logs, wanted)
    for log in logs:
        loss = log.get("total_loss")
        if isinstance(loss, float) and not math.isfinite(loss):
            raise NonFiniteError(
                f"the policy's learn forward returned a total_loss of {loss}; it must be a finite "
                "number. Usual causes: a learning rate that is too high, or non-finite samples",
                key="total_loss",
                expected="a finite number",
                found=loss,
            )


def _wrong_type(key: str, expected: str, found: Any, wanted: str) -> PolicyOutputTypeError:
    name = type(found).__name__
    who = "the policy's learn forward" if key == "forward" else key
    return PolicyOutputTypeError(
        f"{who} returned a {name}; return {wanted}", key=key, expected=expected, found=name
    )


def _priority_info(priority: Any, data: Batch) -> dict[str, Any]:
    if priority is None:
        return {}
    names = ("replay_buffer_idx", "replay_unique_id")
    if isinstance(data, SampleBatch):
        unknown = [None] * len(data)
        columns = {name: data.columns.get(name, unknown) for name in names}
    else:
        # A sample may be a list of rows, or anything else that the policy makes.
        rows = [row if isinstance(row, Mapping) else {} for row in data]
        columns = {name: [row.get(name) for row in rows] for name in names}
    return {"priority": priority, **columns}
