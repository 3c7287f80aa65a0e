"""`holdfast schedules run`: one run beside the slots."""

from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import JsonOption, SchemaOption, StoreOption
from holdfast.cli.schedules.showing import NameArgument, change_schedule


def run(
    name: NameArgument, store: StoreOption = None, schema: SchemaOption = None, as_json: JsonOption = False
) -> None:
    """Run a schedule once, now, whatever its timetable says.

    The run is one of its own, beside the slots, also while the schedule is paused. A process of the app does it as soon
    as it looks, within a second or so. Requests that are made before a process looks are answered by one run.
    """
    change_schedule(
        app_of_store(store, schema),
        name,
        lambda schedules: schedules.run_now(name),
        "will run once as soon as a process looks, however often it is asked until then",
        as_json=as_json,
    )
