"""Procrastinate on psycopg."""

from collections.abc import Callable, Mapping
from typing import Any

from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found]

from bench.peers.adapters.commands import answer, run, url


class ProcrastinateAdapter:
    async def install(self, *, tuned: bool) -> None:
        del tuned  # Procrastinate has no such settings
        await self.open()
        await self._app.schema_manager.apply_schema_async()
        await self.close()

    async def open(self) -> None:
        self._build(lambda _number: None)
        await self._app.open_async()

    async def close(self) -> None:
        await self._app.close_async()

    async def enqueue(self, number: int) -> object:
        return await self._task.defer_async(number=number)

    async def enqueue_many(self, numbers: range) -> object:
        return await self._task.batch_defer_async(*({"number": number} for number in numbers))

    def work(self, settings: Mapping[str, Any], started: Callable[[int], None]) -> None:
        pool = {"max_size": settings["pool"]} if "pool" in settings else {}
        options = {name: value for name, value in settings.items() if name not in ("pool", "uvloop")}
        self._build(started, **pool)

        async def main() -> None:
            async with self._app.open_async():
                await self._app.run_worker_async(**options)

        run(main(), settings)

    def _build(self, started: Callable[[int], None], **pool: int) -> None:
        self._app = App(connector=PsycopgConnector(conninfo=url(), **pool))

        async def nothing(number: int) -> None:
            started(number)

        self._task = self._app.task(name="nothing")(nothing)


if __name__ == "__main__":
    answer(ProcrastinateAdapter())
