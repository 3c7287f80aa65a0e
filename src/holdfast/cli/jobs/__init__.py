"""`holdfast jobs …`: look at jobs, wait for them, give them a new life, or give them up."""

import typer

from holdfast.cli.jobs.cancel import cancel
from holdfast.cli.jobs.list import list_jobs
from holdfast.cli.jobs.retry import retry
from holdfast.cli.jobs.show import show
from holdfast.cli.jobs.wait import wait

commands = typer.Typer(help="Look at jobs, wait for them, retry them, cancel them.", rich_markup_mode=None)
commands.command("list")(list_jobs)
commands.command("show")(show)
commands.command("wait")(wait)
commands.command("retry")(retry)
commands.command("cancel")(cancel)


@commands.callback(invoke_without_command=True)
def jobs(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
