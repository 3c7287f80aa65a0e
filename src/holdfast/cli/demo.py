"""`holdfast demo`: shows Holdfast at work in a few seconds, without any setup."""

import typer


def demo() -> None:
    """See Holdfast survive errors, crashes and a killed worker.

    Starts PostgreSQL in a temporary folder, runs a few hundred jobs, kills a worker midway and checks that no job was
    lost. Takes about ten seconds and leaves nothing behind.
    """
    from holdfast.cli.output import console
    from holdfast.cli.running import run_to_end, start_worker
    from holdfast.demo.story import run_demo

    raise typer.Exit(run_to_end(run_demo(console(), start_worker)))
