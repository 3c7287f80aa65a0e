"""`holdfast schedules remove`: no more of it."""

from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import JsonOption, SchemaOption, StoreOption
from holdfast.cli.schedules.showing import NameArgument, change_schedule


def remove(
    name: NameArgument, store: StoreOption = None, schema: SchemaOption = None, as_json: JsonOption = False
) -> None:
    """Remove a schedule. Jobs that it made stay.

    One that an app's code declares comes back with the next process of that app.
    """
    change_schedule(
        app_of_store(store, schema), name, lambda schedules: schedules.remove(name), "removed", as_json=as_json
    )
