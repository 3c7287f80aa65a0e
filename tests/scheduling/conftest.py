"""Use the database and the leak checks of the worker's tests."""

from tests.worker.conftest import database, no_task_leaks, no_thread_or_process_leaks

__all__ = ["database", "no_task_leaks", "no_thread_or_process_leaks"]
