"""A shop on FastAPI and SQLAlchemy. Its jobs are in the database of its orders.

pip install holdfast fastapi uvicorn "sqlalchemy[asyncio]"
export DATABASE_URL=postgresql://user@host/shop
holdfast migrate --app shop:app
python shop.py                    # creates the table of the shop
uvicorn shop:api
holdfast worker --app shop:app    # or start uvicorn with WORKER=inside
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from holdfast import Holdfast, JobFailed, Kind, Permanent, RunningJob
from holdfast.fastapi import Jobs, exception_handlers, lifespan

DATABASE_URL = os.environ["DATABASE_URL"]
ENGINE_URL = make_url(DATABASE_URL).set(drivername="postgresql+asyncpg")
STOCK = 100

Sessions = async_sessionmaker[AsyncSession]


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    quantity: Mapped[int]
    is_confirmed: Mapped[bool] = mapped_column(default=False)


# The jobs


@dataclass
class OrderId:
    order: int


@dataclass
class Receipt:
    text: str


CONFIRM = Kind("order.confirm", OrderId)
RECEIPT = Kind("order.receipt", OrderId, returns=Receipt)


@asynccontextmanager
async def open_sessions(_: object) -> AsyncIterator[Sessions]:
    """One engine for each process. `pool_pre_ping` replaces connections that were cut while they were idle."""
    engine = create_async_engine(ENGINE_URL, pool_pre_ping=True)
    try:
        yield async_sessionmaker(engine, expire_on_commit=False)
    finally:
        await engine.dispose()


app = Holdfast(DATABASE_URL, lifespan=open_sessions)


@app.handler(CONFIRM)
async def confirm(job: RunningJob[OrderId, Sessions]) -> None:
    async with job.state.begin() as session:
        order = await session.get_one(Order, job.payload.order)
        order.is_confirmed = True
        await job.finish_in(session)


@app.handler(RECEIPT)
async def receipt(job: RunningJob[OrderId, Sessions]) -> Receipt:
    async with job.state() as session:
        order = await session.get(Order, job.payload.order)
    if order is None:
        raise Permanent("NO_SUCH_ORDER")
    return Receipt(f"{order.quantity} pieces for {order.customer}")


@app.handler("newsletter.send")
def send_newsletter(job: RunningJob[dict[str, str]]) -> str:
    return f"Dear {job.payload['to']}"


# The API


@asynccontextmanager
async def open_api(api: FastAPI) -> AsyncIterator[None]:
    async with open_sessions(api) as api.state.sessions:
        yield


api = FastAPI(
    lifespan=lifespan(app, open_api, worker=os.environ.get("WORKER") == "inside"),
    exception_handlers=exception_handlers,
)


async def get_session(request: Request) -> AsyncIterator[AsyncSession]:
    async with request.app.state.sessions.begin() as session:
        yield session


# With any other scope, FastAPI commits after it has sent the answer.
Session = Annotated[AsyncSession, Depends(get_session, scope="function")]


class NewOrder(BaseModel):
    customer: str
    quantity: int


@api.post("/orders", status_code=201)
async def place_order(new: NewOrder, session: Session, app: Jobs) -> dict[str, int]:
    order = Order(customer=new.customer, quantity=new.quantity)
    session.add(order)
    await session.flush()
    await app.enqueue(CONFIRM, OrderId(order.id), conn=session)
    if order.quantity > STOCK:
        raise HTTPException(409, "out of stock")
    return {"id": order.id}


@api.get("/orders/{id}")
async def show_order(id: int, session: Session) -> dict[str, object]:
    order = await session.get(Order, id)
    if order is None:
        raise HTTPException(404)
    return {"id": order.id, "customer": order.customer, "is_confirmed": order.is_confirmed}


@api.post("/orders/{id}/receipt", response_model=Receipt)
async def make_receipt(id: int, app: Jobs, wait: Annotated[float, Query(ge=0, le=15)] = 10) -> Receipt | JSONResponse:
    enqueued = await app.enqueue(RECEIPT, OrderId(id), key=f"receipt-{id}", if_exists="keep_live")
    try:
        return await enqueued.result(timeout=f"{wait}s")
    except TimeoutError:
        return JSONResponse({"status": f"/jobs/{enqueued.id}"}, status_code=202)
    except JobFailed as error:
        raise HTTPException(422, error.code) from error


@api.post("/newsletters", status_code=202)
def order_newsletter(to: str, app: Jobs) -> dict[str, str]:
    """FastAPI runs a `def` endpoint in a thread, so it uses `app.sync`."""
    enqueued = app.sync.enqueue("newsletter.send", {"to": to})
    return {"status": f"/jobs/{enqueued.id}"}


@api.get("/jobs/{id}")
async def show_job(id: UUID, app: Jobs) -> dict[str, object]:
    job = await app.jobs.get(id)
    if job is None:
        raise HTTPException(404)
    return {"state": job.state, "result": job.result}


async def create_tables() -> None:
    engine = create_async_engine(ENGINE_URL)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(create_tables())
