"""The databases, real worker processes and leak checks of the worker's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.processes import Commands
from tests.worker.conftest import (
    database,
    no_task_leaks,
    no_thread_or_process_leaks,
    proxy,
    workers,
)
from tests.worker.harness import Database

__all__ = ["database", "no_task_leaks", "no_thread_or_process_leaks", "proxy", "workers"]


@pytest.fixture
def commands(database: Database, tmp_path: Path) -> Iterator[Commands]:
    started = Commands(database, tmp_path)
    try:
        yield started
    finally:
        started.end_all()
