"""`holdfast enqueue`: enqueues one job from the command line."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import (
    AppOption,
    JsonOption,
    PayloadArgument,
    SchemaOption,
    StoreOption,
    check_kept,
    to_payload,
    to_time,
    to_uuid,
)
from holdfast.cli.output import print_json

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.domain.enqueued import Enqueued
    from holdfast.domain.job import NewJob


def enqueue(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="The job's kind, which selects its handler.", show_default=False)
    ],
    payload: PayloadArgument = "{}",
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="The job's queue. Default: the handler's.", show_default=False)
    ] = None,
    priority: Annotated[int | None, typer.Option(help="0 (most urgent) to 9. Default: 5.", show_default=False)] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="Earliest start, from now: 90s, 5m, 1h30m.", show_default=False)
    ] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="ISO", help="Earliest start: 2030-01-31T08:00:00Z.", show_default=False)
    ] = None,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="The job's tenant.", show_default=False)] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Enqueuing twice with the same key makes one job.", show_default=False),
    ] = None,
    if_exists: Annotated[
        str | None,
        typer.Option(
            metavar="keep|keep_live|replace",
            help="If a job has the key: keep it, keep it unless it has ended, or replace it unless it has started. "
            "Default: keep.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="At most one job with the key within this time: 5m, 1h.", show_default=False),
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Marks log lines that belong together.", show_default=False)
    ] = None,
    attempts: Annotated[
        int | None, typer.Option(help="Maximum attempts. Default: the handler's.", show_default=False)
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="UUID", help="The job's id. Default: a new one.", show_default=False)
    ] = None,
    app: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Enqueue one job of KIND and print its id."""
    import asyncio

    from holdfast.cli.load_app import load_app
    from holdfast.domain.job import DEFAULT_PRIORITY, IfExists

    loaded = load_app(app, store=store, schema=schema)
    check_kept(loaded)
    job = loaded.job(
        kind,
        to_payload(payload),
        queue=queue,
        priority=DEFAULT_PRIORITY if priority is None else priority,
        delay=delay,
        run_at=None if run_at is None else to_time(run_at, "run-at"),
        tenant=tenant,
        key=key,
        if_exists=IfExists.KEEP if if_exists is None else if_exists,
        window=window,
        correlation_id=correlation_id,
        attempts=attempts,
        id=None if id is None else to_uuid(id),
    )
    enqueued = asyncio.run(_enqueue(loaded, job))
    if as_json:
        print_json({"id": str(enqueued.id), "is_new": enqueued.is_new, "replaced": enqueued.replaced})
    else:
        typer.echo(f"{enqueued.id}  {_said(enqueued)}")


def _said(enqueued: "Enqueued") -> str:
    if enqueued.is_new:
        return "new"
    return "already existed; replaced by this job" if enqueued.replaced else "already existed with the same key"


async def _enqueue(app: "Holdfast", job: "NewJob") -> "Enqueued":
    async with app:
        (enqueued,) = await app.enqueue_many([job])
        return enqueued
