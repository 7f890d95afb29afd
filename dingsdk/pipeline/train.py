"""``train``: trains the policy of a config, and writes a run folder."""

from __future__ import annotations

import atexit
import dataclasses
import gc
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dingsdk.config import apply_set, deep_merge_dicts, load_config
from dingsdk.config.files import check_sets
from dingsdk.config.plain import check_bounds, find, put
from dingsdk.errors import (
    ConfigError,
    DingError,
    RunFolderError,
    StorageFullError,
    error_text,
    message_of,
    repr_of,
)
from dingsdk.pipeline.context import Mode, RunContext, RunRecorder, RunResult
from dingsdk.pipeline.results import write_results
from dingsdk.pipeline.run_folder import (
    check_flag,
    claim_run_folder,
    discard_run,
    find_checkpoints,
    held,
    make_run_folder,
    private_files,
    run_path,
    write_config,
)
from dingsdk.pipeline.signals import StopOnSignal
from dingsdk.pipeline.start import begin_from
from dingsdk.pipeline.status_file import Reporter
from dingsdk.plugins import default_manager, observe
from dingsdk.plugins.interfaces import check_interface
from dingsdk.runtime.files import Patience, checked_path
from dingsdk.runtime.spawn import begin_fork_server, leave_if_importing, spawn_context
from dingsdk.worker.run_id import run_id

if TYPE_CHECKING:
    from dingsdk.worker import LearnerHook

_log = logging.getLogger(__name__)

PRELOADED = (
    "torch",
    "dingsdk.pipeline.parallel",
    "dingsdk.worker.comm.collector",
    "dingsdk.worker.comm.learner",
    "dingsdk.worker.learner.base",
    "dingsdk.envs.vector",
)
"""What the processes of a run are forked with: what each of them would import otherwise, without
plugins. Together these take 1.8 s of a processor, of which torch takes 1.3 s (2026-11)."""
GREET_S = 10.0
"""How long a shared replay server may take to answer before a run begins."""


def train(
    config: str | os.PathLike[str] | Mapping[str, Any],
    mode: Mode = "serial",
    transport: str | None = None,
    sets: Sequence[str] = (),
    seed: int | None = None,
    output: str | os.PathLike[str] = "runs",
    progress: bool = False,
    *,
    env: str | Callable[..., Any] | None = None,
    policy: type | None = None,
    callbacks: Sequence[Any] = (),
    start_from: str | os.PathLike[str] | None = None,
    keep: Sequence[str] = (),
    parts: Sequence[str] | None = None,
) -> RunResult:
    """Train the policy of a config, and write a run folder.

    If ``train`` is called from the main thread, SIGINT, SIGTERM and SIGHUP stop the run within
    seconds: it saves a checkpoint and ends with the reason ``interrupted``. A second signal exits
    the process at once; in a notebook or a Python shell, a second SIGINT only ends the run.

    Args:
        config: A file, the name of a shipped example, or the config itself.
        mode: ``serial``: everything runs in one thread. ``parallel``: a coordinator, collectors
            and a learner run in parallel, connected by the transport.
        transport: Type of the transport, in place of ``system.transport.type``; only in mode
            ``parallel``.
        sets: Overrides as ``"a.b=c"``, applied in order.
        seed: Seed of the run, in place of ``seed`` of the config.
        output: Folder in which the run folder is made.
        progress: Whether to show the progress of the run on the console, as ``dingsdk train`` does.
        env: An env id, or a class or function that returns an env when it is called with
            ``env.kwargs``; in place of ``env.env_id``.
        policy: A policy class, in place of ``policy.type``. Its type key is its name.
        callbacks: Functions with the name of a hook, such as ``after_evaluate(mean_return)`` or
            ``after_iter(learner, iteration, log_vars)``, and objects with such methods.
            ``docs/reference/hooks.md`` lists the hooks, under ``dingsdk_<name>``, with their
            arguments; a callback may take any of them. If a callback raises, the error is logged
            with its name, and the run continues. Serial mode also takes ``LearnerHook`` objects;
            their exceptions end the run.
        start_from: A run folder, from whose best checkpoint, or else the newest, this run takes its
            first weights; or a checkpoint's file. Everything else is as in a new run.
        keep: What else is taken from it: ``optimizer``, the moments of the optimizers, and
            ``counters``, the iterations and env steps, which this run then continues.
        parts: The parts of the model that are taken, by module path, as ``["encoder"]``; None for
            all.

    Returns:
        How the run ended; ``result.run_dir`` is the run folder.

    Raises:
        ConfigError: the config cannot work, a callback implements no hook, or worker processes
            cannot import a class or call a callback. No file was written.
        CheckpointError: the run begins with a checkpoint that cannot be read, or does not fit its
            model. No file was written.
        RunFolderError: the run folder cannot be made.
        DingError: a part failed during the run; if possible, a checkpoint was saved first.

    Example::

        result = dingsdk.train("cartpole-dqn", sets=["system.max_env_steps=5000"], seed=1)
        print(result.reason, result.best_return, result.run_dir)
    """
    leave_if_importing()
    check_flag(progress, "progress")
    root = checked_path(output, "output")
    if start_from is None and (parts is not None or not isinstance(keep, Sequence) or keep):
        raise ConfigError(
            "keep and parts say what is taken of another run; give start_from (--from RUN) too",
            path="start_from",
        )
    start = None if start_from is None else (start_from, keep, parts)
    cfg = compile_run(config, mode, transport, sets, seed, env, policy, begins=True, start=start)
    _check_first_checkpoint(cfg, mode)
    with _given(cfg, mode, env, callbacks) as hooks:
        folder = make_run_folder(root, cfg.exp_name)
        context = RunContext(cfg=cfg, run_dir=folder, learner_hooks=hooks)
        return run_pipeline(context, mode, progress)


def resume(
    run: str | os.PathLike[str],
    sets: Sequence[str] = (),
    progress: bool = False,
    *,
    env: str | Callable[..., Any] | None = None,
    policy: type | None = None,
    callbacks: Sequence[Any] = (),
) -> RunResult:
    """Continue a run from its last save; returns the same as ``train``.

    A resumed serial run has exactly the results of an uninterrupted run, except for the parts that
    the run listed in its log: envs that cannot be saved, and schedules that use the clock. A run
    in parallel mode continues with the counters, samples and priorities of its journal and with
    the newest checkpoint of its learner, and begins new episodes.

    Args:
        run: The run folder, or the folder of one save in it (``RUN/resume/000012``).
        sets: Overrides as for ``train``. Only these keys can change: ``env.stop_value``,
            ``system.max_env_steps``, ``policy.learn.learner.train_iterations``,
            ``system.save_every``, and ``system.transport.address`` (of a Ray cluster).
        progress: As for ``train``, like the other arguments. Classes and callbacks are not saved:
            pass those that were passed to ``train`` again.

    Raises:
        CheckpointMissingError, CheckpointCorruptError: there is nothing to resume from. These
            errors and the next two are raised before anything is changed.
        ConfigError: an override cannot be applied to a resumed run.
        RunFolderError: the run is still running, or its folder cannot be written to.
        DingError: a part failed during the run.
    """
    from dingsdk.pipeline.resume import changed_config, find_run
    from dingsdk.pipeline.saved_run import Save

    leave_if_importing()
    check_flag(progress, "progress")
    save = find_run(run_path(run))
    if not os.access(save.run_dir, os.W_OK):
        raise RunFolderError(
            f"the run folder {save.run_dir} cannot be written to, and a resumed run writes "
            "there; copy it to another disk, and resume it there",
            path=str(save.run_dir),
        )
    mode: Mode = "serial" if isinstance(save, Save) else "parallel"
    cfg = compile_run(changed_config(save, sets), mode, env=env, policy=policy, begins=True)
    with _given(cfg, mode, env, callbacks) as hooks:
        context = RunContext(cfg=cfg, run_dir=save.run_dir, learner_hooks=hooks, resumed=save)
        return run_pipeline(context, mode, progress)


@contextmanager
def _given(
    cfg: Any,
    mode: Mode,
    env: str | Callable[..., Any] | None,
    callbacks: Sequence[Any],
) -> Iterator[Sequence[LearnerHook]]:
    """Check and register the env, policy and callbacks of ``train``; yield the learner hooks."""
    # Imported late: a mistake in the config is reported before torch is imported.
    from dingsdk.pipeline.user_objects import callbacks_registered, check_importable, learner_hooks
    from dingsdk.pipeline.worker import has_env_processes, has_processes, transport_class

    hooks, in_processes = learner_hooks(callbacks, mode), has_processes(cfg, mode)
    are_envs_elsewhere = has_env_processes(cfg)
    starters = {
        "system.transport.type": in_processes,
        "env_manager.type": are_envs_elsewhere,
        "system.learner_num": cfg.system.learner_num > 1,
    }
    for path, has_children in starters.items():
        if has_children:
            spawn_context(path)
    if in_processes or are_envs_elsewhere:
        # The processes of a cluster do not import the script.
        has_script = not (in_processes and transport_class(cfg).starts_workers)
        check_importable("env", env, has_script=has_script)
    with callbacks_registered(callbacks, in_processes=in_processes):
        yield hooks


def run_coordinator(
    cfg: Any,
    run_dir: Path,
    on_address: Callable[[str, str], None],
    progress: bool = False,
) -> RunResult:
    """Train with workers that the user starts; returns the same as ``train``.

    Args:
        run_dir: Folder of the run, which all workers share. If it holds this run, whose
            coordinator was killed or stopped, the run continues; otherwise a new run begins.
        on_address: Called with the address that workers connect to, and a note that says what
            else they need.

    Raises:
        ConfigError: the transport cannot reach workers outside this process, or the folder holds
            a run with another config.
        DingError: the folder cannot be used, or a part failed during the run.
    """
    from dingsdk.pipeline.resume import find_unfinished
    from dingsdk.pipeline.worker import check_reach

    check_reach(cfg)
    resumed = find_unfinished(run_dir, cfg)
    folder = claim_run_folder(run_dir) if resumed is None else run_dir
    context = RunContext(cfg=cfg, run_dir=folder, on_address=on_address, resumed=resumed)
    # The user started the workers, so they may still run after the last coordinator ended.
    context.rejoin_s = cfg.system.coordinator.lease_s
    return run_pipeline(context, "parallel", progress)


def run_pipeline(
    context: RunContext,
    mode: Mode,
    progress: bool = False,
) -> RunResult:
    """Train in an existing run folder, and write the config, the result and the curve to it.

    Replaces the recorder and the signals of ``context``. Arguments and errors are those of
    ``train``.
    """
    cfg = context.cfg
    context.signals = signals = StopOnSignal(
        context.stop, saved=lambda: _saved(context.run_dir), can_break=mode == "serial"
    )
    # When the process ends, garbage collection takes half a second with torch; skip it.
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    with held(context.run_dir), private_files(), signals, ExitStack() as stack:
        stack.callback(_discard_unless_begun, context)
        if cfg.system.replay.address and context.on_address is None:
            _greet_replay_server(cfg.system.replay)
        if context.resumed is None:
            run_id(context.run_dir)
            write_config(context.run_dir, cfg)
        default_manager().configure(cfg)
        stack.callback(default_manager().unconfigure)
        _warn_of_short_pieces(cfg)
        observe().run_started(config=cfg, run_dir=context.run_dir)
        shown = None
        if progress:
            from dingsdk.pipeline.console import console_progress

            shown = console_progress(context, mode)
        context.recorder = RunRecorder(on_evaluation=None if shown is None else shown.on_evaluation)
        reporter = stack.enter_context(Reporter(context, mode, shown))
        records: list[Mapping[str, Any]] = []

        def conclude(result: RunResult) -> RunResult:
            if signals.received is not None and result.reason == "interrupted":
                result = dataclasses.replace(result, signal=int(signals.received))
            if result.reason == "limit" and not result.train_iter:
                _log.warning(
                    "no iteration was trained in %d env steps: the replay buffer gave no batch "
                    "(look at its limiter, the batch size and the length of its sequences), or the "
                    "run ended before the learner asked for one (look at the limits of the run)",
                    result.env_steps,
                )
            signals.doing = "the run is over, and its results are being written"
            reporter.reason = result.reason
            if context.has_begun or context.resumed is None:
                records.append(write_results(context, result, None, context.patience()))
            else:
                _log.warning("the run was not resumed yet; its files have not changed")
            return result

        context.conclude = conclude
        try:
            result = _pipeline(mode, context)(context)
        except (Exception, KeyboardInterrupt) as error:
            if signals.received is None or isinstance(error, StorageFullError):
                reporter.reason = "error"
                if context.resumed is None or context.has_begun:
                    _finish_failed(context, mode, error)
                raise
            # A signal may have reached all processes: parts fail because others have ended.
            _log.warning("after the signal: %s", message_of(error) or "a part did not stop in time")
            _log.debug("the run ended by this error", exc_info=error)
            result = context.finish("interrupted", mode)
            records.clear()
        if not records:
            result = conclude(result)
        if records:
            observe().run_finished(run_dir=context.run_dir, result=records[0])
        return result


def _warn_of_short_pieces(cfg: Any) -> None:
    policy, collect = cfg.policy, cfg.policy.collect
    if policy.on_policy or policy.traj_len_inf or not collect.n_sample or collect.n_episode:
        return
    from dingsdk.worker.collector.factory import declared_piece, traj_len_of

    env_num = cfg.env.collector_env_num
    traj_len = traj_len_of(declared_piece(cfg), collect.n_sample, collect.unroll_len, env_num)
    nstep = policy.nstep or 1  # None in a plugin's policy: another library decides
    if traj_len is not None and traj_len < nstep:
        _log.warning(
            "policy.nstep is %d, but the longest sample spans %d: trajectories are cut after "
            "policy.collect.n_sample %d / env.collector_env_num %d; for more raise n_sample or use "
            "fewer envs",
            nstep,
            traj_len,
            collect.n_sample,
            env_num,
        )


def compile_run(
    config: str | os.PathLike[str] | Mapping[str, Any],
    mode: Mode = "serial",
    transport: str | None = None,
    sets: Sequence[str] = (),
    seed: int | None = None,
    env: str | Callable[..., Any] | None = None,
    policy: type | None = None,
    makes_env: bool = True,
    begins: bool = False,
    start: tuple[str | os.PathLike[str], Sequence[str], Sequence[str] | None] | None = None,
) -> Any:
    """Load and compile a config with the overrides of the command line; see ``train``.

    For ``makes_env`` see ``compile_config``; ``begins`` says that the run begins afterwards;
    ``start`` holds the arguments of ``begin_from``.
    """
    if not isinstance(mode, str) or mode not in ("serial", "parallel"):
        raise ConfigError(f"mode is {repr_of(mode)}; known: parallel, serial", path="mode")
    if transport is not None and mode == "serial":
        raise ConfigError(
            f"the transport {repr_of(transport)} is for mode='parallel' (--mode parallel), and the "
            "mode is serial; choose that mode, or give no transport",
            path="mode",
        )
    # Read before the parts of a run are imported: a mistake in the file is reported at once.
    user = dict(config) if isinstance(config, Mapping) else load_config(config)
    check_bounds(user)
    from dingsdk.pipeline.compile import compile_config, convert_config
    from dingsdk.pipeline.user_objects import name_env, name_policy

    # Converted before the overrides, which use the paths of the compiled config.
    user = convert_config(user)
    if env is not None:
        user = deep_merge_dicts(user, {"env": {"env_id": name_env(env)}})
    if policy is not None:
        user = deep_merge_dicts(user, {"policy": {"type": name_policy(policy)}})
    for assignment in check_sets(sets):
        apply_set(user, assignment)
    if transport is not None:
        put(user, "system.transport.type", transport)
    if start is not None:
        begin_from(user, *start)
    if mode == "parallel" and begins:
        _begin_processes(user)
    return compile_config(user, seed=seed, mode=mode, makes_env=makes_env)


def _begin_processes(user: Mapping[str, Any]) -> None:
    """Let the processes of a run import while its config is compiled, if it will have any."""
    section = find(user, "system.transport")
    if not isinstance(section, Mapping) or not isinstance(section.get("type"), str):
        return  # the default has no processes, and compiling the config reports what is wrong
    with suppress(DingError):
        kind = default_manager().get("transports", section["type"])
        check_interface("transports", kind)
        if kind.place_of(section) == "processes" and not kind.starts_workers:
            begin_fork_server(PRELOADED)


def _check_first_checkpoint(cfg: Any, mode: Mode) -> None:
    """Check the checkpoint that ``load_ckpt`` loads, on a policy that is made only for this.

    Raises:
        CheckpointError: it cannot be read here, or does not fit the policy.
        ConfigError: it has already reached a limit of the run.
    """
    from dingsdk.policy import create_policy
    from dingsdk.worker.learner.checkpoint import load_checkpoint
    from dingsdk.worker.learner.hooks import loading_hook

    section = cfg.policy.learn.learner
    if mode == "parallel" and cfg.system.transport.get("address"):
        return  # a learner on another host may have other files
    hook = loading_hook(section.get("hook") or {})
    if hook is None:
        return
    found = load_checkpoint(hook.args.load_path)
    policy_cfg = {**cfg.policy, "cuda": False, "compile": False}
    hook.load_into(create_policy(policy_cfg, ["learn"], seed=0).learn_mode, found)
    if "counters" not in hook.args.keep:
        return
    for path, limit, count, what in (
        ("system.max_env_steps", cfg.system.max_env_steps, found.envstep, "env step"),
        (
            "policy.learn.learner.train_iterations",
            section.train_iterations,
            found.iteration,
            "iteration",
        ),
    ):
        if limit is not None and count >= limit:
            raise ConfigError(
                f"{path} is {limit}, but the checkpoint {found.path} is of {what} {count}: a run "
                "that continues the counts of a checkpoint needs a higher limit",
                path=path,
                expected=f"> {count}",
                found=limit,
            )


def _greet_replay_server(section: Any) -> None:
    """Raise ServerLostError or AuthError if the shared replay server cannot be used."""
    from dingsdk.worker.replay_server import ReplayClient

    timeout_s = min(section.timeout_s, GREET_S)
    with ReplayClient(section.address, section.path or None, timeout_s=timeout_s) as client:
        client.stats()


def _pipeline(mode: Mode, context: RunContext) -> Callable[[RunContext], RunResult]:
    if mode == "serial":
        from dingsdk.pipeline.serial import serial_pipeline

        return serial_pipeline
    from dingsdk.pipeline.worker import has_processes

    if has_processes(context.cfg, mode) and context.on_address is None:
        from dingsdk.pipeline.supervisor import Supervisor

        return lambda context: Supervisor(context).run()
    from dingsdk.pipeline.parallel import parallel_pipeline

    return parallel_pipeline


def _discard_unless_begun(context: RunContext) -> None:
    if not context.has_begun and context.resumed is None:
        if context.on_address is None:  # otherwise workers that the user started write logs there
            from dingsdk.worker.run_logger import remove_logs

            remove_logs(context.run_dir)
        discard_run(context.run_dir)


def _finish_failed(context: RunContext, mode: Mode, error: BaseException) -> None:
    result = context.finish("error", mode)
    try:
        has_waited = isinstance(error, StorageFullError)
        patience = Patience(0.0, context.stop.wait) if has_waited else context.patience()
        record = write_results(context, result, error_text(error), patience)
    except DingError as second:
        # Report the first error.
        error.add_note(f"the run folder lacks its result: {second}")
    else:
        observe().run_finished(run_dir=context.run_dir, result=record)


def _saved(run_dir: Path) -> str:
    names = ", ".join(str(path) for path in find_checkpoints(run_dir).values())
    return f"saved before: {names}" if names else "no checkpoint was saved"
