"""awa-pg, a Rust engine with Python handlers, on its queue storage."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from awa import AsyncClient  # type: ignore[import-not-found]

from bench.peers.adapters.commands import answer, run, url

_QUEUE = "bench"


@dataclass
class Nothing:
    number: int


class AwaAdapter:
    async def install(self, *, tuned: bool) -> None:
        del tuned  # awa-pg has no such settings
        await self.open()
        await self._client.migrate()
        await self._client.install_queue_storage(schema="awa")
        await self.close()

    async def open(self) -> None:
        self._client = AsyncClient(url())

    async def close(self) -> None:
        await self._client.close()

    async def enqueue(self, number: int) -> object:
        return await self._client.insert(Nothing(number), queue=_QUEUE)

    async def enqueue_many(self, numbers: range) -> object:
        return await self._client.enqueue_many_copy([Nothing(number) for number in numbers], queue=_QUEUE)

    def work(self, settings: Mapping[str, Any], started: Callable[[int], None]) -> None:
        queue = {name: value for name, value in settings.items() if name not in ("uvloop", "max_connections")}
        pool = {name: value for name, value in settings.items() if name == "max_connections"}

        async def main() -> None:
            client = AsyncClient(url(), **pool)

            async def nothing(job: Any) -> None:  # noqa: ANN401
                started(job.args.number)

            client.task(Nothing, queue=_QUEUE)(nothing)
            await client.start([{"name": _QUEUE, **queue}])
            await asyncio.Event().wait()

        run(main(), settings)


if __name__ == "__main__":
    answer(AwaAdapter())
