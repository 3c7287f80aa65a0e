"""Turns an exception into one line for a person and an exit code for a script."""

from dataclasses import dataclass, replace

import typer

from holdfast.domain.address import without_password
from holdfast.domain.errors import (
    CHECK_SERVER,
    AccessRefused,
    HoldfastError,
    InvalidInput,
    StoreUnavailable,
    UnknownJob,
)

FAILED = 1
BAD_INPUT = 2


@dataclass(frozen=True, slots=True)
class Explanation:
    line: str
    exit_code: int


def explained(error: Exception) -> Explanation:
    found = _explained(error)
    return replace(found, line=without_password(found.line))


def _explained(error: Exception) -> Explanation:
    match error:
        case typer.TyperException():
            return Explanation(f"{_usage_line(error)} {_where_to_look(error)}".strip(), error.exit_code)
        case typer.Abort():
            return Explanation("stopped; nothing was changed", FAILED)
        case UnknownJob():
            return Explanation(one_line(str(error)), FAILED)
        case InvalidInput() | AccessRefused():
            return Explanation(one_line(str(error)), BAD_INPUT)
        case StoreUnavailable():
            advice = "check that the server is running and that --store or HOLDFAST_STORE points to it"
            return Explanation(f"{one_line(str(error).removesuffix(CHECK_SERVER))}; {advice}", FAILED)
        case HoldfastError():
            return Explanation(one_line(str(error)), FAILED)
        case _:
            what = one_line(str(error))
            said = f"{type(error).__name__}: {what}" if what else type(error).__name__
            return Explanation(f"unexpected error: {said}; run with --debug for the traceback", FAILED)


def as_called(text: str, name: str | None) -> str:
    """Adapt the text to `manage.py holdfast …` if that is how it was called: its settings come from Django."""
    if name is None or not name.endswith(" holdfast"):
        return text
    text = text.replace("`holdfast ", f"`{name} ").replace(" with --store or --app", "")
    return text.replace("--store or HOLDFAST_STORE points", "DATABASES points")


def _usage_line(error: typer.TyperException) -> str:
    """Suggest only the option closest to a misspelled one; typer would list all candidates alphabetically."""
    similar = getattr(error, "possibilities", None)
    return f"{error.message}; did you mean {similar[0]}?" if similar else one_line(error.format_message())


def one_line(text: str) -> str:
    """Join the first and last lines: if the text quotes a server's log, its last line says what went wrong."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return " ".join(dict.fromkeys([lines[0], lines[-1]])) if lines else ""


def _where_to_look(error: typer.TyperException) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", None)
    return f"(see `{path} --help`)" if path else ""
