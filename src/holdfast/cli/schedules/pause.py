"""`holdfast schedules pause`: no slots for a while."""

from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import JsonOption, SchemaOption, StoreOption
from holdfast.cli.schedules.showing import NameArgument, change_schedule


def pause(
    name: NameArgument, store: StoreOption = None, schema: SchemaOption = None, as_json: JsonOption = False
) -> None:
    """Pause a schedule. Slots that pass meanwhile are not made up for."""
    change_schedule(
        app_of_store(store, schema), name, lambda schedules: schedules.pause(name), "paused", as_json=as_json
    )
