"""The databases, real worker processes and leak checks of the worker's tests."""

from tests.worker.conftest import (
    database,
    no_task_leaks,
    no_thread_or_process_leaks,
    proxy,
    server,
    workers,
)

__all__ = ["database", "no_task_leaks", "no_thread_or_process_leaks", "proxy", "server", "workers"]
