"""One layout in a database of its own: its connections, what is in it before, and the store's own verbs on it."""

from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid4

import asyncpg

from bench.layout.again.layouts import SCHEMA, SQL, Layout
from holdfast.domain.job import DEFAULT_QUEUE, LeasedJob, NewJob
from holdfast.domain.json_text import Json
from holdfast.domain.lifecycle import PLAIN_SUCCESS
from holdfast.store.contract import ClaimRequest, Fenced, Finish, KindClaim
from holdfast.store.postgres.bulk import Bulk
from holdfast.store.postgres.copying import copy_jobs
from holdfast.store.postgres.lanes import Ask, Lanes
from holdfast.store.postgres.store import PostgresStore

PAYLOAD = Json(
    '{"to": "someone@example.com", "note": "aaaaaaaaaaaaaaaaaaaaaa", "amount": "199.90", "invoice_id": 12345}'
)
LEASE = timedelta(seconds=60)
INSERT_BATCH = 1000
HISTORY = {"deferred": 100_000, "dead": 20_000, "finished": 200_000}


def processor_microseconds(connection: asyncpg.Connection) -> float:
    """What the server's process of this connection has used; the server must be on this machine."""
    return int(Path(f"/proc/{connection.get_server_pid()}/schedstat").read_text().split()[0]) / 1000


class Observer(Protocol):
    """Runs a statement in a way of its own, and answers as the statement would."""

    def __call__(
        self, connection: asyncpg.Connection, verb: str, query: str, *arguments: object
    ) -> Awaitable[list[asyncpg.Record]]: ...


class _NoFloors(Lanes):
    def first_ask(self, request: ClaimRequest, now: float) -> Ask:  # noqa: ARG002
        return self.all_lanes(request)


class LayoutStore(PostgresStore):
    """The store as it ships, but with a layout's statements and without a pool: each of them has its connection.

    So whatever the store does before and after a statement is measured too, and cannot be forgotten here.
    """

    def __init__(self, url: str, layout: Layout, claiming: asyncpg.Connection, finishing: asyncpg.Connection) -> None:
        super().__init__(url, SCHEMA)
        if not layout.has_floors:
            self._lanes = _NoFloors()
        self._layout = layout
        self._connections = {"claim": claiming, "claim_usual": claiming, "next_due": claiming}
        self._finishing = finishing
        self._observer: Observer | None = None

    async def fetch(self, verb: str, *arguments: object) -> list[asyncpg.Record]:
        connection = self._connections.get(verb, self._finishing)
        query = self._layout.statement(verb, len(arguments))
        if self._observer is not None:
            return await self._observer(connection, verb, query, *arguments)
        return list(await connection.fetch(query, *arguments))

    @contextmanager
    def observed_by(self, observer: Observer) -> Iterator[None]:
        self._observer = observer
        try:
            yield
        finally:
            self._observer = None


@dataclass(slots=True)
class Place:
    """The connections to one layout's database, and one worker's store on it."""

    layout: Layout
    url: str
    claiming: asyncpg.Connection
    finishing: asyncpg.Connection
    kinds: Sequence[str]
    store: LayoutStore
    holder: UUID = field(default_factory=uuid4)

    @classmethod
    async def connected(cls, layout: Layout, url: str, kinds: Sequence[str], stack: AsyncExitStack) -> "Place":
        """Its connections are closed with the stack."""
        claiming, finishing = [await asyncpg.connect(url, server_settings=dict(layout.settings)) for _ in range(2)]
        stack.push_async_callback(claiming.close)
        stack.push_async_callback(finishing.close)
        return cls(layout, url, claiming, finishing, kinds, LayoutStore(url, layout, claiming, finishing))

    @asynccontextmanager
    async def another(self) -> AsyncIterator["Place"]:
        """Another worker on the same database."""
        async with AsyncExitStack() as stack:
            yield await Place.connected(self.layout, self.url, self.kinds, stack)

    async def enqueue(self, amount: int) -> None:
        """As PostgresStore does it, which takes the connection for a COPY from its pool."""
        for start in range(0, amount, INSERT_BATCH):
            numbers = range(start, min(start + INSERT_BATCH, amount))
            jobs = [NewJob(kind=self.kinds[number % len(self.kinds)], payload=PAYLOAD) for number in numbers]
            bulk = Bulk(jobs)
            if self.layout.has_copy and bulk.is_worth_a_copy(timedelta(0)):
                await copy_jobs(self.finishing, SCHEMA, jobs)
            else:
                await self.store.fetch(bulk.verb, *bulk.parameters)

    async def claim(self, amount: int) -> list[LeasedJob]:
        kinds = {kind: KindClaim(LEASE, amount) for kind in self.kinds}
        return await self.store.claim(ClaimRequest(self.holder, amount, (DEFAULT_QUEUE,), kinds))

    async def finish(self, jobs: Sequence[LeasedJob]) -> int:
        answers = await self.store.finish([Finish(job.lease, PLAIN_SUCCESS) for job in jobs])
        lost = len(jobs) - answers.count(Fenced.DONE)
        if lost:
            raise RuntimeError(f"{self.layout.name}: {lost} leases were lost")
        return len(jobs)


@asynccontextmanager
async def places(
    url: str, database: str, layouts: Sequence[Layout], kinds: int, *, history: bool
) -> AsyncIterator[list[Place]]:
    """A database for each layout, dropped at the end; `url` is the server with some database."""
    administrator = await asyncpg.connect(url)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(administrator.close)
        opened = []
        for layout in layouts:
            name = f"{database}_{layout.name}"
            await administrator.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            await administrator.execute(f'CREATE DATABASE "{name}"')
            stack.push_async_callback(administrator.execute, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            there = urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
            place = await Place.connected(layout, there, [f"kind_{number}" for number in range(kinds)], stack)
            await layout.install(place.claiming)
            if history:
                text = (SQL / "shipped_history.sql").read_text()
                for name, value in {**HISTORY, "payload": f"'{PAYLOAD}'"}.items():
                    text = text.replace(f"{{{name}}}", str(value))
                await place.claiming.execute(text)
                await place.claiming.execute("VACUUM ANALYZE")
            opened.append(place)
        yield opened
