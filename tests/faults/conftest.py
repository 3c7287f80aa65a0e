"""Databases, real processes and leak checks from the worker's tests, and the broker from the wake-up tests."""

from tests.rabbitmq.conftest import broker_port, exchange, url
from tests.runtime.conftest import commands, database, no_task_leaks, no_thread_or_process_leaks

__all__ = ["broker_port", "commands", "database", "exchange", "no_task_leaks", "no_thread_or_process_leaks", "url"]
