"""A payload as somebody gives it to a command: JSON on the command line, on stdin or in a file."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.domain.errors import InvalidInput

PayloadArgument = Annotated[
    str,
    typer.Argument(
        metavar="[JSON]",
        help="What to work on: '{\"invoice\": 17}'. - reads stdin, @file reads a file.",
        show_default=False,
    ),
]


def to_payload(text: str) -> object:
    from holdfast.domain.json_text import decode, parse

    return decode(parse(_read(text)))


def _read(text: str) -> str:
    try:
        if text == "-":
            return sys.stdin.buffer.read().decode()
        if text.startswith("@"):
            return Path(text[1:]).read_bytes().decode()
    except OSError as error:
        raise InvalidInput(f"payload: cannot read {text[1:]!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput("payload: is not UTF-8 text") from error
    return text
