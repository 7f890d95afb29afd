"""Workers and their master: the transport contract, and what runs over any transport."""

from dingsdk.worker.comm.collector import BaseCommCollector
from dingsdk.worker.comm.learner import BaseCommLearner, SendLearnInfoHook, SendPolicyHook
from dingsdk.worker.comm.master import Master, Task, TaskStatus
from dingsdk.worker.comm.scheduler import Condition, Job, Scheduler, ThreadScheduler
from dingsdk.worker.comm.slave import Slave, TaskFunctions
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
    WorkerHandle,
    WorkerInfo,
)
from dingsdk.worker.comm.worker import CommWorker

__all__ = [
    "LEFT",
    "BaseCommCollector",
    "BaseCommLearner",
    "CommWorker",
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
    "TaskFunctions",
    "TaskMessage",
    "TaskStatus",
    "ThreadScheduler",
    "Transport",
    "WorkerHandle",
    "WorkerInfo",
]
