"""Log records: writes Holdfast's own, and adds the job that a record belongs to.

Nothing here changes the program's logging; `setup.py` does, for programs that ask for it.
"""

import json
import logging
import sys
from collections.abc import Mapping

from holdfast.domain.handlers import CURRENT_JOB

EVENT = "holdfast_event"
"""The attribute of Holdfast's own records that holds their text without the values."""
JOB_FIELDS = ("job_id", "kind", "attempt", "correlation_id")
NO_JOB = "-"

_CALLER = 3
"""The frame that called `Log.info`, counted from `_write`."""


class Log:
    """`log.info("what happened", count=3)` logs "what happened  count=3" and sets `count` on the record."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, *, exc_info: BaseException | bool | None = None, **values: object) -> None:
        self._write(logging.DEBUG, event, values, exc_info)

    def info(self, event: str, **values: object) -> None:
        self._write(logging.INFO, event, values)

    def warning(
        self, event: str, *, exc_info: BaseException | bool | None = None, stack: str | None = None, **values: object
    ) -> None:
        self._write(logging.WARNING, event, values, exc_info, stack)

    def error(self, event: str, *, exc_info: BaseException | bool | None = None, **values: object) -> None:
        self._write(logging.ERROR, event, values, exc_info)

    def exception(self, event: str, **values: object) -> None:
        self._write(logging.ERROR, event, values, exc_info=True)

    def failure(self, level: int, event: str, traceback: str, **values: object) -> None:
        """Log a traceback that is already text, because it comes from a job."""
        self._write(level, event, values, traceback=traceback)

    def is_enabled_for(self, level: int) -> bool:
        return self._logger.isEnabledFor(level)

    def _write(
        self,
        level: int,
        event: str,
        values: dict[str, object],
        exc_info: BaseException | bool | None = None,
        stack: str | None = None,
        traceback: str = "",
    ) -> None:
        logger = self._logger
        if not logger.isEnabledFor(level):
            return
        values = {**values, **{name: value for name, value in job_fields().items() if name not in values}}
        file, line, function, _ = logger.findCaller(stacklevel=_CALLER)
        raised = sys.exc_info()[1] if exc_info is True else exc_info or None
        record = logger.makeRecord(
            *(logger.name, level, file, line, with_values(event, values), ()),
            None if raised is None else (type(raised), raised, raised.__traceback__),
            function,
            {EVENT: event, **values},
            stack,
        )
        if traceback:
            record.exc_text = traceback
        logger.handle(record)


def get_logger(name: str) -> Log:
    return Log(name)


def with_values(text: str, values: Mapping[str, object]) -> str:
    pairs = " ".join(f"{name}={_quoted(value)}" for name, value in values.items())
    return f"{text}  {pairs}" if pairs else text


def _quoted(value: object) -> str:
    """Quote the value as logfmt does, if it would otherwise run into what follows."""
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if text.isprintable() and not {" ", '"'} & {*text} and text else json.dumps(text, ensure_ascii=False)


def job_fields() -> dict[str, object]:
    """`job_id`, `kind`, `attempt` and `correlation_id` of the job whose handler runs here; empty outside a job."""
    job = CURRENT_JOB.get()
    if job is None:
        return {}
    return dict(zip(JOB_FIELDS, (str(job.id), job.kind, job.attempt, job.correlation_id), strict=True))


class JobLogFilter(logging.Filter):
    """Sets `job_id`, `kind`, `attempt` and `correlation_id` on every record; outside a job each is "-"."""

    def filter(self, record: logging.LogRecord) -> bool:
        fields = job_fields()
        for name in JOB_FIELDS:
            # A record about another job, or from another process, already has them.
            record.__dict__.setdefault(name, fields.get(name, NO_JOB))
        return True
