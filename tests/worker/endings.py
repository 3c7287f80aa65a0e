"""Handlers that end their job in their own transaction, with an outcome other than success."""

import asyncpg

from holdfast import Cancel, Holdfast, Permanent, Retryable, RunningJob, Snooze

OUTCOMES = {"fail": Permanent("NO_STOCK", "sold out"), "cancel": Cancel("not wanted"), "snooze": Snooze("1h")}
Job = RunningJob[dict[str, str]]


async def end(job: Job) -> None:
    """Write a note to a table and end the job in one transaction, or roll both back."""
    connection = await asyncpg.connect(job.payload["url"])
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("INSERT INTO effect (note) VALUES ($1)", job.kind)
        outcome = OUTCOMES.get(job.payload["how"], Retryable("again"))
        await job.finish_in(connection, outcome)
        await (transaction.rollback() if job.payload.get("then") == "roll back" else transaction.commit())
    finally:
        await connection.close()


def register(app: Holdfast) -> None:
    app.handler("async", attempts=2, backoff="steps 1h")(end)
    app.handler("process", attempts=2, backoff="steps 1h", isolation="process")(end)
