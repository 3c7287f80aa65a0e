"""Log lines of a worker on stderr. An application that has set up logging itself keeps its own."""

import logging
import sys

from holdfast.cli.output import printable
from holdfast.domain.errors import InvalidInput
from holdfast.log import JobLogFilter

_LEVELS = ("debug", "info", "warning", "error")


class PlainFormatter(logging.Formatter):
    """One line per record; a line that a handler logs itself says to which job it belongs."""

    def __init__(self, template: str) -> None:
        super().__init__(template)
        self.default_msec_format = "%s.%03d"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        line = printable(super().formatMessage(record))
        job_id = getattr(record, "job_id", "-")
        if job_id == "-" or "job_id=" in line:
            return line
        return f"{line}  job_id={job_id} correlation_id={getattr(record, 'correlation_id', '-')}"


def configure_logging(level: str) -> None:
    name = level.lower()
    if name not in _LEVELS:
        raise InvalidInput(f"log-level: {level!r} is not known; use {', '.join(_LEVELS)}")
    logging.getLogger("holdfast").setLevel(name.upper())
    root = logging.getLogger()
    if root.handlers:
        return
    handler = _handler()
    handler.addFilter(JobLogFilter())
    root.addHandler(handler)
    root.setLevel(name.upper())
    if name != "debug":
        # It prints a traceback for each attempt to reconnect; Holdfast logs an outage itself.
        logging.getLogger("asyncpg.pool").setLevel(logging.ERROR)


def _handler() -> logging.Handler:
    if not sys.stderr.isatty():
        plain = logging.StreamHandler()
        plain.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        return plain
    from rich.console import Console
    from rich.logging import RichHandler

    handler = RichHandler(console=Console(stderr=True), show_path=False, log_time_format="[%X]")
    handler.setFormatter(PlainFormatter("%(message)s"))
    return handler
