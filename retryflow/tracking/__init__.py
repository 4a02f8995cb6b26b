"""Knows which tasks a process is running; needs nothing else of retryflow (task tracking specification)."""

from retryflow.tracking.marks import is_untracked, untracked_rpc_method
from retryflow.tracking.record import TaskEnd, TaskRecord
from retryflow.tracking.submit import submit_tracked
from retryflow.tracking.tracker import TaskTracker
from retryflow.tracking.wrapper import TrackingEndpointWrapper

__all__ = [
    "TaskEnd",
    "TaskRecord",
    "TaskTracker",
    "TrackingEndpointWrapper",
    "is_untracked",
    "submit_tracked",
    "untracked_rpc_method",
]
