"""`holdfast subscriptions …`: look at who listens to which events, add and remove subscriptions."""

import typer

from holdfast.cli.subscriptions.add import add
from holdfast.cli.subscriptions.list import list_subscriptions
from holdfast.cli.subscriptions.remove import remove

commands = typer.Typer(help="Look at who listens to events, add and remove.", rich_markup_mode=None)
commands.command("list")(list_subscriptions)
commands.command("add")(add)
commands.command("remove")(remove)


@commands.callback(invoke_without_command=True)
def subscriptions(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
