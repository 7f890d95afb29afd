"""Workers and their master: the transport contract, and the parts that use any transport."""

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.worker.comm.collector import BaseCommCollector as BaseCommCollector
    from dingsdk.worker.comm.hooks import SendLearnInfoHook as SendLearnInfoHook
    from dingsdk.worker.comm.hooks import SendPolicyHook as SendPolicyHook
    from dingsdk.worker.comm.learner import BaseCommLearner as BaseCommLearner
    from dingsdk.worker.comm.master import Master as Master
    from dingsdk.worker.comm.master import Task as Task
    from dingsdk.worker.comm.master import TaskStatus as TaskStatus
    from dingsdk.worker.comm.scheduler import Condition as Condition
    from dingsdk.worker.comm.scheduler import Job as Job
    from dingsdk.worker.comm.scheduler import Scheduler as Scheduler
    from dingsdk.worker.comm.scheduler import ThreadScheduler as ThreadScheduler
    from dingsdk.worker.comm.slave import Slave as Slave
    from dingsdk.worker.comm.slave import TaskFunctions as TaskFunctions
    from dingsdk.worker.comm.transport import LEFT as LEFT
    from dingsdk.worker.comm.transport import MasterEnd as MasterEnd
    from dingsdk.worker.comm.transport import MasterListener as MasterListener
    from dingsdk.worker.comm.transport import Place as Place
    from dingsdk.worker.comm.transport import PolicyStore as PolicyStore
    from dingsdk.worker.comm.transport import SlaveEnd as SlaveEnd
    from dingsdk.worker.comm.transport import StepDataStore as StepDataStore
    from dingsdk.worker.comm.transport import TaskAnswer as TaskAnswer
    from dingsdk.worker.comm.transport import TaskMessage as TaskMessage
    from dingsdk.worker.comm.transport import Transport as Transport
    from dingsdk.worker.comm.transport import WorkerHandle as WorkerHandle
    from dingsdk.worker.comm.transport import WorkerInfo as WorkerInfo
    from dingsdk.worker.comm.worker import CommWorker as CommWorker
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
