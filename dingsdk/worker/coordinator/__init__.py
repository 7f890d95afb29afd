"""The coordinator: tasks to workers, leases, and the metadata of all experience."""

from dingsdk.worker.coordinator.coordinator import Coordinator, CoordinatorStatus
from dingsdk.worker.coordinator.role import Role, TaskControl, create_role, create_roles
from dingsdk.worker.coordinator.tasks import TaskPhase, TaskState

__all__ = [
    "Coordinator",
    "CoordinatorStatus",
    "Role",
    "TaskControl",
    "TaskPhase",
    "TaskState",
    "create_role",
    "create_roles",
]
