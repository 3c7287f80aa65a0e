"""Handlers with three kinds of mistakes, each with a correct twin, and the shop's database and payment service.

Each pair differs only in the lines that matter.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen

import asyncpg
import httpx
import psycopg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from holdfast import Holdfast, RunningJob

SCHEMA = """
CREATE TABLE customer (id integer PRIMARY KEY, letters integer NOT NULL DEFAULT 0, balance integer NOT NULL DEFAULT 0);
CREATE TABLE letter (id serial PRIMARY KEY, customer integer NOT NULL REFERENCES customer, job uuid UNIQUE,
                     written_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE payment (job uuid PRIMARY KEY, amount integer NOT NULL);
INSERT INTO customer (id) VALUES (7), (8);
"""
Payload = dict[str, int]


def letters(app: Holdfast, url: str) -> None:
    """Wrong: two statements without a transaction, and no protection against repeating the first one."""

    @app.handler("letter.wrong")
    async def wrong(job: RunningJob[Payload]) -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute("INSERT INTO letter (customer) VALUES ($1)", job.payload["customer"])
            await connection.execute("UPDATE customer SET letters = 1 WHERE id = $1", job.payload["customer"])
        finally:
            await connection.close()

    @app.handler("letter.unique")
    async def unique(job: RunningJob[Payload]) -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(
                "INSERT INTO letter (customer, job) VALUES ($1, $2) ON CONFLICT (job) DO NOTHING",
                job.payload["customer"],
                job.id,
            )
            await connection.execute("UPDATE customer SET letters = 1 WHERE id = $1", job.payload["customer"])
        finally:
            await connection.close()

    @app.handler("letter.transaction")
    async def transaction(job: RunningJob[Payload]) -> None:
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                await connection.execute("INSERT INTO letter (customer) VALUES ($1)", job.payload["customer"])
                await connection.execute(
                    "UPDATE customer SET letters = letters + 1 WHERE id = $1", job.payload["customer"]
                )
                await job.finish_in(connection)
        finally:
            await connection.close()


def payments(app: Holdfast, url: str, service: str) -> None:
    """Wrong: the payment is made before it is recorded, and the service cannot recognize a repeated payment."""

    def record(job: RunningJob[Payload]) -> None:
        with psycopg.connect(url) as connection:
            connection.execute(
                "INSERT INTO payment VALUES (%s, %s) ON CONFLICT DO NOTHING", (job.id, job.payload["amount"])
            )

    def is_recorded(job: RunningJob[Payload]) -> bool:
        with psycopg.connect(url) as connection:
            return connection.execute("SELECT FROM payment WHERE job = %s", (job.id,)).rowcount == 1

    @app.handler("payment.wrong")
    def wrong(job: RunningJob[Payload]) -> None:
        if not is_recorded(job):
            httpx.post(service, json=job.payload)
            record(job)

    @app.handler("payment.right")
    def right(job: RunningJob[Payload]) -> None:
        if not is_recorded(job):
            httpx.post(service, json=job.payload, headers={"Idempotency-Key": str(job.id)})
            record(job)

    @app.handler("payment.lost")
    def lost(job: RunningJob[Payload]) -> None:
        """Wrong in the other direction: recorded first, so a crash in between loses the payment."""
        if not is_recorded(job):
            record(job)
            urlopen(Request(service, json.dumps(job.payload).encode(), {"Idempotency-Key": str(job.id)})).read()  # noqa: S310


def balances(app: Holdfast, url: str) -> None:
    """Wrong: a committed amount is added again, and the follow-up job is enqueued again."""
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"), poolclass=NullPool)
    add = text("UPDATE customer SET balance = balance + :amount WHERE id = 7")

    @app.handler("balance.wrong")
    async def wrong(job: RunningJob[Payload]) -> None:
        async with AsyncSession(engine) as session:
            await session.execute(add, {"amount": job.payload["amount"]})
            await session.commit()
        await app.enqueue("receipt.send", job.payload)

    @app.handler("balance.right")
    async def right(job: RunningJob[Payload]) -> None:
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(add, {"amount": job.payload["amount"]})
            await app.enqueue("receipt.send", job.payload, conn=session)
            await job.finish_in(session)

    @app.handler("receipt.wrong")
    async def receipt_wrong(job: RunningJob[Payload]) -> None:
        await app.enqueue("receipt.send", job.payload)

    @app.handler("receipt.right")
    async def receipt_right(job: RunningJob[Payload]) -> None:
        await app.enqueue("receipt.send", job.payload, key=str(job.id))


class PaymentService:
    """A real HTTP server. It charges once per key, and for every request that has no key."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.charges: list[str | None] = []


@contextmanager
def payment_service() -> Iterator[PaymentService]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            key = self.headers["Idempotency-Key"]
            if key is None or key not in service.charges:
                service.charges.append(key)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Tests do not need an access log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service = PaymentService(f"http://127.0.0.1:{server.server_port}/charges")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()
