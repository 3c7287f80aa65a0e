"""Log lines in each format: as text, as JSON, and for a person at a terminal."""

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from holdfast import Holdfast, InvalidInput
from holdfast.logs import JobLogFilter, setup_logging
from holdfast.logs.formats import ConsoleFormatter, JsonFormatter, TextFormatter
from holdfast.logs.records import get_logger
from holdfast.settings import Settings

ID = "01a1f4fc-1895-7ff3-996e-1f880ca33ca8"


class Lines:
    """The output of the loggers below "tried" in one format."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self._stream = io.StringIO()
        self._handler = logging.StreamHandler(self._stream)
        self._handler.setFormatter(formatter)
        self._handler.addFilter(JobLogFilter())
        self.logger = logging.getLogger("tried")
        self.logger.setLevel("DEBUG")
        self.logger.addHandler(self._handler)

    def close(self) -> None:
        self.logger.removeHandler(self._handler)

    @property
    def text(self) -> str:
        """The output without the time."""
        return self._stream.getvalue().partition(" ")[2].strip()

    @property
    def only(self) -> dict[str, object]:
        (line,) = self._stream.getvalue().splitlines()
        fields: dict[str, object] = json.loads(line)
        return fields


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> Iterator[Lines]:
    lines = Lines(request.param)
    yield lines
    lines.close()


in_text = pytest.mark.parametrize("lines", [TextFormatter()], indirect=True)
in_json = pytest.mark.parametrize("lines", [JsonFormatter()], indirect=True)
on_console = pytest.mark.parametrize("lines", [ConsoleFormatter(has_color=False)], indirect=True)


@in_text
def test_text_quotes_values_that_need_it(lines: Lines) -> None:
    get_logger("tried").info("stopped", why="timed out", count=3, none="", names=["a", "b"], said='a "word"\nmore')
    said = r'said="a \"word\"\nmore"'
    assert lines.text == f'INFO tried: stopped  why="timed out" count=3 none="" names=a,b {said}'


@in_text
def test_text_includes_the_fields_that_an_application_adds_to_its_records(lines: Lines) -> None:
    lines.logger.info("charged %s", "ann", extra={"amount": 5})
    assert lines.text == "INFO tried: charged ann  amount=5"


@in_text
def test_text_shows_no_control_characters(lines: Lines) -> None:
    lines.logger.info("a\x1b[2Jb")
    assert lines.text == "INFO tried: a�[2Jb"


@in_text
def test_text_names_the_job_of_a_record_and_a_correlation_id_that_differs_from_the_job_id(lines: Lines) -> None:
    lines.logger.info("one", extra={"job_id": ID, "correlation_id": ID})
    lines.logger.info("two", extra={"job_id": ID, "correlation_id": "order-7"})
    assert f"one  job_id={ID}\n" in lines.text
    assert f"two  job_id={ID} correlation_id=order-7" in lines.text


@in_text
def test_a_correlation_id_set_by_sql_cannot_forge_a_line(lines: Lines) -> None:
    forged = "req-1\n2026-11-19T18:00:00 ERROR holdfast.worker: job done\x1b]0;owned\x07"
    lines.logger.info("paid", extra={"correlation_id": forged})
    assert len(lines.text.splitlines()) == 1
    assert "\x1b" not in lines.text


@in_json
def test_json_is_one_object_per_line_including_the_traceback(lines: Lines) -> None:
    try:
        raise LookupError("no\nsuch")
    except LookupError:
        get_logger("tried").exception("failed", count=3, when=JobLogFilter, level="mine")
    found = lines.only
    assert str(found.pop("exception")).endswith("LookupError: no\nsuch")
    assert len(str(found.pop("time"))) == len("2030-01-31T08:00:00.123+00:00")
    assert found == {
        "level": "error",
        "logger": "tried",
        "message": "failed",
        "count": 3,
        "when": str(JobLogFilter),
        "level_": "mine",
    }


@on_console
def test_a_console_abbreviates_the_job_id(lines: Lines) -> None:
    lines.logger.warning("slow", extra={"job_id": ID, "kind": "mail", "attempt": 1, "correlation_id": ID})
    assert lines.text == "warning      tried: slow  [mail 0ca33ca8]"


@on_console
def test_a_console_indents_a_traceback(lines: Lines) -> None:
    try:
        raise LookupError("nothing\x1b")
    except LookupError:
        lines.logger.exception("failed")
    assert lines.text.startswith("error        tried: failed\n    Traceback (most recent call last):\n")
    assert lines.text.endswith("\n    LookupError: nothing�")


def test_a_program_with_its_own_format_gets_the_values_in_the_message_and_on_the_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    get_logger("tried").info("claimed", count=3)
    (record,) = caplog.records
    assert record.getMessage() == "claimed  count=3"
    assert vars(record)["count"] == 3
    assert (record.funcName, record.filename) == (
        "test_a_program_with_its_own_format_gets_the_values_in_the_message_and_on_the_record",
        "test_formats.py",
    )


def test_outside_a_job_the_filter_sets_every_field_that_a_format_may_use() -> None:
    record = logging.makeLogRecord({})
    assert JobLogFilter().filter(record)
    assert [vars(record)[name] for name in ("job_id", "kind", "attempt", "correlation_id")] == ["-"] * 4


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """The root logger with the program's handlers; the changes of the test are undone."""
    root, pool = logging.getLogger(), logging.getLogger("asyncpg.pool")
    before = root.handlers[:], root.level, pool.level
    for name in ("NO_COLOR", "TERM", "HOLDFAST_LOG_FORMAT", "HOLDFAST_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    yield root
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    pool.setLevel(before[2])


def said(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, settings: Settings | None = None) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    setup_logging(settings)
    logging.getLogger("shop").info("hello")
    return stream.getvalue()


def test_a_terminal_gets_color_unless_disabled(root: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[36minfo\x1b[0m" in said(monkeypatch, Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert said(monkeypatch, Terminal())[12:] == "  info         shop: hello\n"
    monkeypatch.setenv("HOLDFAST_LOG_FORMAT", "console")
    monkeypatch.delenv("NO_COLOR")
    assert said(monkeypatch, io.StringIO())[12:] == "  info         shop: hello\n"


def test_the_format_and_the_level_come_from_the_environment_or_the_code(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said(monkeypatch, io.StringIO()).endswith(" INFO shop: hello\n")
    monkeypatch.setenv("HOLDFAST_LOG_FORMAT", "JSON")
    assert json.loads(said(monkeypatch, io.StringIO()))["message"] == "hello"
    assert said(monkeypatch, io.StringIO(), Holdfast("memory:", log_format="text").settings).endswith("shop: hello\n")
    assert said(monkeypatch, io.StringIO(), Holdfast("memory:", log_level="warning").settings) == ""


def test_setting_up_twice_writes_each_line_once_and_keeps_the_programs_handlers(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = root.handlers[:]
    said(monkeypatch, io.StringIO())
    assert said(monkeypatch, io.StringIO()).count("hello") == 1
    assert root.handlers[:-1] == before


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InvalidInput, match="log_format: 'xml' is not known; use auto, console, text or json"):
        Holdfast("memory:", log_format="xml")
