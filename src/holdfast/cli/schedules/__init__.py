"""`holdfast schedules …`: look at schedules, add and remove them, pause them, run one now."""

import typer

from holdfast.cli.schedules.add import add
from holdfast.cli.schedules.list import list_schedules
from holdfast.cli.schedules.pause import pause
from holdfast.cli.schedules.remove import remove
from holdfast.cli.schedules.resume import resume
from holdfast.cli.schedules.run import run

commands = typer.Typer(help="Look at schedules, add, pause and run them.", rich_markup_mode=None)
commands.command("list")(list_schedules)
commands.command("add")(add)
commands.command("remove")(remove)
commands.command("pause")(pause)
commands.command("resume")(resume)
commands.command("run")(run)


@commands.callback(invoke_without_command=True)
def schedules(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
