"""`holdfast worker`: runs an app's handlers until a signal asks it to stop."""

from typing import Annotated

import typer

from holdfast.cli.options import (
    AppArgument,
    RunnersOption,
    SchemaOption,
    ShardOption,
    StoreOption,
    to_names,
    to_shard,
)
from holdfast.hosting.stop_signals import exit_when_told

_OPTIONS = {
    "concurrency": "--concurrency",
    "queues": "--queues",
    "lease": "--lease",
    "poll": "--poll",
    "shutdown": "--shutdown",
    "shard_count": "--shard",
    "health_port": "--health-port",
}


def worker(
    app: AppArgument,
    concurrency: Annotated[
        int | None, typer.Option(help="Handlers to run at once. Default: 32.", show_default=False)
    ] = None,
    queues: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Queues to work on. Default: those of the handlers.", show_default=False),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long a claim lasts without a renewal. Default: 30s.", show_default=False
        ),
    ] = None,
    poll: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How often an idle worker looks for work; a third as often where it is told. Default: 1s.",
            show_default=False,
        ),
    ] = None,
    shutdown: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long to wait for handlers when stopping. Default: 30s.", show_default=False
        ),
    ] = None,
    runners: RunnersOption = None,
    shard: ShardOption = None,
    listen: Annotated[
        bool | None,
        typer.Option(
            "--listen/--no-listen", help="Be woken by NOTIFY, or only poll. Default: be woken.", show_default=False
        ),
    ] = None,
    health_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="HTTP port for /live and /ready.", show_default=False)
    ] = None,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    store: StoreOption = None,
    schema: SchemaOption = None,
) -> None:
    """Run the handlers and schedules of APP until SIGTERM or Ctrl-C.

    The first signal lets running handlers finish and gives the rest back; a second one exits at once.
    """
    exit_when_told()
    from holdfast.cli.load_app import load_app
    from holdfast.cli.logs import configure_logging
    from holdfast.hosting.run import run_worker

    index, count = to_shard(shard)
    loaded = load_app(
        app,
        store=store,
        schema=schema,
        called=_OPTIONS,
        concurrency=concurrency,
        queues=to_names(queues),
        lease=lease,
        poll=poll,
        shutdown=shutdown,
        shard_index=index,
        shard_count=count,
        listen=listen,
        health_port=health_port,
    )
    configure_logging(log_level)
    raise typer.Exit(run_worker(loaded, runners=to_names(runners)))
