"""The evaluator that plays episodes."""

from __future__ import annotations

import importlib.util
import math
import operator
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from dingsdk.config import Count, Section
from dingsdk.envs.base import EnvManager
from dingsdk.errors import ConfigError, NotSetError
from dingsdk.worker.collector.episode_numbers import summaries, summary_statistics
from dingsdk.worker.collector.factory import create_measuring_rollout
from dingsdk.worker.collector.rollout import EpisodeRecord, Rollout, tell_observers
from dingsdk.worker.evaluator.base import ISerialEvaluator
from dingsdk.worker.evaluator.monitor import VectorEvalMonitor, evaluation_statistics, info_of
from dingsdk.worker.serial_worker import whole_number

MANY_STEPS = 50_000
"""Steps of each env after which a warning is logged if no episode of an evaluation has ended."""


class RenderSection(Section, frozen=True, kw_only=True):
    """Section ``policy.eval.evaluator.render``.

    Attributes:
        render_freq: Iterations or env steps between two rendered evaluations; -1 for none.
        mode: What ``render_freq`` counts.
    """

    render_freq: Annotated[int, Meta(ge=-1)] = -1
    mode: Literal["envstep", "train_iter"] = "train_iter"


def why_no_video(manager: type) -> str:
    """Return why envs of this manager cannot be filmed, and what to do; empty if they can."""
    # The class is checked, as reading the property would render.
    if not hasattr(manager, "ready_imgs"):
        return (
            f"but {manager.__name__} has no images; set it to -1, or env_manager.type to "
            "in_process and env.kwargs.render_mode to rgb_array"
        )
    if importlib.util.find_spec("moviepy") is None:
        return "which need moviepy: pip install moviepy, or set it to -1"
    return ""


class InteractionSerialEvaluator(ISerialEvaluator):
    """Plays ``n_episode`` episodes, with a fixed number per env, and takes their mean return.

    An env that fails is restarted by its manager; its unfinished episode does not count and
    is played again. Unlike in DI-engine, an env is not stepped beyond its quota (or, if the
    manager cannot skip single envs, the steps beyond it do not count).
    """

    class Config(ISerialEvaluator.Config, frozen=True, kw_only=True):
        """Section ``policy.eval.evaluator``.

        Attributes:
            n_episode: Episodes of one evaluation; in a run ``env.n_evaluator_episode`` replaces it
                if set.
            stop_value: Mean return that ends the run; in a run ``env.stop_value`` replaces it if
                set.
            render: When episodes are rendered.
            figure_path: Folder for the figures that envs draw; None for no figures.
        """

        type: str = "interaction"
        n_episode: Count | None = None
        stop_value: int | float = math.inf
        render: RenderSection = RenderSection()
        figure_path: str | None = None

    resumes = True
    saved = (*ISerialEvaluator.saved, "_last_render")

    _cfg: Config
    _config_path: ClassVar[str] = "policy.eval.evaluator"

    def reset(self, _policy: Any = None, _env: EnvManager | None = None) -> None:
        """Reset env and policy (None: the current ones), and clear the best result."""
        super().reset(_policy, _env)
        self._last_render = -1

    def eval(
        self,
        save_ckpt_fn: Callable[[str], Any] | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
        force_render: bool = False,
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[bool, dict[str, Any]]:
        """Play the episodes and report.

        Args:
            save_ckpt_fn: Called with ``"ckpt_best"`` when the mean return is a new best; any
                trained policy is better than the untrained one.
            train_iter: Version of the policy; the default never stops training.
            envstep: Env steps collected so far, the second x-axis of the curves.
            n_episode: Number of episodes; None for the number in the config.
            force_render: Record a video of this evaluation in tensorboard: worst, median and best
                episode.
            policy_kwargs: Passed to the policy's forward.

        Returns:
            Whether training may stop (mean return ``>= stop_value`` and ``train_iter > 0``),
            and ``{"eval_episode_return": list of n_episode floats, "eval_episode_return_mean",
            ...}`` with further statistics where the env reports any.

        Raises:
            NotSetError: no env, no policy, or no ``n_episode``.
            ConfigError: fewer episodes than envs, or a video is due and cannot be made.
            PolicyOutputError: the policy's output cannot be used.
            EnvError: an env failed three times in a row.
        """
        count = self._cfg.n_episode if n_episode is None else n_episode
        if count is None:
            raise NotSetError(
                "please set n_episode: neither eval(n_episode=...) nor the config names one",
                what="n_episode",
            )
        monitor = VectorEvalMonitor(self.env.env_num, whole_number("n_episode", count))
        is_rendering = force_render or self._is_time_to_render(train_iter, envstep)
        if is_rendering and (why := why_no_video(type(self.env))):
            path = "policy.eval.evaluator.render"
            raise ConfigError(f"{path}.render_freq asks for videos, {why}", path=path)
        started = time.perf_counter()
        rollout = self._fresh_rollout(monitor)
        warns_at: float = MANY_STEPS * self.env.env_num
        while not rollout.is_finished:
            if rollout.env_steps >= warns_at and not monitor.get_current_episode():
                warns_at = math.inf
                self._logger.warning(
                    "%d env steps, and no episode of this evaluation has ended; an env without an "
                    "end needs a limit, such as env.kwargs.max_episode_steps",
                    rollout.env_steps,
                )
            if is_rendering:
                monitor.update_video(self.env.ready_imgs)  # type: ignore[attr-defined]
            rollout.round(train_iter, policy_kwargs or {})
            if rollout.episodes:
                self._record(rollout.episodes, monitor)
                rollout.episodes = []
        seconds = time.perf_counter() - started
        info = monitor.get_episode_info() or {}
        returns = monitor.get_episode_return()
        statistics = summary_statistics(summaries(info))
        statistics |= evaluation_statistics(returns, rollout.env_steps, seconds)
        mean = statistics["reward_mean"]
        if self._log_pace.is_due():
            self._report(statistics, train_iter, envstep)
        if is_rendering:
            self._show_video(monitor, train_iter, envstep)
        self._note_result(mean, train_iter, operator.gt, save_ckpt_fn)
        self._tell_observers(mean, train_iter, envstep)
        is_reached = mean >= self._cfg.stop_value and train_iter > 0
        if is_reached:
            self._logger.info(
                "mean return %.2f has reached stop_value %s", mean, self._cfg.stop_value
            )
        return is_reached, info

    def _fresh_rollout(self, monitor: VectorEvalMonitor) -> Rollout:
        env = self.env
        if math.isinf(env.episode_num):
            env.reset()
        else:
            # If the manager has a limit of episodes, only a launch resets its counters.
            env.close()
            env.launch()
        self._take_policy(None)
        return self._make_rollout(monitor)

    def _make_rollout(self, monitor: VectorEvalMonitor) -> Rollout:
        return create_measuring_rollout(self.env, self.policy, monitor.quota)

    def _record(self, episodes: list[EpisodeRecord], monitor: VectorEvalMonitor) -> None:
        # In a worker, the instance name is that of a collector.
        tell_observers(
            self._instance_name if self.tells_observers else self._default_name, episodes
        )
        for each in episodes:
            monitor.update_info(each.env_id, info_of(each))
            monitor.update_reward(each.env_id, each.episode_return)
            if self._cfg.figure_path is not None:
                try:
                    self.env.enable_save_figure(each.env_id, self._cfg.figure_path)
                except ConfigError as error:
                    raise ConfigError(
                        f"the env draws no figures ({error}); set figure_path to null",
                        path="policy.eval.evaluator.figure_path",
                    ) from error

    def _is_time_to_render(self, train_iter: int, envstep: int) -> bool:
        render = self._cfg.render
        if render.render_freq == -1:
            return False
        now = train_iter if render.mode == "train_iter" else envstep
        if now - self._last_render < render.render_freq:
            return False
        self._last_render = now
        return True

    def _show_video(self, monitor: VectorEvalMonitor, train_iter: int, envstep: int) -> None:
        mode, video = self._cfg.render.mode, monitor.get_video()
        step = train_iter if mode == "train_iter" else envstep
        if self._tb_logger is not None:
            tag = f"{self._instance_name}_{mode}/"
            self._tb_logger.add_video(tag, video, global_step=step, fps=30)
