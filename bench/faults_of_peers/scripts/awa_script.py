"""awa-pg on its queue storage. Its heartbeats and rescues run in Rust, independent of the handlers' event loop."""

import asyncio
import signal
from dataclasses import asdict, dataclass
from typing import Any

from awa import AsyncClient  # type: ignore[import-not-found]

from bench.faults_of_peers.scripts.commands import (
    LEASE_SECONDS,
    SLOTS,
    THREAD,
    Job,
    answer,
    handle,
    handle_in_thread,
    url,
)

_QUEUE = "faults"


@dataclass
class Work:
    job: str
    seconds: float
    how: str


@dataclass
class Thread:
    job: str
    seconds: float
    how: str


class AwaScript:
    async def install(self) -> None:
        await self.open()
        await self._client.migrate()
        await self._client.install_queue_storage(schema="awa")
        await self.close()

    async def open(self) -> None:
        self._client = AsyncClient(url())

    async def close(self) -> None:
        await self._client.close()

    async def enqueue(self, kind: str, jobs: list[Job]) -> list[Any]:
        made: list[Any] = [Thread(**job) if kind == THREAD else Work(**job) for job in jobs]
        return [each.id for each in await self._client.insert_many_copy(made, queue=_QUEUE)]

    async def work(self) -> None:
        client = AsyncClient(url())

        async def work(job: Any) -> None:  # noqa: ANN401
            await handle(asdict(job.args), job.id)

        async def thread(job: Any) -> None:  # noqa: ANN401
            # Its handlers are async; a handler itself moves blocking code to a thread.
            await asyncio.to_thread(handle_in_thread, asdict(job.args), job.id)

        client.task(Work, queue=_QUEUE)(work)
        client.task(Thread, queue=_QUEUE)(thread)
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        beat = int(LEASE_SECONDS * 1000)
        await client.start(
            [{"name": _QUEUE, "max_workers": SLOTS}],
            # A third of the staleness, as in its defaults of 30 s and 90 s.
            heartbeat_interval_ms=beat // 3,
            heartbeat_staleness_ms=beat,
            heartbeat_rescue_interval_ms=1000,
            leader_election_interval_ms=1000,
            # Rotation empties segments, but the reader needs their contents until the end.
            queue_storage_queue_rotate_interval_ms=600_000,
        )
        await stopping.wait()
        await client.shutdown(timeout_ms=5000)


if __name__ == "__main__":
    answer(AwaScript())
