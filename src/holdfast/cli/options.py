"""Arguments and options that several commands share, and how their text becomes values."""

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from holdfast.domain.address import without_password
from holdfast.domain.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.domain.job import JobState

AppArgument = Annotated[
    str,
    typer.Argument(metavar="APP", help="Where the app is: shop.jobs:app, or path/to/file.py:app.", show_default=False),
]
PayloadArgument = Annotated[
    str,
    typer.Argument(
        metavar="[JSON]",
        help="What to work on: '{\"invoice\": 17}'. - reads stdin, @file reads a file.",
        show_default=False,
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where jobs live: postgresql://user@host/database, or embedded:/folder.",
        show_default=False,
    ),
]
SchemaOption = Annotated[
    str | None,
    typer.Option("--schema", metavar="NAME", help="PostgreSQL schema. Default: holdfast.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
StateOption = Annotated[
    str | None,
    typer.Option(
        "--state", metavar="STATE", help="ready, running, succeeded, failed, dead or canceled.", show_default=False
    ),
]
QueueOption = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="Only jobs of this queue.", show_default=False)
]
KindOption = Annotated[
    str | None, typer.Option("--kind", metavar="NAME", help="Only jobs of this kind.", show_default=False)
]
TenantOption = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Only jobs of this tenant.", show_default=False)
]
RunnersOption = Annotated[
    str | None,
    typer.Option("--runners", metavar="A,B", help="Runners, in order. Default: everything.", show_default=False),
]
ShardOption = Annotated[
    str | None,
    typer.Option("--shard", metavar="I/N", help="Take only the jobs of this shard: 0/4 to 3/4.", show_default=False),
]


def to_payload(text: str) -> object:
    from holdfast.domain.json_text import decode, parse

    return decode(parse(_payload_text(text)))


def _payload_text(text: str) -> str:
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


def noun(help: str) -> typer.Typer:
    """The commands of one noun; the noun alone shows their help."""
    commands = typer.Typer(help=help, rich_markup_mode=None)
    commands.callback(invoke_without_command=True)(_show_help)
    return commands


def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def to_names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(","))


def to_shard(text: str | None) -> tuple[int | None, int | None]:
    """Its index and the number of shards."""
    if text is None:
        return None, None
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise InvalidInput(f"--shard: {text!r} is not a shard; write 0/4 for the first of four and 3/4 for the last")
    return int(index), int(count)


def to_uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(
            f"id: {text!r} is not a job id; it looks like 01890a5d-ac96-774b-bcce-b302099a8057"
        ) from None


def to_time(text: str, name: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{name}: {text!r} is not a time; write it like 2030-01-31T08:00:00Z") from None
    if moment.tzinfo is None:
        raise InvalidInput(f"{name}: {text!r} has no time zone; add Z for UTC, or an offset such as +02:00")
    return moment


def to_state(text: str | None) -> "JobState | None":
    from holdfast.domain.job import JobState

    try:
        return None if text is None else JobState(text)
    except ValueError:
        raise InvalidInput(f"state: {text!r} is not known; use {', '.join(JobState)}") from None


def check_kept(app: "Holdfast") -> None:
    """Refuse a store that disappears when this command ends."""
    if app.settings.store.startswith("memory"):
        raise InvalidInput("store: memory: is gone when this command ends; use postgresql://… or embedded:")


def store_of(app: "Holdfast") -> str:
    """Where the app's jobs live, to show: an embedded store's folder, or a server's address without the password."""
    from holdfast.store.embedded import EmbeddedAddress

    address = app.settings.store
    if address.startswith("embedded:"):
        return f"embedded:{EmbeddedAddress.parse(address).folder}"
    return without_password(address)
