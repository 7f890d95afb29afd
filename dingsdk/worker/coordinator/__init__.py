"""The coordinator: assigns tasks to workers, keeps their leases and a list of live payloads."""

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.worker.coordinator.coordinator import Coordinator as Coordinator
    from dingsdk.worker.coordinator.coordinator import CoordinatorStatus as CoordinatorStatus
    from dingsdk.worker.coordinator.role import Role as Role
    from dingsdk.worker.coordinator.role import create_role as create_role
    from dingsdk.worker.coordinator.role import create_roles as create_roles
    from dingsdk.worker.coordinator.tasks import TaskState as TaskState
else:
    # Config checks import the sections of this package; that must not import torch.
    __getattr__, __dir__ = lazy_names(__name__, __file__)
