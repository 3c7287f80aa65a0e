"""`holdfast jobs retry`: a new life for finished jobs."""

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

_STATES = ("failed", "dead", "canceled", "succeeded")
_MEANINGS = {
    "ready": "ready to run again",
    "live": "not changed: ready or running already",
    "locked": "not changed: somebody else is changing it at this moment",
    "unknown": "not known",
}


def retry(
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
    """Make finished jobs ready again.

    Their attempts are counted from zero. Give ids, or choose: `holdfast jobs retry --all --state dead --kind invoice`.
    """
    selection = to_selection("retry", _STATES, ids or [], to_filter(state, queue, kind, tenant), all, yes)
    app = app_of_store(store, schema)
    change_jobs(app, selection, "retry", app.retry, _MEANINGS, as_json=as_json)
