"""All public worker classes and functions, imported on first use.

Names that belong to a plugin are found through the metadata of its distribution. Without the
plugin they raise an ImportError that says how to get it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.errors import TaskFail as TaskFail
    from dingsdk.plugins import Registry as Registry
    from dingsdk.worker.collector.base import ISerialCollector as ISerialCollector
    from dingsdk.worker.collector.battle import (
        BattleEpisodeSerialCollector as BattleEpisodeSerialCollector,
    )
    from dingsdk.worker.collector.battle import (
        BattleSampleSerialCollector as BattleSampleSerialCollector,
    )
    from dingsdk.worker.collector.episode import EpisodeSerialCollector as EpisodeSerialCollector
    from dingsdk.worker.collector.marine import MarineParallelCollector as MarineParallelCollector
    from dingsdk.worker.collector.parallel_base import (
        BaseParallelCollector as BaseParallelCollector,
    )
    from dingsdk.worker.collector.rollout import EpisodeRecord as EpisodeRecord
    from dingsdk.worker.collector.rows import CachePool as CachePool
    from dingsdk.worker.collector.rows import TrajBuffer as TrajBuffer
    from dingsdk.worker.collector.rows import to_tensor_transitions as to_tensor_transitions
    from dingsdk.worker.collector.sample import SampleSerialCollector as SampleSerialCollector
    from dingsdk.worker.collector.zergling import (
        ZerglingParallelCollector as ZerglingParallelCollector,
    )
    from dingsdk.worker.comm import BaseCommCollector as BaseCommCollector
    from dingsdk.worker.comm import BaseCommLearner as BaseCommLearner
    from dingsdk.worker.comm import Master as Master
    from dingsdk.worker.comm import SendLearnInfoHook as SendLearnInfoHook
    from dingsdk.worker.comm import SendPolicyHook as SendPolicyHook
    from dingsdk.worker.comm import Slave as Slave
    from dingsdk.worker.comm import Task as Task
    from dingsdk.worker.comm import TaskStatus as TaskStatus
    from dingsdk.worker.comm.naive import NaiveCollector as NaiveCollector
    from dingsdk.worker.comm.naive import NaiveLearner as NaiveLearner
    from dingsdk.worker.commander.base import BaseParallelCommander as BaseParallelCommander
    from dingsdk.worker.commander.league import OneVsOneLeague as OneVsOneLeague
    from dingsdk.worker.commander.league import Payoff as Payoff
    from dingsdk.worker.commander.league import Player as Player
    from dingsdk.worker.commander.naive import NaiveCommander as NaiveCommander
    from dingsdk.worker.commander.one_vs_one import OneVsOneCommander as OneVsOneCommander
    from dingsdk.worker.commander.one_vs_one import (
        OneVsOneSerialCommander as OneVsOneSerialCommander,
    )
    from dingsdk.worker.commander.serial import BaseSerialCommander as BaseSerialCommander
    from dingsdk.worker.commander.solo import SoloCommander as SoloCommander
    from dingsdk.worker.commander.tasks import collector_task as collector_task
    from dingsdk.worker.commander.tasks import learner_task as learner_task
    from dingsdk.worker.coordinator import Coordinator as Coordinator
    from dingsdk.worker.coordinator import TaskState as TaskState
    from dingsdk.worker.datasets import DatasetFormat as DatasetFormat
    from dingsdk.worker.datasets import read_dataset as read_dataset
    from dingsdk.worker.datasets import write_dataset as write_dataset
    from dingsdk.worker.evaluator.base import ISerialEvaluator as ISerialEvaluator
    from dingsdk.worker.evaluator.battle import (
        BattleInteractionSerialEvaluator as BattleInteractionSerialEvaluator,
    )
    from dingsdk.worker.evaluator.interaction import (
        InteractionSerialEvaluator as InteractionSerialEvaluator,
    )
    from dingsdk.worker.evaluator.metric import IMetric as IMetric
    from dingsdk.worker.evaluator.metric import MetricSerialEvaluator as MetricSerialEvaluator
    from dingsdk.worker.evaluator.monitor import VectorEvalMonitor as VectorEvalMonitor
    from dingsdk.worker.evaluator.schedule import EvalSchedule as EvalSchedule
    from dingsdk.worker.factory import create_buffer as create_buffer
    from dingsdk.worker.factory import create_comm_collector as create_comm_collector
    from dingsdk.worker.factory import create_comm_learner as create_comm_learner
    from dingsdk.worker.factory import create_learner as create_learner
    from dingsdk.worker.factory import create_parallel_collector as create_parallel_collector
    from dingsdk.worker.factory import create_parallel_commander as create_parallel_commander
    from dingsdk.worker.factory import create_serial_collector as create_serial_collector
    from dingsdk.worker.factory import create_serial_evaluator as create_serial_evaluator
    from dingsdk.worker.factory import get_buffer_cls as get_buffer_cls
    from dingsdk.worker.factory import get_parallel_collector_cls as get_parallel_collector_cls
    from dingsdk.worker.factory import get_parallel_commander_cls as get_parallel_commander_cls
    from dingsdk.worker.factory import get_serial_collector_cls as get_serial_collector_cls
    from dingsdk.worker.factory import get_serial_evaluator_cls as get_serial_evaluator_cls
    from dingsdk.worker.learner.aggregator import LearnerAggregator as LearnerAggregator
    from dingsdk.worker.learner.base import BaseLearner as BaseLearner
    from dingsdk.worker.learner.hooks import Hook as Hook
    from dingsdk.worker.learner.hooks import LearnerHook as LearnerHook
    from dingsdk.worker.learner.hooks import LoadCkptHook as LoadCkptHook
    from dingsdk.worker.learner.hooks import LogReduceHook as LogReduceHook
    from dingsdk.worker.learner.hooks import LogShowHook as LogShowHook
    from dingsdk.worker.learner.hooks import SaveCkptHook as SaveCkptHook
    from dingsdk.worker.learner.hooks import add_learner_hook as add_learner_hook
    from dingsdk.worker.learner.hooks import build_learner_hook_by_cfg as build_learner_hook_by_cfg
    from dingsdk.worker.learner.hooks import merge_hooks as merge_hooks
    from dingsdk.worker.learner.hooks import register_learner_hook as register_learner_hook
    from dingsdk.worker.learner.trackers import Tracker as Tracker
    from dingsdk.worker.replay_buffer import AdvancedReplayBuffer as AdvancedReplayBuffer
    from dingsdk.worker.replay_buffer import ElasticReplayBuffer as ElasticReplayBuffer
    from dingsdk.worker.replay_buffer import EpisodeReplayBuffer as EpisodeReplayBuffer
    from dingsdk.worker.replay_buffer import IBuffer as IBuffer
    from dingsdk.worker.replay_buffer import NaiveReplayBuffer as NaiveReplayBuffer
    from dingsdk.worker.replay_buffer import SequenceReplayBuffer as SequenceReplayBuffer

    def __getattr__(name: str) -> Any:
        """Return an object that belongs to a plugin."""
else:

    def _owned_by_a_plugin(name: str) -> Any:
        from dingsdk.plugins import default_manager

        return default_manager().named(name)

    __getattr__, __dir__ = lazy_names(__name__, __file__, _owned_by_a_plugin)
