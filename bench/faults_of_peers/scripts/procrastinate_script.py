"""Procrastinate with the periodic task from its page on stalled jobs."""

from typing import Any

from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found]

from bench.faults_of_peers.scripts.commands import (
    LEASE_SECONDS,
    SLOTS,
    THREAD,
    WORK,
    Job,
    answer,
    handle,
    handle_in_thread,
    url,
)

_EVERY_TWO_SECONDS = "* * * * * */2"
"""Its cron has a sixth field for seconds. On that page, the task runs every ten minutes."""


class ProcrastinateScript:
    async def install(self) -> None:
        await self.open()
        await self._app.schema_manager.apply_schema_async()
        await self.close()

    async def open(self) -> None:
        self._app, self._tasks = _application(max_size=2)
        await self._app.open_async()

    async def close(self) -> None:
        await self._app.close_async()

    async def enqueue(self, kind: str, jobs: list[Job]) -> list[Any]:
        found: list[Any] = await self._tasks[kind].batch_defer_async(*jobs)
        return found

    async def work(self) -> None:
        # One connection per job, plus those for the worker's other tasks.
        app, _ = _application(max_size=SLOTS + 4)
        async with app.open_async():
            await app.run_worker_async(
                concurrency=SLOTS,
                fetch_job_polling_interval=1.0,
                # A third of the timeout, as in its defaults of 10 s and 30 s.
                update_heartbeat_interval=LEASE_SECONDS / 3,
                stalled_worker_timeout=LEASE_SECONDS,
            )


def _application(max_size: int) -> tuple[Any, dict[str, Any]]:
    app = App(connector=PsycopgConnector(conninfo=url(), min_size=1, max_size=max_size))

    async def work(context: Any, **job: Any) -> None:  # noqa: ANN401
        await handle(job, context.job.id)

    def thread(context: Any, **job: Any) -> None:  # noqa: ANN401
        handle_in_thread(job, context.job.id)

    async def retry_stalled_jobs(context: Any, timestamp: int) -> None:  # noqa: ANN401
        del context, timestamp
        for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=LEASE_SECONDS):
            await app.job_manager.retry_job(job)

    tasks = {
        WORK: app.task(name=WORK, pass_context=True)(work),
        THREAD: app.task(name=THREAD, pass_context=True)(thread),
    }
    retry = app.task(name="retry_stalled_jobs", queueing_lock="retry_stalled_jobs", pass_context=True)(
        retry_stalled_jobs
    )
    app.periodic(cron=_EVERY_TWO_SECONDS)(retry)
    return app, tasks


if __name__ == "__main__":
    answer(ProcrastinateScript())
