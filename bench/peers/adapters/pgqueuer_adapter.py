"""PgQueuer on asyncpg."""

from collections.abc import Callable, Mapping
from typing import Any

import asyncpg
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]

from bench.peers.adapters.commands import answer, run, url


class PgQueuerAdapter:
    async def install(self, *, tuned: bool) -> None:
        await self.open()
        await self._queries.install()
        if tuned:
            await self._queries.optimize_autovacuum()
        await self.close()

    async def open(self) -> None:
        self._connection = await asyncpg.connect(url())
        self._queries = Queries(AsyncpgDriver(self._connection))

    async def close(self) -> None:
        await self._connection.close()

    async def enqueue(self, number: int) -> object:
        return await self._queries.enqueue("nothing", b"%d" % number, 0)

    async def enqueue_many(self, numbers: range) -> object:
        payloads: list[bytes | None] = [b"%d" % number for number in numbers]
        return await self._queries.enqueue(["nothing"] * len(numbers), payloads, [0] * len(numbers))

    def work(self, settings: Mapping[str, Any], started: Callable[[int], None]) -> None:
        options = {name: value for name, value in settings.items() if name != "uvloop"}

        async def main() -> None:
            queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(url())))

            async def nothing(job: Any) -> None:  # noqa: ANN401
                started(int(job.payload))

            queuer.entrypoint("nothing")(nothing)
            await queuer.run(**options)

        run(main(), settings)


if __name__ == "__main__":
    answer(PgQueuerAdapter())
