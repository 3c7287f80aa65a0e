"""Options that several commands share, and how the text given for them becomes values."""

from datetime import datetime
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
    typer.Option("--runners", metavar="A,B", help="What to run, in order. Default: everything.", show_default=False),
]

ShardOption = Annotated[
    str | None,
    typer.Option("--shard", metavar="I/N", help="Take only the jobs of this shard: 0/4 to 3/4.", show_default=False),
]


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
    """Refuse a store that forgets everything when this command ends."""
    if app.settings.store.startswith("memory"):
        raise InvalidInput("store: memory: is gone when this command ends; use postgresql://… or embedded:")


def store_of(app: "Holdfast") -> str:
    """Where the app's jobs live, as a person may see it: the folder of an embedded store, no password of a server."""
    from holdfast.store.embedded import EmbeddedAddress

    address = app.settings.store
    if address.startswith("embedded:"):
        return f"embedded:{EmbeddedAddress.parse(address).folder}"
    return without_password(address)
