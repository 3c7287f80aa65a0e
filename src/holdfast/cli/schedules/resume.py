"""`holdfast schedules resume`: on with the next slot."""

from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import JsonOption, SchemaOption, StoreOption
from holdfast.cli.schedules.showing import NameArgument, change_schedule


def resume(
    name: NameArgument, store: StoreOption = None, schema: SchemaOption = None, as_json: JsonOption = False
) -> None:
    """Let a paused schedule go on with its next slot."""
    change_schedule(
        app_of_store(store, schema), name, lambda schedules: schedules.resume(name), "resumed", as_json=as_json
    )
