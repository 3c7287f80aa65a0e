"""Commands that other distributions add to `holdfast`: functions in the entry-point group `holdfast.commands`."""

from collections.abc import Collection

import typer

from holdfast.cli.errors import one_line
from holdfast.cli.output import warn
from holdfast.domain.errors import HoldfastError, InvalidInput

_GROUP = "holdfast.commands"
# Commands that the documentation mentions, and the distribution that has them.
_ELSEWHERE = {"bench": "holdfast-lab", "faults": "holdfast-lab"}


def add_plugins(commands: typer.Typer, own: Collection[str], wanted: str | None) -> None:
    """Add the command that is wanted. If there is no such command, add all, for the list of commands.

    A command that cannot be loaded is an error if it is wanted, and otherwise only a warning.
    """
    # Takes a tenth of a short command, so only commands that are not our own pay for it.
    from importlib.metadata import entry_points

    found = [each for each in entry_points(group=_GROUP) if each.name not in own]
    for each in [each for each in found if each.name == wanted] or found:
        try:
            function = each.load()
        except Exception as error:
            distribution = each.dist.name if each.dist else "another distribution"
            reason = one_line(f"{type(error).__name__}: {error}")
            line = f"the command {each.name} of {distribution} cannot be loaded: {reason}"
            if each.name == wanted:
                raise HoldfastError(line) from error
            warn(line)
        else:
            commands.command(each.name)(function)
    if wanted in _ELSEWHERE and wanted not in (each.name for each in found):
        package = _ELSEWHERE[wanted]
        raise InvalidInput(f"{wanted} is a command of {package}, which is not installed; run: pip install {package}")
