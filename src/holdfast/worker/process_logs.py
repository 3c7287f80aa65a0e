"""Sends log records from a handler's process to its worker, whose logging handles them like its own."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from holdfast.logs.records import JobLogFilter

Levels = Mapping[str, int]
"""Log levels by logger name; the root logger's name is empty."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A record on its way to the worker, made of text and numbers only."""

    values: dict[str, object]

    def handle(self) -> None:
        record = logging.makeLogRecord(self.values)
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            # The program's filters may raise anything, and the attempt is not to blame.
            with suppress(Exception):
                logger.handle(record)


def levels() -> Levels:
    """The levels set in this process, so that its children send no more than necessary."""
    known = {
        name: logger.level
        for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and logger.level
    }
    return {"": logging.root.level, **known}


def send_logs(send: Callable[[Logged], None], levels: Levels) -> None:
    """Call this in the child before it imports the application, so that the application's own logging setup wins."""
    logging.root.addHandler(_Sender(send))
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)


class _Sender(logging.Handler):
    def __init__(self, send: Callable[[Logged], None]) -> None:
        super().__init__()
        self._send = send
        self.addFilter(JobLogFilter())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if record.exc_info and not record.exc_text:
                record.exc_text = logging.Formatter().formatException(record.exc_info)
            values = {name: _plain(value) for name, value in vars(record).items()}
            self._send(Logged({**values, "msg": record.getMessage(), "args": None, "exc_info": None}))
        except OSError:
            # The worker no longer listens: it is gone, or this process has to leave the app's lifespan.
            if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
        except Exception:  # noqa: BLE001 - as in logging itself: a broken record must not stop a handler
            self.handleError(record)


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
