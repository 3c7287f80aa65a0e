"""Handlers that behave, and handlers that leave a mess."""

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from holdfast import DeadJob, RunningJob
from holdfast.django import app
from stock.models import Item


@app.handler("add")
def add(job: RunningJob[str]) -> int:
    return int(Item.objects.create(name=job.payload).pk)


@app.handler("add.async")
async def add_async(job: RunningJob[str]) -> int:
    return (await Item.objects.acreate(name=job.payload)).pk


@app.handler("add.process", isolation="process")
def add_in_process(job: RunningJob[str]) -> int:
    return int(Item.objects.create(name=job.payload).pk)


@app.handler("add.process.async", isolation="process")
async def add_in_process_async(job: RunningJob[str]) -> int:
    return (await Item.objects.acreate(name=job.payload)).pk


@app.handler("add.finish")
def add_and_finish(job: RunningJob[str]) -> None:
    with transaction.atomic():
        Item.objects.create(name=job.payload)
        app.sync.enqueue("add", f"after {job.payload}")
        job.finish_in(connection)


@app.handler("add.later")
def add_later(job: RunningJob[str]) -> None:
    with transaction.atomic():
        transaction.on_commit(lambda: app.sync.enqueue("add", job.payload))


@app.handler("fail", attempts=2)
def fail(job: RunningJob[str]) -> None:
    Item.objects.create(name=job.payload)
    raise LookupError("no such supplier")


@app.on_dead("fail")
def mourn(job: RunningJob[DeadJob]) -> None:
    Item.objects.create(name=f"mourned {job.payload.payload}")


@app.on("item.sold")
def restock(job: RunningJob[str]) -> None:
    Item.objects.create(name=f"restocked {job.payload}")


@app.schedule("every 1h", name="count")
def count(job: RunningJob[None]) -> int:
    return int(Item.objects.count())


@app.handler("break", attempts=1)
def break_transaction(job: RunningJob[None]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


def leave(how: str, name: str) -> None:
    if how == "atomic":
        transaction.atomic().__enter__()
    elif how == "begin":
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
    else:
        transaction.set_autocommit(False)
    if name:
        Item.objects.create(name=name)
    else:
        Item.objects.count()


@app.handler("leave", attempts=1)
def leave_open(job: RunningJob[list[str]]) -> None:
    how, name, ending = job.payload
    leave(how, name)
    if ending == "error":
        raise LookupError("left in the middle")


@app.handler("leave.async", attempts=1)
async def leave_open_async(job: RunningJob[list[str]]) -> None:
    how, name, ending = job.payload
    await sync_to_async(leave)(how, name)
    if ending == "error":
        raise LookupError("left in the middle")


@app.handler("leave.process", attempts=1, isolation="process")
def leave_open_in_process(job: RunningJob[list[str]]) -> None:
    leave_open(job)


def state() -> list[object]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return [cursor.fetchone()[0], connection.in_atomic_block, connection.get_autocommit()]


@app.handler("state")
def show_state(job: RunningJob[None]) -> list[object]:
    return state()


@app.handler("state.async")
async def show_state_async(job: RunningJob[None]) -> list[object]:
    return await sync_to_async(state)()


@app.handler("state.process", isolation="process")
def show_state_in_process(job: RunningJob[None]) -> list[object]:
    return state()


@app.handler("cut", attempts=1)
def cut(job: RunningJob[None]) -> None:
    """The server ends the connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
