"""`python -m bench.invoicing`: many clients wait for PDFs. Measures how soon their waits end and the PDFs arrive.

The API and its worker run as separate processes on an embedded PostgreSQL that is removed afterwards.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import httpx

from bench.markdown import table
from bench.runtime.workers import say, spread

_PATIENCE_SECONDS = 120
_LOOK_SECONDS = 0.005
_WAITING = "invoicing_pdf_waits "
_LINE = {"description": "Consulting", "quantity": "2", "unitPrice": "90.00", "taxRate": "19"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.invoicing", description=__doc__)
    parser.add_argument("--clients", type=int, default=200, help="clients that wait at once (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="times that all come and leave (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args()


@contextmanager
def service(*mode: str, **variables: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "apps.invoicing", *mode],
        env={**os.environ, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


@asynccontextmanager
async def api(folder: str) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, str]]]:
    """A client of a running API, and the settings that its worker needs."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    variables = {
        "DATABASE_URL": f"embedded:{folder}/postgresql",
        "FILES_URL": f"file:{folder}/files",
        "DOWNLOAD_LINK_SECRET": "of this measurement",
        "API_PORT": str(port),
        "WORKER_TICK_RUNNERS": "outbox",
    }
    with service("api", **variables):
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=_PATIENCE_SECONDS, limits=limits
        ) as client:
            await until(lambda: answers(client))
            yield client, variables


async def answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/healthz")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


async def until(is_so: Any) -> float:  # noqa: ANN401
    """Wait for the condition. Returns how many seconds that took."""
    started = time.perf_counter()
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while not await is_so():  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(_LOOK_SECONDS)
    return time.perf_counter() - started


async def waiting(client: httpx.AsyncClient) -> int:
    lines = (await client.get("/metrics")).text.splitlines()
    (value,) = (line.removeprefix(_WAITING) for line in lines if line.startswith(_WAITING))
    return int(float(value))


async def issued(client: httpx.AsyncClient, number: int) -> list[str]:
    customer = (await client.post("/customers", json={"name": "Ann Ltd", "email": "ann@example.com"})).json()["id"]
    body = {"customerId": customer, "currency": "EUR", "lines": [_LINE]}
    invoices = []
    for _ in range(number):
        invoice = (await client.post("/invoices", json=body)).json()["id"]
        (await client.post(f"/invoices/{invoice}/issue", json={"sendEmail": False})).raise_for_status()
        invoices.append(invoice)
    return invoices


async def leave(client: httpx.AsyncClient, invoices: list[str]) -> float:
    """Let all clients come, wait and leave at once. Returns the seconds until the API counts no waits."""

    async def has(number: int) -> bool:
        return await waiting(client) == number

    asking = [asyncio.create_task(client.get(f"/invoices/{each}/pdf?waitMs=30000")) for each in invoices]
    await until(lambda: has(len(invoices)))
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    return await until(lambda: has(0))


async def stay(client: httpx.AsyncClient, invoices: list[str], variables: dict[str, str]) -> dict[str, Any]:
    """Let all clients wait, ask again on 202, and get their PDFs from a worker that starts only now."""
    answered: list[float] = []
    told: list[int] = []

    async def ask(invoice: str) -> None:
        while (response := await client.get(f"/invoices/{invoice}/pdf?waitMs=30000")).status_code == 202:
            told.append(response.status_code)
        response.raise_for_status()
        answered.append(time.perf_counter())

    with service(**variables):
        await asyncio.gather(*map(ask, invoices))
    # Counted from the first answer on, because before that the worker was still starting.
    rate = (len(invoices) - 1) / (max(answered) - min(answered))
    return {"PDFs per second": round(rate, 1), "answered with 202 meanwhile": len(told)}


async def main() -> None:
    chosen = arguments()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ending:
        ending.callback(say, "done")
        say("starting PostgreSQL and the API")
        async with api(folder) as (client, variables):
            say(f"issuing {chosen.clients} invoices")
            invoices = await issued(client, chosen.clients)
            freed = []
            for number in range(chosen.rounds):
                freed.append(await leave(client, invoices))
                say(f"round {number + 1} of {chosen.rounds}: freed after {freed[-1] * 1000:.0f} ms")
            say("starting a worker")
            stayed = await stay(client, invoices, variables)
    figures = {"clients": chosen.clients, "cores": os.cpu_count(), "freed": spread(freed), **stayed}
    if chosen.json:
        print(json.dumps(figures, indent=1))
        return
    shown = [f"{figures['freed'][key]:,}" for key in ("count", "p50", "max")]
    title = f"{chosen.clients} clients leave at once: all their waits are over after"
    print(table(title, ["rounds", "p50 ms", "max"], [shown]))
    print("\n" + "\n".join(f"{name}: {value}" for name, value in stayed.items()))


if __name__ == "__main__":
    asyncio.run(main())
