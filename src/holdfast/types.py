"""Parameter and return types of the public API, mostly for use in annotations."""

from holdfast.domain.runner import RunnerReport
from holdfast.runtime.process import Process
from holdfast.runtime.tick import TickReport
from holdfast.store.contract import Backlog, JobFilter
from holdfast.worker.settings import WorkerSettings

__all__ = ["Backlog", "JobFilter", "Process", "RunnerReport", "TickReport", "WorkerSettings"]
