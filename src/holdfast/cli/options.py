"""Arguments and options that several commands share, and functions that parse their text."""

import logging
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

AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="APP",
        envvar="HOLDFAST_APP",
        help="The app: shop.jobs:app, or path/to/file.py:app. Default: HOLDFAST_APP.",
        show_default=False,
        show_envvar=False,
    ),
]
PayloadArgument = Annotated[
    str,
    typer.Argument(
        metavar="[JSON]",
        help="The payload: '{\"invoice\": 17}'. Use - for stdin, @file for a file.",
        show_default=False,
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store: postgresql://user@host/database, or embedded:/folder.",
        show_default=False,
    ),
]
SchemaOption = Annotated[
    str | None,
    typer.Option("--schema", metavar="NAME", help="PostgreSQL schema. Default: holdfast.", show_default=False),
]


def _for_programs(is_json: bool) -> bool:
    """Hide the notice about the default store: a program that reads the output has no use for it."""
    if is_json:
        logging.getLogger("holdfast.embedded").setLevel(logging.ERROR)
    return is_json


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.", callback=_for_programs)]
StateOption = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="A,B",
        help="ready, running, succeeded, failed, dead or canceled. Several: failed,dead.",
        show_default=False,
    ),
]
QueueOption = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="Only jobs in this queue.", show_default=False)
]
KindOption = Annotated[
    str | None, typer.Option("--kind", metavar="NAME", help="Only jobs of this kind.", show_default=False)
]
TenantOption = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Only jobs of this tenant.", show_default=False)
]
RunnersOption = Annotated[
    str | None,
    typer.Option("--runners", metavar="A,B", help="Runners to run, in order. Default: all.", show_default=False),
]
ShardOption = Annotated[
    str | None,
    typer.Option("--shard", metavar="I/N", help="Run only the jobs of one shard, such as 0/4.", show_default=False),
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
    """Make the command group of one noun. Without a command it shows its help."""
    commands = typer.Typer(help=help, rich_markup_mode=None)
    commands.callback(invoke_without_command=True)(_show_help)
    return commands


def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def to_names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(","))


def to_shard(text: str | None) -> tuple[int | None, int | None]:
    """Return the shard's index and the number of shards."""
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


def to_states(text: str | None) -> "tuple[JobState, ...]":
    from holdfast.domain.job import JobState

    names = dict.fromkeys(to_names(text) or ())
    unknown = [name for name in names if name not in [*JobState]]
    if unknown:
        raise InvalidInput(f"state: {unknown[0]!r} is not known; use {', '.join(JobState)}")
    return tuple(JobState(name) for name in names)


def check_kept(app: "Holdfast") -> None:
    """Refuse a store that disappears when this command ends."""
    if app.settings.store.startswith("memory"):
        raise InvalidInput("store: memory: disappears when this command ends; use postgresql://… or embedded:")


def store_of(app: "Holdfast") -> str:
    """Describe the app's store: an embedded store's folder, or a server's address without the password."""
    from holdfast.store.embedded import EmbeddedAddress

    address = app.settings.store
    if address.startswith("embedded:"):
        return f"embedded:{EmbeddedAddress.parse(address).folder}"
    return without_password(address)
