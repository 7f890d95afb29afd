"""Workers and their master: the transport contract, and what runs over any transport."""

from dingsdk.worker.comm.base_comm_collector import BaseCommCollector, TransportCollector
from dingsdk.worker.comm.base_comm_learner import BaseCommLearner, TransportLearner
from dingsdk.worker.comm.learner_hooks import SendLearnInfoHook, SendPolicyHook
from dingsdk.worker.comm.master import Master
from dingsdk.worker.comm.scheduler import (
    Condition,
    Job,
    Scheduler,
    ThreadCondition,
    ThreadScheduler,
)
from dingsdk.worker.comm.slave import Slave
from dingsdk.worker.comm.task import Task, TaskStatus
from dingsdk.worker.comm.transport import (
    LEFT,
    MasterEnd,
    MasterListener,
    Place,
    PolicyStore,
    SlaveEnd,
    StepDataStore,
    TaskAnswer,
    TaskMessage,
    Transport,
    WorkerInfo,
)

__all__ = [
    "LEFT",
    "BaseCommCollector",
    "BaseCommLearner",
    "Condition",
    "Job",
    "Master",
    "MasterEnd",
    "MasterListener",
    "Place",
    "PolicyStore",
    "Scheduler",
    "SendLearnInfoHook",
    "SendPolicyHook",
    "Slave",
    "SlaveEnd",
    "StepDataStore",
    "Task",
    "TaskAnswer",
    "TaskMessage",
    "TaskStatus",
    "ThreadCondition",
    "ThreadScheduler",
    "Transport",
    "TransportCollector",
    "TransportLearner",
    "WorkerInfo",
]
