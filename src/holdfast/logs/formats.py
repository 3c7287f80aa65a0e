"""Log formats: a line of text, a line of JSON, or lines for a person at a terminal."""

import json
import logging
import os
import textwrap
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from holdfast.domain.duration import rough
from holdfast.domain.job import DEFAULT_QUEUE
from holdfast.domain.printable import printable
from holdfast.logs.records import EVENT, JOB_FIELDS, NO_JOB, with_values

ATTEMPTS = "holdfast.attempts"
"""The logger of attempts; their records have `outcome`, `of`, `seconds` and more."""
START = "holdfast.start"
"""The logger that says what a worker serves, which a terminal shows as a list."""

# Attributes that every record has, and those that a formatter or Python 3.12 adds.
_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", EVENT}
_NAMES_IN_JSON = ("time", "level", "logger", "message", "exception", "stack")

_TIME_WIDTH, _WORD_WIDTH = 12, 11
_MARGIN = " " * (_TIME_WIDTH + 2)
_INDENT = 4 * " "
_SHORT_ID = 8
_SHORTEST = timedelta(milliseconds=1)
_DEAD_LETTERS = ("failed", "dead")
_LEAST_WIDTH, _USUAL_WIDTH = 60, 100
_DIM, _RED, _GREEN, _YELLOW, _CYAN, _BOLD_RED = "2", "31", "32", "33", "36", "1;31"
_OF_LEVEL = {"DEBUG": _DIM, "INFO": _CYAN, "WARNING": _YELLOW, "ERROR": _RED, "CRITICAL": _BOLD_RED}
_OF_OUTCOME = {"succeeded": _GREEN, "retry": _YELLOW, "interrupted": _YELLOW, "failed": _RED, "dead": _BOLD_RED}


def _event(record: logging.LogRecord) -> str:
    event: str | None = getattr(record, EVENT, None)
    return record.getMessage() if event is None else event


def _values(record: logging.LogRecord) -> dict[str, object]:
    """The record's additional values: Holdfast's own, the job's fields, and an application's `extra`."""
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _USUAL and not name.startswith("_") and not (name in JOB_FIELDS and value == NO_JOB)
    }


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created).astimezone()


def _time(record: logging.LogRecord) -> str:
    return _moment(record).isoformat(timespec="milliseconds")


class _Formatter(logging.Formatter):
    def details(self, record: logging.LogRecord) -> tuple[str, str]:
        """The traceback and the stack."""
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        return (record.exc_text or "").rstrip(), (record.stack_info or "").rstrip()


class TextFormatter(_Formatter):
    """`2030-01-31T08:00:00.123+00:00 INFO shop: sending  to=ann job_id=… kind=…`."""

    def format(self, record: logging.LogRecord) -> str:
        values = _values(record)
        if values.get("correlation_id") == values.get("job_id"):
            values.pop("correlation_id", None)
        line = f"{_time(record)} {record.levelname} {record.name}: {with_values(_event(record), values)}"
        return printable("\n".join(filter(None, [line, *self.details(record)])))


class JsonFormatter(_Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        traceback, stack = self.details(record)
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _event(record),
        }
        line |= {f"{name}_" if name in _NAMES_IN_JSON else name: value for name, value in _values(record).items()}
        line |= {name: text for name, text in (("exception", traceback), ("stack", stack)) if text}
        return json.dumps(line, ensure_ascii=False, default=str, skipkeys=True)


class ConsoleFormatter(_Formatter):
    """For people at a terminal: the time of day, a word in color, and the message."""

    def __init__(self, *, has_color: bool) -> None:
        super().__init__()
        self._has_color = has_color

    def format(self, record: logging.LogRecord) -> str:
        values = _values(record)
        if record.name == ATTEMPTS:
            word, rest = str(values["outcome"]), self._attempt(values)
            color = _OF_OUTCOME.get(word, _CYAN)
        elif record.name == START:
            word, rest, color = "serving", "", _CYAN
        else:
            word, rest = record.levelname.lower(), self._line(record, values)
            color = _OF_LEVEL.get(record.levelname, "")
        time = f"{_moment(record):%H:%M:%S.%f}"[:_TIME_WIDTH]
        lines = [f"{self._in(_DIM, time)}  {self._in(color, word)}{' ' * (_WORD_WIDTH - len(word))}  {rest}".rstrip()]
        if record.name == START:
            lines += _listed(values)
        lines += [textwrap.indent(printable(text), _INDENT) for text in self.details(record) if text]
        if values.get("outcome") in _DEAD_LETTERS and "row" not in values:
            lines.append(f"{_INDENT}holdfast jobs show {values['job_id']}")
        return "\n".join(lines)

    def _in(self, color: str, text: str) -> str:
        return f"\x1b[{color}m{text}\x1b[0m" if self._has_color and color else text

    def _attempt(self, values: Mapping[str, object]) -> str:
        parts = [f"{values['kind']} {self._in(_DIM, _short(values['job_id']))}"]
        if "row" in values:
            parts.append(printable(str(values["row"])))
        parts.append(_counted(values))
        if "seconds" in values:
            parts.append(_length(values["seconds"]))
        if "again_in" in values:
            parts.append(f"again in {_length(values['again_in'])}")
        if "again_at" in values:
            parts.append(f"again at {values['again_at']}")
        if values["queue"] != DEFAULT_QUEUE:
            parts.append(f"queue {values['queue']}")
        return "  ".join(parts)

    def _line(self, record: logging.LogRecord, values: dict[str, object]) -> str:
        fields = [printable(str(values.pop(name, ""))) for name in JOB_FIELDS]
        # The holder distinguishes the workers of a store, and a terminal shows only one.
        values.pop("holder", None)
        is_ours = record.name.startswith("holdfast.") or record.name == "root"
        place = "" if is_ours else self._in(_DIM, f"{record.name}: ")
        said = printable(with_values(_event(record), values))
        job = self._in(_DIM, f"[{fields[1]} {_short(fields[0])}]") if fields[0] else ""
        return f"{place}{said}  {job}".rstrip()


def _counted(values: Mapping[str, object]) -> str:
    """`attempt 2 of 2 (+1 lost)`: each lost lease allows one more attempt."""
    losses = int(str(values.get("losses", 0)))
    more = f" (+{losses} lost)" if losses else ""
    return f"attempt {values['attempt']} of {int(str(values['of'])) - losses}{more}"


def _length(seconds: object) -> str:
    length = timedelta(seconds=float(str(seconds)))
    return rough(length) if length >= _SHORTEST else "<1ms"


def _short(id: object) -> str:
    """The end of the id. Ids start with the time, so those of neighboring jobs start alike."""
    return str(id)[-_SHORT_ID:]


def _listed(values: Mapping[str, object]) -> Iterator[str]:
    width = max(_LEAST_WIDTH, _columns())
    for name, value in values.items():
        head = f"{_MARGIN}{name.replace('_', ' '):{_WORD_WIDTH}}  "
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        yield textwrap.fill(
            printable(text),
            width,
            initial_indent=head,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        )


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or _USUAL_WIDTH
    except OSError:
        return _USUAL_WIDTH
