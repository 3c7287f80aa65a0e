"""`holdfast settings`: every setting, its value here and where that comes from; or the reference page."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import JsonOption
from holdfast.cli.output import console, print_json, printable
from holdfast.domain.address import without_password

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from holdfast.settings import Settings


def settings(
    as_json: JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page docs/settings.md.")] = False,
) -> None:
    """Show every setting and where its value comes from."""
    from holdfast.cli.settings_page import page
    from holdfast.settings import Settings

    if markdown:
        typer.echo(page(), nl=False)
        return
    loaded = Settings.load()
    if as_json:
        print_json({line.variable: {"value": shown(line.value), "from": line.source} for line in _lines(loaded)})
        return
    _print(console(), loaded)


def shown(value: object) -> str | int | bool | None:
    """A setting's value the way its variable is written; of an address, all but the password."""
    from holdfast.domain.duration import to_text

    match value:
        case timedelta():
            return to_text(value)
        case tuple():
            return ",".join(value)
        case str():
            return without_password(value) if "://" in value else value
        case int() | None:
            return value
        case _:
            raise TypeError(f"a setting of type {type(value).__name__}")


def in_words(value: object) -> str:
    match shown(value):
        case None:
            return "unset"
        case "":
            return "empty"
        case bool() as flag:
            return "true" if flag else "false"
        case other:
            return str(other)


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    variable: str
    value: object
    source: str


def _lines(loaded: "Settings") -> "Iterator[_Line]":
    """In the order of the reference page."""
    from holdfast.settings import OTHER_VARIABLES, Settings, variable

    for name in Settings.model_fields:
        source = "environment" if name in loaded.model_fields_set else "default"
        yield _Line(name, variable(name), getattr(loaded, name), source)
        if name == "store":
            for other in OTHER_VARIABLES:
                value = os.environ.get(other) or None
                yield _Line("", other, value, "default" if value is None else "environment")


def _print(target: "Console", loaded: "Settings") -> None:
    from rich.table import Table
    from rich.text import Text

    from holdfast.settings import GROUPS

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True)
    for line in _lines(loaded):
        if line.name in GROUPS:
            if table.row_count:
                table.add_row()
            table.add_row(Text(GROUPS[line.name], style="bold"))
        style = "dim" if line.source == "default" else "cyan"
        table.add_row(Text(f"  {line.variable}"), Text(printable(in_words(line.value))), Text(line.source, style=style))
    target.print(table)
