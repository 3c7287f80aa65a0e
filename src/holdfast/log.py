"""Structured log lines through the standard logging module, so that an application keeps its own configuration.

A line logged while a handler runs carries the job's id, kind, attempt and correlation id.
"""

import logging
from collections.abc import MutableMapping
from typing import Any, cast

import structlog

from holdfast.domain.handlers import CURRENT_JOB


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    return cast(
        structlog.stdlib.BoundLogger,
        structlog.wrap_logger(
            logging.getLogger(name),
            wrapper_class=structlog.stdlib.BoundLogger,
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.contextvars.merge_contextvars,
                add_job,
                structlog.processors.format_exc_info,
                structlog.processors.EventRenamer("message"),
                _render,
            ],
        ),
    )


def add_job(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ARG001
    """A structlog processor for applications: adds the running job's identity to each line."""
    job = CURRENT_JOB.get()
    if job is not None:
        event.setdefault("job_id", str(job.id))
        event.setdefault("kind", job.kind)
        event.setdefault("attempt", job.attempt)
        event.setdefault("correlation_id", job.correlation_id)
    return event


class JobLogFilter(logging.Filter):
    """For applications that use plain logging: sets `job_id` and `correlation_id` on every record."""

    def filter(self, record: logging.LogRecord) -> bool:
        job = CURRENT_JOB.get()
        record.job_id = str(job.id) if job else "-"
        record.correlation_id = job.correlation_id if job else "-"
        return True


def _render(logger: object, method: str, event: MutableMapping[str, Any]) -> str:  # noqa: ARG001
    message = event.pop("message", "")
    exception = event.pop("exception", None)
    pairs = " ".join(f"{name}={value}" for name, value in event.items())
    line = f"{message}  {pairs}" if pairs else str(message)
    return f"{line}\n{exception}" if exception else line
