"""`holdfast jobs cancel`: for work that is no longer wanted."""

from typing import Annotated

import typer

from holdfast.cli.jobs.selection import change_jobs, to_filter, to_selection
from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import (
    JsonOption,
    KindOption,
    QueueOption,
    SchemaOption,
    StateOption,
    StoreOption,
    TenantOption,
)

_STATES = ("ready", "running", "failed", "dead")
_MEANINGS = {
    "canceled": "canceled",
    "requested": "running: asked to stop, its worker sees that with the next renewal",
    "final": "not changed: finished already",
    "locked": "not changed: a transaction is finishing it at this moment",
    "unknown": "not known",
}


def cancel(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", show_default=False)] = None,
    all: Annotated[bool, typer.Option("--all", help="All jobs that match --state and the other filters.")] = False,
    state: StateOption = None,
    queue: QueueOption = None,
    kind: KindOption = None,
    tenant: TenantOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel jobs that are no longer wanted.

    Waiting jobs end at once, running ones as soon as their worker hears of it. Give ids, or choose:
    `holdfast jobs cancel --all --state ready --kind invoice`.
    """
    selection = to_selection("cancel", _STATES, ids or [], to_filter(state, queue, kind, tenant), all, yes)
    app = app_of_store(store, schema)
    change_jobs(app, selection, "cancel", app.cancel, _MEANINGS, as_json=as_json)
