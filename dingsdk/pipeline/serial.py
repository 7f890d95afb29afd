"""The serial pipeline: collect, store, train and evaluate in turns, in one thread."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from easydict import EasyDict

from dingsdk.config import to_easydict
from dingsdk.data.collected import without_returns
from dingsdk.data.seeding import derive_seed, player_seed, seeds_recorded
from dingsdk.envs import create_env_manager, make_env_fns, seed_envs
from dingsdk.envs.base import EnvManager
from dingsdk.errors import DingError, StorageFullError, message_of
from dingsdk.pipeline.context import Reason, RunContext, RunResult, RunStatus
from dingsdk.pipeline.resume import RunSaver
from dingsdk.pipeline.run_folder import SEEDS_NAME, write_config
from dingsdk.pipeline.saved_run import Save
from dingsdk.pipeline.start import without_loading
from dingsdk.pipeline.team import Team, Workers
from dingsdk.plugins import default_manager
from dingsdk.policy import Policy, create_policy
from dingsdk.policy.threads import torch_threads
from dingsdk.runtime import Folder, deadline
from dingsdk.runtime.files import Patience
from dingsdk.worker import (
    create_buffer,
    create_learner,
    create_serial_collector,
    create_serial_evaluator,
    get_serial_collector_cls,
    get_serial_evaluator_cls,
)
from dingsdk.worker.collector.dataset import no_batch
from dingsdk.worker.collector.episode_numbers import (
    numbers_of_episode,
    summaries,
    summaries_of_episodes,
)
from dingsdk.worker.collector.swappable_player import SwappablePlayer
from dingsdk.worker.commander.base import PlayerProgress
from dingsdk.worker.commander.tasks import demonstrations_task
from dingsdk.worker.evaluator.base import plays_episodes, returns_of
from dingsdk.worker.learner.aggregator import LearnerAggregator
from dingsdk.worker.learner.checkpoint import EXCEPTION
from dingsdk.worker.player_folder import player_folder
from dingsdk.worker.replay_buffer.interface import rows_in
from dingsdk.worker.run_logger import build_tb_logger
from dingsdk.worker.serial_worker import evaluation_of, expect_answer, samples_of

_log = logging.getLogger(__name__)

_VALIDATE_S = 5.0
"""Interval of the checks of ``system.validate_state``."""


def serial_pipeline(context: RunContext) -> RunResult:
    """Train until the stop value, a limit or ``context.stop``.

    Raises:
        DingError: a part failed with this error.
    """
    with ExitStack() as stack:
        stack.enter_context(torch_threads(context.cfg.system.torch_threads))
        with context.signals.breakable():
            with seeds_recorded(int(context.cfg.seed)) as seeds:
                team = _build(context, stack)
            with Folder(context.run_dir) as folder:
                folder.write_atomic(SEEDS_NAME, [json.dumps(seeds, indent=1).encode()])
            saver = RunSaver(context, team)
        context.status = lambda: _status(context, team)
        for each in team.members:
            each.learner.call_hook("before_run")
            # A hook may have loaded a checkpoint.
            if each.learner.collector_envstep > each.collector.envstep:
                each.collector.envstep = each.learner.collector_envstep
        context.loaded = PlayerProgress(team.train_iter, team.env_steps)
        if isinstance(context.resumed, Save):
            saver.resume(context.resumed)
            write_config(context.run_dir, context.cfg)
        for line in saver.inexact:
            _log.warning("if this run is resumed, %s", line)
        context.has_begun = True
        context.recorder.mark_first_step()
        try:
            with context.signals.breakable():
                reason = _run(context, team, saver)
                if context.cfg.system.validate_state:
                    team.samples().check()
        except (Exception, KeyboardInterrupt) as error:
            has_waited = isinstance(error, StorageFullError)
            if has_waited or not context.stop.is_set():
                for each in team.members:
                    if has_waited:
                        each.learner.patience = Patience(0.0, context.stop.wait)
                    try:
                        # The weights may help to find the cause.
                        each.learner.save_checkpoint(EXCEPTION)
                    except DingError as second:
                        error.add_note(f"No checkpoint {EXCEPTION} was saved: {second}")
                raise
            _log.warning("after the signal: %s", message_of(error) or "a part did not stop in time")
            reason = "interrupted"
        for each in team.members:
            _call_last_hooks(context, each.learner)
        status = _status(context, team)
        context.status = lambda: status
        return context.conclude(context.finish(reason, "serial"))


def _call_last_hooks(context: RunContext, learner: Any) -> None:
    """Call the hooks after the run; their time is limited only if the run was interrupted."""
    try:
        with context.signals.breakable(deadline.CLOSE_S if context.stop.is_set() else None):
            learner.call_hook("after_run")
    except KeyboardInterrupt:
        _log.warning(
            "a hook of policy.learn.learner did not return in time from after_run; the run ends "
            "without it"
        )
        learner.save_checkpoint()  # the hook that saves it may not have been called, or hung


def _close(context: RunContext, path: str, close: Callable[[], object]) -> None:
    """Close the part of a config section; do not wait longer than ``CLOSE_S``."""
    try:
        # In this thread, if possible: some resources must be closed by the thread that made them.
        with context.signals.breakable(deadline.CLOSE_S) as is_limited:
            if is_limited:
                close()
        if not is_limited:
            deadline.close_in_time(close, path)
    except KeyboardInterrupt:
        deadline.warn_of_left(path)


def _run(context: RunContext, team: Team, saver: RunSaver) -> Reason:
    validate_at = time.monotonic() if context.cfg.system.validate_state else math.inf
    while True:
        workers = team.current
        learner, collector, buffer = workers.learner, workers.collector, workers.buffer
        _update(context, workers)
        if time.monotonic() >= validate_at:
            team.samples().check()
            validate_at = time.monotonic() + _VALIDATE_S
        if context.stop.is_set():
            saver.save(is_last=True)
            return "interrupted"
        if workers.updates_left:
            if context.is_limit_reached(team.env_steps, team.train_iter):
                return _end_at_limit(context, team, saver, "limit")
            team.advance()  # it has reached its limit; the other players continue
            continue
        saver.save_if_due()
        collect_kwargs = workers.commander.step()
        is_mapping, wanted = isinstance(collect_kwargs, Mapping), "keyword arguments by name"
        expect_answer(workers.commander, "step", collect_kwargs, is_mapping, wanted)
        context.note_exploration(collect_kwargs)
        evaluator = workers.evaluator
        is_due = evaluator and evaluator.should_eval(learner.train_iter, collector.envstep)
        if is_due and _evaluate(context, workers):
            saver.save(is_last=True)
            return "stop_value"
        if (reason := context.why_end(team.env_steps, team.train_iter)) is not None:
            return _end_at_limit(context, team, saver, reason)
        if context.is_limit_reached(team.env_steps, learner.train_iter):
            team.advance()
            continue
        samples = samples_of(collector, train_iter=learner.train_iter, policy_kwargs=collect_kwargs)
        if workers.player is None and (ended := getattr(collector, "last_episodes", ())):
            numbers = summaries_of_episodes(map(numbers_of_episode, ended))
            context.recorder.add_training(len(ended), numbers)
        if workers.player_num > 1:
            samples = samples[0][0]  # the samples of the player that is trained
        workers.collected += len(samples)
        if workers.on_policy:
            workers.lags.count(samples, learner.train_iter)
            workers.trained += len(samples) * workers.update_per_collect
            for _ in range(workers.update_per_collect):
                learner.train(samples, collector.envstep)
            # After the training: the samples were collected with the statistics from before.
            workers.observe(samples)
        else:
            workers.observe(samples)
            buffer.push(without_returns(samples), cur_collector_envstep=collector.envstep)
            workers.updates_left = workers.update_per_collect
        team.advance()


def _update(context: RunContext, workers: Workers) -> None:
    """Make the updates that are left, until the run's limit is reached or the run has to stop."""
    learner, buffer = workers.learner, workers.buffer
    last_iter = context.cfg.policy.learn.learner.train_iterations
    while workers.updates_left and learner.train_iter < last_iter and not context.stop.is_set():
        batch = buffer.sample(workers.batch_size, cur_learner_iter=learner.train_iter)
        if batch is None:
            if getattr(workers.collector, "is_exhausted", False):
                raise no_batch(buffer, learner.train_iter)
            workers.updates_left = 0
            return
        expect_answer(buffer, "sample", batch, hasattr(batch, "__len__"), "a batch or None")
        workers.lags.count(batch, learner.train_iter)
        learner.train(batch, workers.collector.envstep)
        workers.trained += rows_in(batch, getattr(buffer, "draws", "rows"))
        if learner.priority_info:
            buffer.update(learner.priority_info)
        workers.updates_left -= 1


def _end_at_limit(context: RunContext, team: Team, saver: RunSaver, reason: Reason) -> Reason:
    # Before the last evaluation: a run that is resumed with a higher limit does not make it.
    saver.save(is_last=True)
    is_reached = False
    for each in team.members:
        if each.evaluator is None:
            continue
        evaluations = context.recorder.of(each.player)
        # Evaluate, unless the newest policy was already evaluated.
        if not evaluations or evaluations[-1].train_iter != each.learner.train_iter:
            is_reached |= _evaluate(context, each)
    return "stop_value" if is_reached else reason


def _evaluate(context: RunContext, workers: Workers) -> bool:
    """Evaluate a player; return whether the run ends, which only the first player can cause."""
    train_iter, envstep = workers.learner.train_iter, workers.collector.envstep
    save = workers.learner.save_checkpoint
    is_reached, info = evaluation_of(workers.evaluator, save, train_iter, envstep)
    plays = workers.player_num > 1 and plays_episodes(workers.evaluator)
    opponent = context.cfg.env.eval_opponents[-1] if plays else None
    numbers = summaries(info) if isinstance(info, Mapping) else {}
    context.recorder.add_evaluation(
        returns_of(info), envstep, train_iter, workers.player, opponent, numbers
    )
    context.warn_of_missing_numbers()
    return bool(is_reached) and workers.player is None


def _status(context: RunContext, team: Team) -> RunStatus:
    members = team.members
    players = {
        each.player_id: PlayerProgress(int(each.learner.train_iter), int(each.collector.envstep))
        for each in members
    }
    return RunStatus(
        env_steps=team.env_steps,
        train_iter=team.train_iter,
        buffer_fill=sum(each.buffer.count() for each in members),
        buffer_capacity=sum(each.buffer.replay_buffer_size for each in members),
        samples=team.samples(),
        loss=members[0].learner.loss,
        policy_lag=None if (lag := members[0].lags.lag) is None else lag._asdict(),
        **context.known(players if len(members) > 1 else {}),
    )


def _build(context: RunContext, stack: ExitStack) -> Team:
    """Build all parts of all players; ``stack`` closes them in reverse order."""
    first = _build_player(context, context.cfg, None, stack)
    members, others = [first], list(getattr(first.commander, "other_players", ()))
    for player in others:
        own = to_easydict({**context.cfg, "seed": player_seed(context.cfg.seed, player)})
        members.append(_build_player(context, own, player, stack))
        members[-1].commander.join(first.commander, player)
    if others:
        first.player_id = first.commander.player_id
    return Team(members)


def _build_player(context: RunContext, cfg: Any, player: str | None, stack: ExitStack) -> Workers:
    """Build the parts of one player: None for the first, or the only one."""
    folder = player_folder(context.run_dir, player)
    exp_name, policy_cfg = str(folder), cfg.policy
    tb_logger = build_tb_logger(folder / "log", "serial")
    stack.callback(tb_logger.close)
    seed = derive_seed(cfg.seed, "policy")
    policy = create_policy(
        policy_cfg, enable_field=["learn", "collect", "eval", "command"], seed=seed
    )
    learn_mode = policy.learn_mode
    if cfg.system.learner_num > 1:
        ranks = LearnerAggregator(learn_mode, cfg.policy, cfg.system.learner_num, seed=seed)
        learn_mode = stack.enter_context(ranks).learn_mode
    learner_cfg = policy_cfg.learn.learner
    if context.resumed is not None:
        learner_cfg = without_loading(learner_cfg)  # the run that it began with may be gone
    learner = create_learner(learner_cfg, policy=learn_mode, tb_logger=tb_logger, exp_name=exp_name)
    learner.patience = context.patience()
    stack.callback(_close, context, "policy.learn.learner", learner.close)
    for hook in context.learner_hooks:
        learner.register_hook(hook)
    collector_cls = get_serial_collector_cls(policy_cfg.collect.collector)
    collector_env = None
    if getattr(collector_cls, "needs_env", True):
        collector_env = _make_env_manager(cfg, "collector", cfg.env.collector_env_num)
    is_game = getattr(collector_cls, "max_players", 1) > 1
    player_num = collector_env.player_num if collector_env is not None and is_game else 1
    collector = create_serial_collector(
        _seeded(policy_cfg.collect.collector, cfg.seed, "collector"),
        env=collector_env,
        policy=policy.collect_mode if player_num == 1 else _players(policy, cfg, player_num),
        tb_logger=tb_logger,
        exp_name=exp_name,
    )
    stack.callback(_close, context, "policy.collect.collector", collector.close)
    evaluator = None
    plays = plays_episodes(get_serial_evaluator_cls(policy_cfg.eval.evaluator))
    if cfg.env.env_id is not None or not plays:
        evaluator = create_serial_evaluator(
            policy_cfg.eval.evaluator,
            env=make_eval_envs(cfg, "evaluator", cfg.env.evaluator_env_num),
            policy=policy.eval_mode,
            tb_logger=tb_logger,
            exp_name=exp_name,
        )
        stack.callback(_close, context, "policy.eval.evaluator", evaluator.close)
    buffer_cfg = _seeded(policy_cfg.other.replay_buffer, cfg.seed, "buffer")
    buffer = create_buffer(buffer_cfg, tb_logger=tb_logger, exp_name=exp_name)
    stack.callback(_close, context, "policy.other.replay_buffer", buffer.close)
    preloaded, task = 0, demonstrations_task(cfg)
    # The buffer of a save has the rows that were preloaded.
    if task is not None and not (task["preload"] and context.resumed is not None):
        from dingsdk.worker.demonstrations import add_demonstrations

        buffer = add_demonstrations(buffer, task, buffer_cfg, policy_cfg)
        stack.callback(_close, context, "policy.other.demonstrations", buffer.close)
        preloaded = buffer.count() if task["preload"] else 0
    return Workers(
        player_id=player or "",
        player=player,
        learner=learner,
        collector=collector,
        evaluator=evaluator,
        buffer=buffer,
        commander=default_manager().create(
            "serial_commanders",
            _seeded(policy_cfg.other.serial_commander, cfg.seed, "league"),
            learner,
            collector,
            evaluator,
            buffer,
            policy.command_mode,
            config_path="policy.other.serial_commander",
        ),
        batch_size=policy_cfg.learn.batch_size,
        update_per_collect=policy_cfg.learn.update_per_collect,
        on_policy=policy_cfg.on_policy,
        player_num=player_num,
        observe=getattr(learn_mode, "observe", None) or (lambda samples: None),
        preloaded=preloaded,
    )


def _players(policy: Policy, cfg: Any, count: int) -> list[Any]:
    """Return the collect modes of all players of an env; only the first player is trained."""
    modes: list[Any] = [policy.collect_mode]
    for index in range(1, count):
        seed = derive_seed(cfg.seed, "player", index)
        opponent = create_policy(cfg.policy, enable_field=["collect"], seed=seed)
        modes.append(SwappablePlayer(opponent.collect_mode, collect_data=False))
    return modes


def _make_env_manager(cfg: Any, role: str, count: int) -> EnvManager:
    """Build a manager of envs, not launched yet; their seeds are derived from ``role``."""
    is_evaluation = role != "collector"
    opponent = cfg.env.eval_opponents[-1] if is_evaluation else None
    env = {**cfg.env, "eval_opponent": opponent, "is_evaluation": is_evaluation}
    manager = create_env_manager(cfg.env_manager, make_env_fns(env, count))
    seed_envs(manager, cfg.seed, role)
    return manager


def make_eval_envs(cfg: Any, role: str, count: int) -> EnvManager | None:
    """Build the envs of an evaluator, not launched yet; None if it plays no episodes."""
    plays = plays_episodes(get_serial_evaluator_cls(cfg.policy.eval.evaluator))
    return _make_env_manager(cfg, role, count) if plays else None


def _seeded(section: Mapping[str, Any], seed: int, role: str) -> EasyDict:
    """Return the section with a derived ``seed`` if that is None; keep a given seed."""
    if section.get("seed", 0) is not None:
        return to_easydict(section)
    return to_easydict({**section, "seed": derive_seed(seed, role)})
