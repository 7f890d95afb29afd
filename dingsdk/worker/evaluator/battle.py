"""The evaluator of envs in which several players act at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from dingsdk.config import Count
from dingsdk.worker.collector.battle import BattleRollout, modes_of
from dingsdk.worker.collector.rollout import EpisodeRecord, Rollout
from dingsdk.worker.evaluator.interaction import InteractionSerialEvaluator
from dingsdk.worker.evaluator.monitor import VectorEvalMonitor


class BattleInteractionSerialEvaluator(InteractionSerialEvaluator):
    """Plays episodes with a list of eval modes, one per player; player 0 is evaluated.

    Its returns are logged, and decide on the best checkpoint and on stopping.
    """

    not_for_runs: ClassVar[str] = "the evaluations of a run play against env.eval_opponents"

    contract_capabilities: ClassVar[None] = None

    class Config(InteractionSerialEvaluator.Config, frozen=True, kw_only=True):
        """Section ``policy.eval.evaluator``."""

        type: str = "battle_interaction"
        eval_freq: Count | None = 50

    # DI-engine returns the infos by player.
    def eval(  # type: ignore[override]
        self,
        save_ckpt_fn: Callable[[str], Any] | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
        force_render: bool = False,
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[bool, list[list[Mapping[str, Any]]]]:
        """As ``InteractionSerialEvaluator.eval``, except for the second result.

        Returns:
            Whether training may stop, and for each player the last info of each of the
            ``n_episode`` episodes, in the order in which they ended.
        """
        self._infos: list[list[Mapping[str, Any]]] = [[] for _ in self.policy]
        is_reached, _ = super().eval(
            save_ckpt_fn, train_iter, envstep, n_episode, force_render, policy_kwargs
        )
        return is_reached, self._infos

    def _take_policy(self, policy: Any) -> None:
        if policy is not None:
            self._policy = modes_of(policy, self._env, type(self).__name__, self._config_path)
        for mode in self.policy:
            mode.reset()

    def _make_rollout(self, monitor: VectorEvalMonitor) -> Rollout:
        silent = [None] * len(self.policy)
        return BattleRollout(self.env, self.policy, silent, monitor.quota, has_tensor_obs=True)

    def _record(self, episodes: list[EpisodeRecord], monitor: VectorEvalMonitor) -> None:
        of_first = []
        for each in episodes:
            infos = each.info["players"]
            for seen, info in zip(self._infos, infos, strict=True):
                seen.append(info)
            of_first.append(each._replace(info=infos[0].get("episode_info") or {}))
        super()._record(of_first, monitor)
