"""`holdfast jobs wait`: until jobs are final, for scripts that go on only then."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.errors import FAILED
from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import JsonOption, SchemaOption, StoreOption, to_uuid
from holdfast.cli.output import print_json, printable, warn

if TYPE_CHECKING:
    from uuid import UUID

    from holdfast.app import Holdfast
    from holdfast.domain.job import Job

TIMED_OUT = 124
"""As `timeout` has it."""


def wait(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False)],
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="How long at most: 90s, 5m, 1h30m; 0s looks once.")
    ] = "30s",
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait until jobs are final, and say how they ended.

    Exits with 0 if all succeeded, with 1 if one ended otherwise, and with 124 if the time was up before.
    """
    import asyncio

    jobs = asyncio.run(_wait(app_of_store(store, schema), [to_uuid(id) for id in ids], timeout))
    if as_json:
        print_json([job.as_dict() for job in jobs])
    else:
        for job in jobs:
            typer.echo(_line(job))
    others = [job for job in jobs if job.state.is_final and job.state != "succeeded"]
    late = [job for job in jobs if not job.state.is_final]
    if others:
        warn(f"{len(others)} of {len(jobs)} did not succeed; `holdfast jobs show {others[0].id}` tells why")
        raise typer.Exit(FAILED)
    if late:
        warn(f"{len(late)} of {len(jobs)} not final after {timeout}; wait again, or with a longer --timeout")
        raise typer.Exit(TIMED_OUT)


async def _wait(app: "Holdfast", ids: "list[UUID]", timeout: str) -> "list[Job]":
    async with app:
        return list((await app.wait_many(ids, timeout)).values())


def _line(job: "Job") -> str:
    error = job.last_error
    why = f"  {error.code} {error.summary}" if error is not None and job.state != "succeeded" else ""
    return printable(f"{job.id}  {job.state}{why}")
