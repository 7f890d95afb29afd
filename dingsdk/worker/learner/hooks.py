"""Learner hooks: actions before and after a run or an iteration, chosen by config.

Write a ``LearnerHook`` for an action that is chosen by config, ordered by priority and has state
per learner. Write a hookimpl (see ``dingsdk.plugins``) to only observe the whole process.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from bisect import insort_right
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import numpy as np

from dingsdk.config import Count, Section, join_unknown, read_section, to_easydict
from dingsdk.errors import (
    CheckpointError,
    ConfigError,
    HookError,
    StorageFullError,
    UnknownKeyError,
    message_of,
    nearest_name,
    spelling,
    wrong_type,
)
from dingsdk.plugins import default_manager
from dingsdk.plugins.interfaces import check_interface, check_made
from dingsdk.worker.learner.checkpoint import (
    EXCEPTION,
    Checkpoint,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from dingsdk.worker.learner.monitor import as_number
from dingsdk.worker.learner.transfer import state_to_load
from dingsdk.worker.run_logger import LogPace

if TYPE_CHECKING:
    from dingsdk.policy.modes import LearnMode
    from dingsdk.worker.learner.base import BaseLearner

HookTable = dict[str, list["LearnerHook"]]
"""The hooks of a learner by position, each list in calling order."""

_CONFIG_PATH = "policy.learn.learner.hook"
_logger = logging.getLogger(__name__)


class Hook(ABC):
    """A named action with a place in an order.

    Args:
        name: Name of the hook, for messages and to find it.
        priority: >= 0; lower runs earlier, equal ones in the order they were added.

    Raises:
        HookError: ``priority`` is negative or no number.
    """

    def __init__(self, name: str, priority: float, **kwargs: Any) -> None:
        is_number = isinstance(priority, int | float) and not isinstance(priority, bool)
        if not is_number or not priority >= 0:
            raise HookError(
                f"the hook {name!r} has priority {priority!r}; use a number >= 0, lower is earlier",
                name=name,
                found=priority,
            )
        self.name = name
        self.priority = priority

    @abstractmethod
    def __call__(self, engine: Any) -> None:
        """Act on ``engine``; an exception ends the run with its traceback."""


class LearnerHook(Hook):
    """A hook of a learner.

    A hook with a state defines ``state_dict`` and ``load_state_dict``: a serial run that is resumed
    restores it. The state is plain data, arrays and tensors.

    Args:
        position: When it runs; one of ``positions``.
        ext_args: Options from the config, which are read into ``self.args`` as the section
            ``Args`` of the class. A class without one has no options.

    Raises:
        HookError: ``position`` is unknown.
        ConfigError: ``ext_args`` do not fit ``Args``.

    Example:
        >>> class CountHook(LearnerHook):
        ...     calls = 0
        ...
        ...     def __call__(self, engine):
        ...         self.calls += 1
        >>> CountHook("count", 50, position="after_iter").position
        'after_iter'
    """

    positions: ClassVar[tuple[str, ...]] = ("before_run", "after_run", "before_iter", "after_iter")
    Args: ClassVar[type[Section]] = Section
    contract_capabilities: ClassVar[frozenset[str] | None] = frozenset({"args"})

    def __init__(
        self,
        name: str,
        priority: float,
        *,
        position: str,
        ext_args: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, priority, **kwargs)
        if position not in self.positions:
            raise HookError(
                f"the hook {name!r} has position {position!r}; use one of {list(self.positions)}",
                name=name,
                found=position,
                nearest=nearest_name(str(position), self.positions),
            )
        self.position = position
        self.args: Any = read_section(self.Args, ext_args or {}, "ext_args")

    @abstractmethod
    def __call__(self, engine: BaseLearner) -> None:
        """Act on the learner.

        ``engine.last_iter.val`` is the iteration just finished, ``engine.log_vars`` its log
        variables.
        """

    def close(self) -> None:
        """Release the hook's resources; called when the learner is closed, possibly twice.

        In a worker each hook is closed in a separate thread. All hooks together have 4 s; hooks
        that take longer are abandoned.
        """


def register_learner_hook(name: str, hook_type: type[LearnerHook]) -> None:
    """Make ``hook_type`` available to configs as ``type: name``, replacing one of that name.

    Raises:
        HookError: ``hook_type`` is not a subclass of ``LearnerHook``.
    """
    if not (isinstance(hook_type, type) and issubclass(hook_type, LearnerHook)):
        raise HookError(
            f"cannot register {hook_type!r} as the learner hook {name!r}: derive it from "
            "dingsdk.worker.LearnerHook",
            name=name,
            found=hook_type,
        )
    default_manager().registry("learner_hooks").register(name, hook_type, force_overwrite=True)


class HookEntry(Section, frozen=True, kw_only=True):
    """The full form of one hook in a config.

    Attributes:
        type: Type key of the hook; required.
        position: When it runs: ``before_run``, ``after_run``, ``before_iter`` or ``after_iter``;
            required.
        name: Name for messages; the default is the key of the entry.
        priority: Place in the order, a number >= 0: hooks with a lower priority run first.
        ext_args: Options of the hook; the tables below list those of each hook.
        import_names: Modules to import first; they may register the type.
    """

    type: str = ""
    position: str = ""
    name: str = ""
    priority: Any = 100
    ext_args: dict[str, Any] | None = None
    import_names: tuple[str, ...] = ()


# Names that differ from the key are those that callers of DI-engine look for.
SHORT_HOOKS: dict[str, tuple[str, str, str, int, str | None, type]] = {
    "load_ckpt_before_run": ("load_ckpt", "before_run", "load_ckpt", 20, "load_path", str),
    "log_show_after_iter": ("log_show", "after_iter", "log_show", 20, "freq", int),
    "save_ckpt_after_iter": ("save_ckpt", "after_iter", "save_ckpt_after_iter", 20, "freq", int),
    "save_ckpt_after_run": ("save_ckpt", "after_run", "save_ckpt_after_run", 20, None, bool),
    "log_reduce_after_iter": ("log_reduce", "after_iter", "log_reduce_after_iter", 10, None, bool),
}
"""Short entries: type, position, name, priority, the key of ``ext_args`` that gets the value, and
the value's type."""


def build_learner_hook_by_cfg(cfg: Mapping[str, Any], config_path: str = _CONFIG_PATH) -> HookTable:
    """Build the hooks that a config section names.

    Args:
        cfg: Entries in two forms. *Simplified*: ``log_show_after_iter: freq``,
            ``load_ckpt_before_run: path``, ``save_ckpt_after_iter: freq``,
            ``save_ckpt_after_run: bool``, ``log_reduce_after_iter: bool``; ``False``, ``0``,
            ``''`` and ``None`` turn one off. *Full*, under any key: a dict of ``type``,
            ``position``, and optionally ``name`` (the key), ``priority`` (100), ``ext_args``
            and ``import_names``; under a simplified key ``type`` and ``position`` may be left
            out as well. ``{"hook": section}`` is taken as the section.
        config_path: Path of ``cfg`` in the whole config, for messages.

    Returns:
        All four positions, each with its hooks in calling order.

    Raises:
        UnknownKeyError: A key of neither form.
        UnknownPluginError: A ``type`` that nothing provides.
        HookError, ConfigError: A value that cannot work.
    """
    inner = cfg.get("hook")
    if len(cfg) == 1 and isinstance(inner, Mapping) and "type" not in inner:
        cfg = inner
    hooks: HookTable = {position: [] for position in LearnerHook.positions}
    unknown: list[UnknownKeyError] = []
    for key, value in cfg.items():
        try:
            hook = _build_entry(key, value, f"{config_path}.{key}")
        except UnknownKeyError as error:
            unknown.append(error)
        else:
            if hook is not None:
                add_learner_hook(hooks, hook)
    if unknown:
        raise join_unknown(unknown)
    return hooks


def _build_entry(key: str, value: Any, path: str) -> LearnerHook | None:
    full: dict[str, Any] = {"name": key}
    if key in SHORT_HOOKS:
        full = dict(zip(("type", "position", "name"), SHORT_HOOKS[key][:3], strict=True))
    elif not isinstance(value, Mapping):
        raise _unknown(key, path)
    if not isinstance(value, Mapping):
        if not value:
            return None
        return _create(HookEntry(**full, **_simplified_args(key, value, path)), path)
    entry = read_section(HookEntry, {**full, **value}, path)
    # Checked after the rest, so that a misspelt key is named as such.
    for required in ("type", "position"):
        if not getattr(entry, required):
            raise wrong_type(f"{path}.{required}", "str", value.get(required))
    return _create(entry, path)


def add_learner_hook(hooks: HookTable, hook: LearnerHook) -> None:
    """Insert ``hook`` in place: ascending priority, after those of equal priority.

    Raises:
        HookError: it is no ``LearnerHook``.
    """
    if not isinstance(hook, LearnerHook):
        raise HookError(
            f"{hook!r:.80} is no learner hook; give an instance of a subclass of "
            "dingsdk.worker.LearnerHook",
            name=getattr(hook, "__name__", type(hook).__name__),
            found=type(hook).__name__,
        )
    insort_right(hooks[hook.position], hook, key=lambda present: present.priority)


def merge_hooks(hooks1: HookTable, hooks2: HookTable) -> HookTable:
    """Return a new table of both; at equal priority ``hooks1`` come first.

    Raises:
        HookError: The tables have different positions.
    """
    if hooks1.keys() != hooks2.keys():
        raise HookError(
            f"cannot merge hook tables with positions {sorted(hooks1)} and {sorted(hooks2)}",
            name="",
            found=sorted(hooks2),
        )
    return {
        position: sorted([*hooks1[position], *hooks2[position]], key=lambda hook: hook.priority)
        for position in hooks1
    }


def _simplified_args(key: str, value: Any, path: str) -> dict[str, Any]:
    *_, priority, argument, expected = SHORT_HOOKS[key]
    # A bool is an int: `freq: True` means every iteration. 1e4 is how people write 10000.
    if expected is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, expected):
        raise wrong_type(path, expected.__name__, value)
    return {"priority": priority, "ext_args": argument and {argument: expected(value)}}


def _create(entry: HookEntry, path: str) -> LearnerHook:
    hook_type = default_manager().get(
        "learner_hooks", entry.type, import_names=entry.import_names, config_path=path
    )
    if not getattr(hook_type, "__module__", "").startswith("dingsdk."):
        check_interface("learner_hooks", hook_type, f"{path}.type: {entry.type!r} is wrong: ")
    try:
        hook: LearnerHook = hook_type(
            entry.name,
            entry.priority,
            position=entry.position,
            ext_args=to_easydict(entry.ext_args or {}),
        )
    except Exception as error:
        error.add_note(
            f"While building the learner hook {entry.name!r} (type {entry.type!r}) of {path}."
        )
        raise
    if type(hook) is not hook_type:
        check_made("learner_hooks", hook_type, hook, f"{path}.type: {entry.type!r}")
    return hook


def _unknown(key: str, path: str) -> UnknownKeyError:
    nearest, hint = spelling(key, SHORT_HOOKS)
    known = (
        f"Known: {', '.join(sorted(SHORT_HOOKS))}; any other name takes a dict with 'type' and "
        "'position'."
    )
    return UnknownKeyError(
        f"unknown learner hook {path}{hint} {known}",
        path=path,
        key=key,
        known=sorted(SHORT_HOOKS),
        nearest=nearest,
        unknown=[(path, hint.strip("; .") or known)],
    )


class _LoadArgs(Section, frozen=True, kw_only=True):
    """Options of ``load_ckpt``.

    Attributes:
        load_path: Path of a checkpoint; see ``load_checkpoint``; empty loads nothing.
        keep: What is taken besides the weights: ``optimizer``, the moments of the optimizers, and
            ``counters``, the iterations and env steps. What is left out begins anew.
        parts: Parts of the model to take, by module path, as ``encoder``; the others begin anew.
            None takes all. Needs ``keep`` without ``optimizer``.
        restores_settings: Whether learning rates, weight decay and other settings of optimizers are
            those in the checkpoint, as in a resumed run; else they are those of the config.
    """

    load_path: str
    keep: list[Literal["optimizer", "counters"]] = msgspec.field(
        default_factory=lambda: ["optimizer", "counters"]
    )
    parts: list[str] | None = None
    restores_settings: bool = False

    def __post_init__(self) -> None:
        has_optimizer = "optimizer" in self.keep
        if self.parts is not None and has_optimizer:
            raise ValueError(
                "keep has 'optimizer', but the moments of an optimizer are for all parts of the "
                f"model, and parts are {', '.join(self.parts)}; leave one of them out"
            )
        if self.restores_settings and not has_optimizer:
            raise ValueError(
                "restores_settings is true, but keep has no 'optimizer', whose settings it means"
            )


class PeriodArgs(Section, frozen=True, kw_only=True):
    """Options of hooks that act every few iterations.

    Attributes:
        freq: The hook acts in iterations whose number is divisible by this.
    """

    freq: Count = 1


class LoadCkptHook(LearnerHook):
    """Loads the checkpoint ``load_path``, and continues its iteration and env step counts.

    A run begins at these counts: exploration, limits such as ``system.max_env_steps``, records and
    curves continue from the checkpoint's. The moments of optimizers are loaded too; their settings,
    such as the learning rate, are those of the run's config. ``keep`` and ``parts`` choose less.
    """

    Args = _LoadArgs
    contract_config: ClassVar[Mapping[str, Any]] = {"load_path": ""}

    def __call__(self, engine: BaseLearner) -> None:
        if not self.args.load_path:
            return
        checkpoint = load_checkpoint(self.args.load_path)
        self.load_into(engine.policy, checkpoint)
        text = f"loaded checkpoint {checkpoint.path} of iteration {checkpoint.iteration}"
        if "counters" in self.args.keep:
            engine.last_iter.update(checkpoint.iteration)
            engine.collector_envstep = checkpoint.envstep
        if self.args.parts is not None:
            text += f"; only {', '.join(self.args.parts)}"
        engine.info(text)

    def load_into(self, policy: LearnMode, checkpoint: Checkpoint) -> None:
        """Load what ``args`` choose of a checkpoint into a new policy.

        Raises:
            CheckpointError: it does not fit; the policy is not changed.
        """
        args = self.args
        try:
            state = state_to_load(
                policy.state_dict(),
                checkpoint,
                with_optimizers="optimizer" in args.keep,
                with_settings=args.restores_settings,
                parts=args.parts,
            )
            policy.load_state_dict(state)
        except CheckpointError:
            raise
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint {checkpoint.path} does not fit this policy: {message_of(error)}. "
                "Use the config that it was saved under (beside it in the run folder).",
                path=str(checkpoint.path),
            ) from error


def loading_hook(cfg: Mapping[str, Any]) -> LoadCkptHook | None:
    """Return the hook that loads the checkpoint a run begins with; None for new weights.

    Args:
        cfg: As for ``build_learner_hook_by_cfg``. Only hooks of the type ``load_ckpt`` count.
    """
    loading = {
        key: value
        for key, value in cfg.items()
        if key == "load_ckpt_before_run"
        or (isinstance(value, Mapping) and value.get("type") == "load_ckpt")
    }
    found = None
    for hook in build_learner_hook_by_cfg(loading)["before_run"]:
        if isinstance(hook, LoadCkptHook) and hook.args.load_path:
            found = hook
    return found


def first_checkpoint(cfg: Mapping[str, Any]) -> Checkpoint | None:
    """Return the checkpoint whose counts a run continues; None for a run that begins at 0.

    Args:
        cfg: As for ``loading_hook``.

    Raises:
        CheckpointError: The checkpoint cannot be read.
    """
    hook = loading_hook(cfg)
    if hook is None or "counters" not in hook.args.keep:
        return None
    return load_checkpoint(hook.args.load_path)


class SaveCkptHook(LearnerHook):
    """Saves a checkpoint every ``freq`` iterations, on rank 0 only.

    The checkpoint is named ``engine.ckpt_name``, or ``iteration_<n>`` if that is None. As in
    DI-engine, ``n`` counts iterations from 0 during the run: the policy of ``iteration_0`` was
    trained for one. The iteration in the checkpoint is ``engine.updates``, the number of them. Only
    the last ``engine.keep_last_ckpt`` of the ``iteration_<n>`` checkpoints are kept. If the disk is
    full after an iteration, the checkpoint is skipped with a warning. The last checkpoint and that
    of a new best policy wait for room, and an error ends the run after
    ``system.coordinator.storage_timeout_s``.
    """

    Args = PeriodArgs

    def __call__(self, engine: BaseLearner) -> None:
        iteration = engine.last_iter.val
        if engine.rank != 0 or iteration % self.args.freq:
            return
        name = engine.ckpt_name or f"iteration_{iteration}"

        def save() -> None:
            path = save_checkpoint(
                engine.checkpoint_dir,
                name,
                engine.policy.state_dict(),
                iteration=engine.updates,
                envstep=engine.collector_envstep,
                meta={"instance_name": engine.instance_name, **engine.checkpoint_meta()},
            )
            engine.info(f"saved checkpoint {path}")

        try:
            if self.position == "after_iter" or name == EXCEPTION:
                save()
            else:
                engine.patience(save)
        except StorageFullError as error:
            if self.position != "after_iter":
                raise
            _logger.warning(
                "no checkpoint of iteration %d, training continues: %s", iteration, error
            )
            return
        if engine.keep_last_ckpt:
            prune_checkpoints(engine.checkpoint_dir, engine.keep_last_ckpt)


class LogShowHook(LearnerHook):
    """Records the logged variables, and shows their moving averages every ``freq`` iterations.

    Iterations 1, 2, 4, 8, ... below ``freq`` are shown too, so that a short run has curves. In a
    long run, ``LogPace`` leaves out what would fill the disk.
    Shown are the variables that the policy's ``monitor_vars()`` names, as a text table and as
    tensorboard curves ``{instance}_iter/{var}_avg`` over iterations and (where env steps are
    known) ``{instance}_step/{var}_avg`` over env steps. Numbers that are schedules are shown as
    ``scheduled/{number}``, as they are; ``[scalars]name`` as
    ``{instance}_iter/{name}/{key}`` (DI-engine never writes them), ``[histogram]name`` as
    ``{instance}/{name}``.
    """

    Args = PeriodArgs

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._pace = LogPace()

    def __call__(self, engine: BaseLearner) -> None:
        if engine.is_logging:
            engine.monitor.record(engine.log_buffer["scalar"])
            engine.monitor.tick()
            iteration, freq = engine.last_iter.val, self.args.freq
            is_early = iteration < freq and iteration & (iteration - 1) == 0
            if (is_early or iteration % freq == 0) and self._pace.is_due():
                self._show(engine)
        engine.clear_log_buffer()

    def _show(self, engine: BaseLearner) -> None:
        iteration, envstep = engine.last_iter.val, engine.collector_envstep
        averages = engine.monitor.averages()
        means = {f"{name}_avg": mean for name, mean in averages.items()} | dict(engine.scheduled)
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

    Every rank must log the same variables. Histograms and names that begin with ``noreduce_``
    are not changed. At world size 1 nothing happens. Works with any torch.distributed backend
    (DI-engine needs CUDA).
    """

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
        numbers = [as_number(key, holder[key]) for holder, key in slots]
        # NCCL needs tensors on a GPU, the one that this process has chosen.
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        values = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(values)
        means = (values / dist.get_world_size()).tolist()
        for (holder, key), mean in zip(slots, means, strict=True):
            holder[key] = mean
