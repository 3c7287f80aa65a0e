"""`holdfast demo`: all of it at work, in a few seconds and without any set-up."""

import typer


def demo() -> None:
    """See it at work: errors, crashes, a killed worker.

    Starts a PostgreSQL in a temporary folder, runs a few hundred jobs, kills a worker in the middle and checks that
    nothing was lost. Takes about ten seconds and leaves nothing behind.
    """
    from holdfast.cli.output import console
    from holdfast.cli.running import run_to_end, start_worker
    from holdfast.demo.story import run_demo

    raise typer.Exit(run_to_end(run_demo(console(), start_worker)))
