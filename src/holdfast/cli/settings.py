"""`holdfast settings`: every setting, its value and where that comes from; or the reference page."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import JsonOption
from holdfast.cli.output import console, print_json, printable
from holdfast.domain.address import without_password

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from holdfast.settings import Settings

_PAGE_START = """\
# Settings

Made by `holdfast settings --markdown`: change `src/holdfast/settings.py`, not this page. `holdfast settings` shows the
current values, unless code overrides them, and where each comes from.

Settings are environment variables. Code takes the same ones as keywords in lowercase, without the prefix:
`Holdfast(lease="60s", runners=("queue", "sweep"))`. A keyword overrides the variable, and None leaves it to the
variable. A command's options override both. Durations are written like `500ms`, `90s`, `1h30m` or `7d`, lists are
separated by commas, yes and no are `true` and `false`. An empty variable counts as unset. A value that is misspelt, out
of range or contradictory is refused at start, in one line that names the variable or the keyword.

Put the address of the store into `HOLDFAST_STORE`, where every process and every command finds it. An address in the
code, `Holdfast("postgresql://…")`, overrides the variable, but only for programs that load that code: `holdfast
migrate`, `jobs`, `schedules`, `runs`, `subscriptions` and `doctor` do not, and would look into another store. The
option `--store` overrides both. `migrate`, `declare` and a list that is empty name the store that they used.

Variables that begin with `HOLDFAST_TEST_` or `HOLDFAST_BENCH_` belong to the tests and are ignored. So are the ones
that Kubernetes sets for a Service whose name begins with `holdfast`. A Service called `holdfast-health` would set
`HOLDFAST_HEALTH_PORT`: give it another name, or set `enableServiceLinks: false` in the pod.
"""

_PAGE_END = """
## If you come from a worker with these knobs

Milliseconds become durations: `60000` is `60s` here.

| there | here | what differs |
|---|---|---|
"""

# A variable of the other worker, ours, and what to know about the difference.
_KNOBS = (
    ("WORKER_TICK_RUNNERS", "runners", "unset runs everything that the app declares"),
    ("WORKER_TICK_OVERALL_MAX_MS", "tick_max", "the same default"),
    ("WORKER_TICK_RUNNER_MAX_MS", "runner_max", "the same: 60s"),
    ("WORKER_TICK_RUNNER_MAX_ITEMS", "runner_items", "no limit unless set; 200 there"),
    ("WORKER_TICK_SHARD_INDEX", "shard_index", "only together with the count"),
    ("WORKER_TICK_SHARD_COUNT", "shard_count", "only together with the index"),
    ("OUTBOX_BATCH_SIZE", "claim_max", "no limit unless set, but never more than there are slots and look-ahead for"),
    ("WORKER_BUSY_LOOP_DELAY_MS", "busy_delay", "none unless set; 250ms there"),
    ("WORKER_IDLE_BACKOFF_MIN_MS", "idle_backoff_min", "1s there"),
    (
        "WORKER_IDLE_BACKOFF_MAX_MS",
        "poll",
        "30s there; set `HOLDFAST_IDLE_BACKOFF_MAX` to the same; a wake-up ends the wait early",
    ),
    ("WORKER_IDLE_BACKOFF_JITTER_MS", "idle_backoff_jitter", "none unless set; 500ms there"),
    (
        "WORKER_TICK_LOOP_ERROR_BACKOFF_MS",
        "error_backoff_max",
        "reached by doubling from the minimum; set both to 30s for a fixed wait",
    ),
    ("WORKER_TICK_LOOP_MAX_JITTER_MS", "error_backoff_jitter", "2s there"),
    ("WORKER_SHUTDOWN_TIMEOUT_MS", "shutdown", "the same default"),
)


def settings(
    as_json: JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page docs/settings.md.")] = False,
) -> None:
    """Show every setting and where its value comes from."""
    from holdfast.settings import Settings

    if markdown:
        typer.echo(_page(), nl=False)
        return
    loaded = Settings.load()
    if as_json:
        print_json({line.variable: {"value": _shown(line.value), "from": line.source} for line in _lines(loaded)})
        return
    _print(console(), loaded)


def _shown(value: object) -> str | int | bool | None:
    """A setting's value as its variable is written; an address loses its password."""
    from holdfast.domain.duration import to_text

    match value:
        case timedelta():
            return to_text(value)
        case tuple():
            return ",".join(value)
        case str():
            return without_password(value) if "://" in value else value
        case int() | None:
            return value
        case _:
            raise TypeError(f"a setting of type {type(value).__name__}")


def _in_words(value: object) -> str:
    match _shown(value):
        case None:
            return "unset"
        case "":
            return "empty"
        case bool() as flag:
            return "true" if flag else "false"
        case other:
            return str(other)


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    variable: str
    value: object
    source: str


def _lines(loaded: "Settings") -> "Iterator[_Line]":
    """In the order of the reference page."""
    from holdfast.settings import OTHER_VARIABLES, Settings, variable

    for name in Settings.model_fields:
        source = "environment" if name in loaded.model_fields_set else "default"
        yield _Line(name, variable(name), getattr(loaded, name), source)
        if name == "store":
            for other in OTHER_VARIABLES:
                value = os.environ.get(other) or None
                yield _Line("", other, value, "default" if value is None else "environment")


def _print(target: "Console", loaded: "Settings") -> None:
    from rich.table import Table
    from rich.text import Text

    from holdfast.settings import GROUPS

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True)
    for line in _lines(loaded):
        if line.name in GROUPS:
            if table.row_count:
                table.add_row()
            table.add_row(Text(GROUPS[line.name], style="bold"))
        style = "dim" if line.source == "default" else "cyan"
        table.add_row(
            Text(f"  {line.variable}"), Text(printable(_in_words(line.value))), Text(line.source, style=style)
        )
    target.print(table)


def _page() -> str:
    """docs/settings.md, made from the class Settings so that it cannot say anything else."""
    from holdfast.settings import GROUPS, OTHER_VARIABLES, Settings, variable

    parts = [_PAGE_START]
    for name in Settings.model_fields:
        if name in GROUPS:
            parts.append(f"\n## {GROUPS[name]}\n\n| variable | default | meaning |\n|---|---|---|\n")
        parts.append(f"| `{variable(name)}` | {_default(name)} | {Settings.model_fields[name].description} |\n")
        if name == "store":
            parts += [f"| `{other}` | unset | {meaning} |\n" for other, meaning in OTHER_VARIABLES.items()]
    parts.append(_PAGE_END)
    parts += [f"| `{there}` | `{variable(here)}` | {differs} |\n" for there, here, differs in _KNOBS]
    return "".join(parts)


def _default(name: str) -> str:
    """The default when nothing is set: some defaults depend on other settings."""
    from holdfast.settings import Settings

    field = Settings.model_fields[name]
    value = field.default
    if field.default_factory is not None:
        plain = {other: each.default for other, each in Settings.model_fields.items() if each.default_factory is None}
        value = field.get_default(call_default_factory=True, validated_data=plain)
    words = _in_words(value)
    return words if words in ("unset", "empty") else f"`{words}`"
