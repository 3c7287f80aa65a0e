"""`holdfast doctor`: finds what is wrong with a store, or soon will be, and says how to fix it."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.errors import FAILED, as_called
from holdfast.cli.options import AppOption, JsonOption, SchemaOption, StoreOption
from holdfast.cli.output import console, print_json, printable
from holdfast.domain.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from holdfast.doctor.findings import Finding
    from holdfast.settings import Settings

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "unknown": "magenta"}


def doctor(
    context: typer.Context,
    deep: Annotated[bool, typer.Option("--deep", help="Examine every job. This reads all tables.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Also exit with 1 if there is a warning.")] = False,
    allow_unsafe: Annotated[
        bool,
        typer.Option("--allow-unsafe", help="Only warn if the server can lose committed jobs in a crash."),
    ] = False,
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a store for problems, and say how to fix them.

    Changes nothing. Exits with 1 if there is a problem.
    """
    import asyncio

    settings = _settings(address, store, schema)
    if settings.store.startswith("memory"):
        raise InvalidInput("store: memory: lives inside one process, so there is nothing to examine")
    name = context.find_root().info_name
    findings = [
        finding if finding.next_step is None else replace(finding, next_step=as_called(finding.next_step, name))
        for finding in asyncio.run(_examine(settings, deep=deep, allow_unsafe=allow_unsafe))
    ]
    bad = {"problem", "warning", "unknown"} if strict else {"problem"}
    healthy = not any(finding.level in bad for finding in findings)
    if as_json:
        print_json({"ok": healthy, "findings": [finding.as_dict() for finding in findings]})
    else:
        _print(console(), findings)
    raise typer.Exit(0 if healthy else FAILED)


def _settings(address: str | None, store: str | None, schema: str | None) -> "Settings":
    from holdfast.settings import Settings

    if address is None:
        return Settings.load(store=store, db_schema=schema)
    from holdfast.cli.load_app import load_app

    return load_app(address, store=store, schema=schema).settings


async def _examine(settings: "Settings", *, deep: bool, allow_unsafe: bool) -> "list[Finding]":
    from holdfast.doctor.doctor import examine
    from holdfast.doctor.findings import Limits
    from holdfast.store.opening import server_url

    async with server_url(settings.store) as server:
        limits = Limits(allows_unsafe=allow_unsafe, retention=settings.retention)
        return await examine(server, settings.db_schema, deep=deep, limits=limits, direct_url=settings.listen_url)


def _print(shown: "Console", findings: "Sequence[Finding]") -> None:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        said: RenderableType = Text(printable(finding.line))
        if finding.next_step is not None:
            step = Table.grid(padding=(0, 1))
            step.add_row("→", Text(printable(finding.next_step)), style="cyan")
            said = Group(said, step)
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), Text(finding.check, style="bold"), said)
    shown.print(table)
    counts = Counter(finding.level.value for finding in findings)
    parts = [
        f"[{style}]{counts[level]} {level}{'s' if counts[level] > 1 and level in ('warning', 'problem') else ''}[/]"
        for level, style in _STYLES.items()
        if counts[level]
    ]
    shown.print(f"\n{len(findings)} checks: {', '.join(parts)}")
