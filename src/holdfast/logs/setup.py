"""Sets up a program's logging. `holdfast worker` does this for programs that have not done so themselves."""

import logging
import os
import sys
from typing import TYPE_CHECKING

from holdfast.logs.formats import ConsoleFormatter, JsonFormatter, TextFormatter
from holdfast.logs.records import JobLogFilter

if TYPE_CHECKING:
    from holdfast.settings import Settings


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """A separate class, so a second setup can find and replace the handler instead of logging each line twice."""


def setup_logging(settings: "Settings | None" = None, *, level: str = "info") -> None:
    """Log to stderr as `holdfast worker` does: format and level from the settings, and the job on each line.

    Adds one handler to the root logger and sets that logger's level; existing handlers stay. `settings` default to the
    environment's; `setup_logging(app.settings)` also includes those set in code. `level` applies if the settings
    specify none.
    """
    from holdfast.settings import Settings

    settings = settings or Settings.load()
    handler = _Handler()
    handler.setFormatter(_formatter(settings.log_format))
    handler.addFilter(JobLogFilter())
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    level = (settings.log_level or level).upper()
    root.setLevel(level)
    if level != "DEBUG":
        # asyncpg logs a traceback for each attempt to reconnect; Holdfast logs an outage itself.
        logging.getLogger("asyncpg.pool").setLevel(logging.ERROR)


def is_console() -> bool:
    """Whether this program logs in the format for a terminal."""
    return any(isinstance(each.formatter, ConsoleFormatter) for each in logging.getLogger().handlers)


def _formatter(name: str) -> logging.Formatter:
    is_terminal = sys.stderr.isatty()
    match name:
        case "json":
            return JsonFormatter()
        case "text":
            return TextFormatter()
        case "auto" if not is_terminal:
            return TextFormatter()
        case _:
            has_color = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
            return ConsoleFormatter(has_color=has_color)
