"""Use the leak checks of the worker's tests."""

from tests.worker.conftest import no_task_leaks, no_thread_or_process_leaks

__all__ = ["no_task_leaks", "no_thread_or_process_leaks"]
