"""`holdfast worker` runs an app until a signal stops it; `holdfast tick` runs everything due once, for cron jobs."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import (
    AppOption,
    JsonOption,
    RunnersOption,
    SchemaOption,
    ShardOption,
    StoreOption,
    to_names,
    to_shard,
)
from holdfast.cli.output import console, print_json, printable, rough
from holdfast.hosting.early_stop import exit_when_told

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.domain.runner import RunnerReport
    from holdfast.runtime.tick import TickReport

_WORKER_OPTIONS = {
    "concurrency": "--concurrency",
    "queues": "--queues",
    "lease": "--lease",
    "poll": "--poll",
    "shutdown": "--shutdown",
    "shard_count": "--shard",
    "health_port": "--health-port",
    "log_level": "--log-level",
}
_TICK_OPTIONS = {
    "tick_max": "--max-time",
    "tick_items": "--max-items",
    "runner_max": "--runner-max-time",
    "runner_items": "--runner-max-items",
    "shard_count": "--shard",
    "log_level": "--log-level",
}


def worker(
    concurrency: Annotated[
        int | None, typer.Option(help="How many handlers run at once. Default: 32.", show_default=False)
    ] = None,
    queues: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Queues to serve. Default: the handlers' queues.", show_default=False),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long a lease lasts unless renewed. Default: 30s.", show_default=False),
    ] = None,
    poll: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How often an idle worker polls; a third as often with NOTIFY. Default: 1s.",
            show_default=False,
        ),
    ] = None,
    shutdown: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long shutdown waits for running handlers. Default: 30s.", show_default=False
        ),
    ] = None,
    runners: RunnersOption = None,
    shard: ShardOption = None,
    listen: Annotated[
        bool | None,
        typer.Option(
            "--listen/--no-listen", help="Wake up on NOTIFY, or only poll. Default: --listen.", show_default=False
        ),
    ] = None,
    health_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="HTTP port for /live and /ready.", show_default=False)
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="debug, info, warning or error. Default: info.", show_default=False),
    ] = None,
    app: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
) -> None:
    """Run the app's handlers and schedules until stopped.

    SIGTERM, SIGHUP or Ctrl-C stops it. The first signal lets running handlers finish and releases the other jobs, a
    second one interrupts the handlers, and a third one exits at once. A signal within a second of the one before does
    not count.
    """
    exit_when_told()
    from holdfast.cli.load_app import load_app
    from holdfast.hosting.run import run_worker

    index, count = to_shard(shard)
    loaded = load_app(
        app,
        store=store,
        schema=schema,
        called=_WORKER_OPTIONS,
        concurrency=concurrency,
        queues=to_names(queues),
        lease=lease,
        poll=poll,
        shutdown=shutdown,
        shard_index=index,
        shard_count=count,
        listen=listen,
        health_port=health_port,
        log_level=log_level,
    )
    _set_up_logging(loaded, "info")
    raise typer.Exit(run_worker(loaded, runners=to_names(runners)))


def tick(
    runners: RunnersOption = None,
    max_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time limit for the whole tick. Default: 8m.", show_default=False),
    ] = None,
    max_items: Annotated[
        int | None,
        typer.Option(metavar="N", help="Item limit for the whole tick. Default: no limit.", show_default=False),
    ] = None,
    runner_max_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time limit for each runner. Default: 1m.", show_default=False)
    ] = None,
    runner_max_items: Annotated[
        int | None, typer.Option(metavar="N", help="Item limit for each runner. Default: no limit.", show_default=False)
    ] = None,
    shard: ShardOption = None,
    as_json: JsonOption = False,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="debug, info, warning or error. Default: warning.", show_default=False),
    ] = None,
    app: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
) -> None:
    """Run everything that is due, once, and report.

    Any number of ticks can run at the same time, on any number of machines. Exits with 0 only if no runner had an
    error. A failed job is retried or kept as a dead letter; it does not count as an error of its runner.
    """
    exit_when_told()
    from holdfast.cli.load_app import load_app
    from holdfast.hosting.run import run_tick

    index, count = to_shard(shard)
    loaded = load_app(
        app,
        store=store,
        schema=schema,
        called=_TICK_OPTIONS,
        tick_max=max_time,
        tick_items=max_items,
        runner_max=runner_max_time,
        runner_items=runner_max_items,
        shard_index=index,
        shard_count=count,
        log_level=log_level,
    )
    _set_up_logging(loaded, "warning")
    report = run_tick(loaded, runners=to_names(runners))
    print_json(_as_dict(report)) if as_json else _show(report)
    raise typer.Exit(0 if report.is_fine else 1)


def _set_up_logging(app: "Holdfast", level: str) -> None:
    """If the application set up logging when it was imported, keep its handlers."""
    import logging

    from holdfast.logs import setup_logging

    if not logging.getLogger().handlers:
        setup_logging(app.settings, level=level)
    elif app.settings.log_level is not None:
        logging.getLogger("holdfast").setLevel(app.settings.log_level.upper())


def _as_dict(report: "TickReport") -> dict[str, object]:
    return {
        "ok": report.is_fine,
        "seconds": round(report.seconds, 3),
        "runners": [
            {
                "runner": part.runner,
                "processed": part.processed,
                "failed": part.failed,
                "skipped": part.skipped,
                "error": part.error,
                "seconds": round(part.seconds, 3),
                "counts": part.counts,
            }
            for part in report.runners
        ],
    }


def _show(report: "TickReport") -> None:
    from datetime import timedelta

    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("runner", "processed", "failed", "time", "notes"):
        table.add_column(heading, justify="right" if heading in ("processed", "failed", "time") else "left")
    for part in report.runners:
        style = "red" if part.error else "dim" if part.skipped and not part.processed else ""
        table.add_row(
            part.runner,
            str(part.processed),
            str(part.failed),
            rough(timedelta(seconds=part.seconds)),
            printable(_notes(part)),
            style=style,
        )
    if report.runners:
        console().print(table)


def _notes(part: "RunnerReport") -> str:
    counts = ", ".join(f"{name} {value}" for name, value in part.counts.items())
    return "; ".join(filter(None, [part.error, part.skipped, counts]))
