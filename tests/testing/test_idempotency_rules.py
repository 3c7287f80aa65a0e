"""What counts as a step, what a crash lets happen, and what is compared. Only tests with `server` need a server."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from uuid import uuid4

import asyncpg
import httpx
import psycopg
import pytest

from holdfast import Holdfast, InvalidInput, RunningJob
from holdfast.testing import Tables, check_idempotency, in_memory
from holdfast.webhooks import Policy, Secrets, send, sign
from tests.databases import Database, connected
from tests.testing.outside import Job, check_outside, hurt, outside
from tests.webhooks.receiver import receiving


async def note(text: str) -> None:
    outside.notes.append(text)


check = partial(check_outside, also=(f"{__name__}.note",))


async def test_nothing_after_the_crash_takes_effect() -> None:
    async def handler(job: Job) -> None:
        if job.attempt > 1:
            await note("second attempt")
            return
        try:
            await note("first")
            await note("never")
        except BaseException:
            await note("handled")
            raise
        finally:
            async with outside.client() as client:
                await client.post("/finally")

    report = await check(handler)
    (after_the_first,) = [problem for problem in report.problems if problem.step and problem.step.number == 1]
    assert not any("handled" in each or "finally: sent once" in each for each in after_the_first.differences)
    assert "http://service/finally: sent never instead of once" in " ".join(after_the_first.differences)


async def test_a_handler_that_catches_everything_gets_no_further() -> None:
    async def handler(job: Job) -> None:
        for text in ("one", "two"):
            try:
                await note(text)
            except BaseException:  # noqa: BLE001 - that is the point
                outside.notes.append("caught")

    report = await check(handler)
    caught = [each for problem in report.problems for each in problem.differences if "caught" in each]
    assert caught, "the handler did catch it"
    assert hurt(report)[0] == 1
    assert "note: called 3 times instead of twice" in " ".join(report.problems[0].differences)


async def test_tasks_of_a_handler_die_with_it() -> None:
    async def handler(job: Job) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(note("side by side"))

    report = await check(handler)
    assert [step.number for step in report.steps] == [1, 2, 3]
    assert hurt(report) == [1, 2, 3, None]
    assert "called 4 times instead of 3 times" in report.problems[0].differences[0]


def test_threads_of_a_handler_belong_to_it() -> None:
    def send() -> None:
        httpx.Client(transport=httpx.MockTransport(outside.answer)).post("http://service/from/thread")

    def handler(job: Job) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(send).result()
        thread = threading.Thread(target=send)
        thread.start()
        thread.join()

    report = asyncio.run(check(handler))
    assert [step.text for step in report.steps] == ["POST http://service/from/thread"] * 2
    assert hurt(report) == [1, 2, None]


async def note_here(job: Job) -> None:
    await note("here")


async def test_a_handler_with_process_isolation_is_checked_in_this_process() -> None:
    assert hurt(await check(note_here, isolation="process")) == [1, None]


async def test_read_only_and_idempotent_requests_may_be_repeated() -> None:
    async def handler(job: Job) -> None:
        async with outside.client() as client:
            await client.get("/read")
            await client.put("/put")
            await client.delete("/delete")

    app = Holdfast("memory:")
    app.handler("checked")(handler)
    report = await check_idempotency(app, "checked")
    assert report.ok, report
    assert len(report.steps) == 3


async def test_a_key_that_changes_with_each_attempt_counts_as_no_key() -> None:
    async def handler(job: Job) -> None:
        async with outside.client() as client:
            await client.post("/pay", headers={"Idempotency-Key": str(uuid4())})

    assert hurt(await check(handler, ignore=("notes",))) == [1, None]


@pytest.mark.parametrize(("delivery_id", "problems"), [("17", []), (None, [1, None])])
async def test_a_webhook_may_be_repeated_with_its_delivery_id(delivery_id: str | None, problems: list[int]) -> None:
    async with receiving() as receiver:

        async def handler(job: Job) -> None:
            headers = sign(
                b"{}", Secrets("s" * 32), prefix="X-Shop", event_type="paid", delivery_id=delivery_id or str(uuid4())
            )
            await send(receiver.url, b"{}", headers, policy=Policy(allow_http=True, allow_private=True))

        report = await check(handler)
    assert [step.text for step in report.steps] == [f"POST {receiver.url}"]
    assert hurt(report) == problems


async def test_a_harmless_request_can_be_excluded() -> None:
    async def handler(job: Job) -> None:
        async with outside.client() as client:
            await client.post("/log")

    app = Holdfast("memory:")
    app.handler("checked")(handler)
    assert hurt(await check_idempotency(app, "checked")) == [1, None]
    assert (await check_idempotency(app, "checked", harmless=lambda request: request.url.endswith("/log"))).ok


async def test_values_that_differ_between_clean_runs_are_not_compared() -> None:
    state: list[dict[str, object]] = []

    async def handler(job: Job) -> None:
        if not state:
            await note("there")
            state.append({"id": str(uuid4()), "attempt": job.attempt, "name": "Ada"})

    app = Holdfast("memory:")
    app.handler("checked")(handler)
    report = await check_idempotency(app, "checked", observe=lambda: {"rows": list(state)}, setup=state.clear)
    assert report.ok, report
    assert report.ignored == ("rows.attempt", "rows.id")


async def test_a_second_run_that_fails_is_a_problem() -> None:
    done: list[bool] = []

    async def handler(job: Job) -> None:
        if done:
            raise FileExistsError("it is there already")
        async with outside.client() as client:
            await client.put("/file")
        done.append(True)
        await note("written")

    app = Holdfast("memory:")
    app.handler("checked", attempts=2)(handler)
    report = await check_idempotency(app, "checked", setup=done.clear, also=(f"{__name__}.note",))
    assert hurt(report) == [2, None]
    assert (
        "the job is dead instead of succeeded: FileExistsError: it is there already" in report.problems[0].differences
    )


async def test_a_second_run_that_succeeds_after_retries_is_no_problem() -> None:
    tries: list[int] = []

    async def handler(job: Job) -> None:
        tries.append(job.attempt)
        if len(tries) in (2, 3):
            raise ConnectionError("busy")
        async with outside.client() as client:
            await client.put("/file")

    app = Holdfast("memory:")
    app.handler("checked", attempts=5)(handler)
    report = await check_idempotency(app, "checked", setup=tries.clear)
    assert report.ok, report


async def test_a_handler_that_cannot_be_checked_is_reported() -> None:
    async def fails(job: Job) -> None:
        raise LookupError("no such customer")

    async def endless(job: Job) -> None:
        for _ in range(10):
            await note("again")

    with pytest.raises(
        InvalidInput, match=r"did not succeed without any crash.*LookupError: no such customer"
    ) as failure:
        await check(fails)
    assert isinstance(failure.value.__cause__, LookupError)
    with pytest.raises(InvalidInput, match="took 5 steps and has not ended"):
        await check(endless, most_steps=5)
    app = Holdfast("memory:")
    with pytest.raises(InvalidInput, match="no handler"):
        await check_idempotency(app, "checked")
    app.handler("checked")(fails)
    with pytest.raises(InvalidInput, match="names no function"):
        await check_idempotency(app, "checked", also=("tests.testing.nowhere.function",))
    async with in_memory(app):
        with pytest.raises(InvalidInput, match="already open"):
            await check_idempotency(app, "checked")


async def test_the_report_is_readable() -> None:
    async def handler(job: Job) -> None:
        await note("mail")

    report = await check(handler, ignore=("notes",))
    lines = str(report).splitlines()
    assert lines[0] == "checked is not idempotent: 2 of 3 crashes leave a trace"
    assert lines[1].startswith(
        f"a crash after step 1, call of {__name__}.note  (tests/testing/test_idempotency_rules.py:"
    )
    assert lines[2] == f"    {__name__}.note: called twice instead of once"
    assert lines[3] == "a crash after the handler returned, before its outcome was written, and a second run:"
    assert lines[-2] == "steps of a clean run:"
    assert repr(report) == str(report)


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_statements_of_every_driver_are_observed_and_rolled_back(database: Database) -> None:
    async with connected(database.url) as connection:
        await connection.execute("CREATE TABLE entry (way text)")
    pool = await asyncpg.create_pool(database.url, min_size=1, max_size=1)
    shared = await psycopg.AsyncConnection.connect(database.url, autocommit=True)

    async def by_asyncpg(job: Job) -> None:
        async with pool.acquire() as connection:
            await connection.executemany("INSERT INTO entry VALUES ($1)", [("a",), ("b",)])
            prepared = await connection.prepare("INSERT INTO entry VALUES ($1)")
            await prepared.fetch("c")
            await connection.copy_records_to_table("entry", records=[("d",)])
            await connection.execute("BEGIN")
            await connection.fetchrow("INSERT INTO entry VALUES ('e') RETURNING way")
            await connection.execute("COMMIT")

    async def by_psycopg(job: Job) -> None:
        await shared.execute("INSERT INTO entry VALUES ('a')")
        async with shared.transaction(), shared.cursor() as cursor:
            await cursor.executemany("INSERT INTO entry VALUES (%s)", [("b",), ("c",)])
            async with cursor.copy("COPY entry FROM STDIN") as copy:
                await copy.write("d\n")
            async for _ in cursor.stream("INSERT INTO entry VALUES ('e') RETURNING way"):
                pass

    def by_blocking_psycopg(job: Job) -> None:
        """Without a context manager, so that the crash leaves its transaction open."""
        connection = psycopg.connect(database.url)
        connection.execute("INSERT INTO entry VALUES ('a')")
        connection.commit()
        connection.close()

    app = Holdfast("memory:")
    for function in (by_asyncpg, by_psycopg, by_blocking_psycopg):
        app.handler(function.__name__)(function)
    try:
        report = await check_idempotency(app, "by_asyncpg", observe=Tables(database.url, "entry"))
        assert [step.text.split()[0] for step in report.steps] == ["INSERT", "INSERT", "COPY", "INSERT", "COMMIT"]
        assert hurt(report) == [1, 2, 3, 4, 5, None]
        assert "entry: 1 more of {way: 'c'}" not in report.problems[0].differences
        assert "entry: 1 more of {way: 'c'}" in report.problems[1].differences
        assert "entry: 1 more of {way: 'e'}" not in report.problems[3].differences, "it was rolled back"
        assert "entry: 1 more of {way: 'e'}" in report.problems[4].differences

        report = await check_idempotency(app, "by_psycopg", observe=Tables(database.url, "entry"))
        assert [step.text.split()[0] for step in report.steps] == ["INSERT", "INSERT", "COPY", "INSERT", "COMMIT"]
        assert "entry: 1 more of {way: 'd'}" not in report.problems[3].differences, "it was rolled back"
        assert "entry: 1 more of {way: 'd'}" in report.problems[4].differences

        report = await check_idempotency(app, "by_blocking_psycopg", observe=Tables(database.url, "entry"))
        assert [step.text.split()[0] for step in report.steps] == ["INSERT", "COMMIT"]
        assert hurt(report) == [2, None]
    finally:
        await pool.close()
        await shared.close()


async def test_an_event_that_is_published_twice_is_found() -> None:
    app = Holdfast()

    @app.on("paid", name="receipt.send")
    async def receipt(job: RunningJob[dict[str, object]]) -> None: ...

    @app.handler("pay.wrong")
    async def wrong(job: RunningJob[dict[str, object]]) -> None:
        await app.publish("paid", {"order": 17})

    @app.handler("pay.right")
    async def right(job: RunningJob[dict[str, object]]) -> None:
        await app.publish("paid", {"order": 17}, key="order-17")

    report = await check_idempotency(app, "pay.wrong")
    assert [problem.step and problem.step.number for problem in report.problems] == [1, None]
    assert report.steps[0].text == 'publish paid {"order":17}'
    assert (await check_idempotency(app, "pay.right")).ok
