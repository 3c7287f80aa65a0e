"""Turns an exception into one line for a person and an exit code for a script."""

from dataclasses import dataclass

import typer

from holdfast.domain.errors import AccessRefused, HoldfastError, InvalidInput, StoreUnavailable, UnknownJob

FAILED = 1
BAD_INPUT = 2


@dataclass(frozen=True, slots=True)
class Explanation:
    line: str
    exit_code: int


def explained(error: Exception) -> Explanation:
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
            advice = "check that the server runs and that --store or HOLDFAST_STORE names it"
            return Explanation(f"{one_line(str(error))}; {advice}", FAILED)
        case HoldfastError():
            return Explanation(one_line(str(error)), FAILED)
        case _:
            what = one_line(str(error))
            said = f"{type(error).__name__}: {what}" if what else type(error).__name__
            return Explanation(f"unexpected error: {said}; run with --debug for the traceback", FAILED)


def _usage_line(error: typer.TyperException) -> str:
    """With only the option most similar to a misspelt one; the library lists all, in alphabetical order."""
    similar = getattr(error, "possibilities", None)
    return f"{error.message}; did you mean {similar[0]}?" if similar else one_line(error.format_message())


def one_line(text: str) -> str:
    """The first line and the last: where a server's log is quoted, its last line says what went wrong."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return " ".join(dict.fromkeys([lines[0], lines[-1]])) if lines else ""


def _where_to_look(error: typer.TyperException) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", None)
    return f"(see `{path} --help`)" if path else ""
