"""A shop on Flask and SQLAlchemy. Its jobs are in the database of its orders.

pip install "holdfast[psycopg]" flask gunicorn sqlalchemy
export DATABASE_URL=postgresql://user@host/shop
holdfast migrate --app shop:app
flask --app shop:web create-tables
gunicorn --preload --threads 8 shop:web
holdfast worker --app shop:app
"""

import os
from dataclasses import asdict, dataclass
from uuid import UUID

from flask import Flask, abort, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from holdfast import Holdfast, JobFailed, Kind, Permanent, RunningJob, StoreUnavailable

DATABASE_URL = os.environ["DATABASE_URL"]
STOCK = 100

# `pool_pre_ping` replaces connections that were cut while they were idle.
engine = create_engine(make_url(DATABASE_URL).set(drivername="postgresql+psycopg"), pool_pre_ping=True)
# `gunicorn --preload` forks after it has imported this module: the children leave the connections to their parent.
os.register_at_fork(after_in_child=lambda: engine.dispose(close=False))
Session = sessionmaker(engine)


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

app = Holdfast(DATABASE_URL)


@app.handler(CONFIRM)
def confirm(job: RunningJob[OrderId]) -> None:
    with Session.begin() as session:
        session.get_one(Order, job.payload.order).is_confirmed = True
        job.finish_in(session)


@app.handler(RECEIPT)
def receipt(job: RunningJob[OrderId]) -> Receipt:
    with Session() as session:
        order = session.get(Order, job.payload.order)
    if order is None:
        raise Permanent("NO_SUCH_ORDER")
    return Receipt(f"{order.quantity} pieces for {order.customer}")


@app.handler("newsletter.send")
def send_newsletter(job: RunningJob[dict[str, str]]) -> str:
    return f"Dear {job.payload['to']}"


# The views

web = Flask(__name__)


@web.post("/orders")
def place_order() -> ResponseReturnValue:
    new = request.get_json()
    with Session.begin() as session:
        order = Order(customer=new["customer"], quantity=new["quantity"])
        session.add(order)
        session.flush()
        app.sync.enqueue(CONFIRM, OrderId(order.id), conn=session)
        if order.quantity > STOCK:
            abort(409)
        answer = {"id": order.id}
    return answer, 201


@web.get("/orders/<int:id>")
def show_order(id: int) -> ResponseReturnValue:
    with Session() as session:
        order = session.get(Order, id)
        if order is None:
            abort(404)
        return {"id": order.id, "customer": order.customer, "is_confirmed": order.is_confirmed}


@web.post("/orders/<int:id>/receipt")
def make_receipt(id: int) -> ResponseReturnValue:
    enqueued = app.sync.enqueue(RECEIPT, OrderId(id), key=f"receipt-{id}", if_exists="keep_live")
    wait = min(max(request.args.get("wait", 10.0, type=float), 0), 15)
    try:
        return asdict(enqueued.result(timeout=f"{wait}s"))
    except TimeoutError:
        return {"status": url_for("show_job", id=enqueued.id)}, 202
    except JobFailed as error:
        return {"detail": error.code}, 422


@web.post("/newsletters")
def order_newsletter() -> ResponseReturnValue:
    enqueued = app.sync.enqueue("newsletter.send", {"to": request.args["to"]})
    return {"status": url_for("show_job", id=enqueued.id)}, 202


@web.get("/jobs/<uuid:id>")
def show_job(id: UUID) -> ResponseReturnValue:
    job = app.sync.jobs.get(id)
    if job is None:
        abort(404)
    return {"state": job.state, "result": job.result}


@web.errorhandler(StoreUnavailable)
def answer_unavailable(_: StoreUnavailable) -> ResponseReturnValue:
    return {"detail": "The job store is unavailable. Try again."}, 503, {"Retry-After": "1"}


@web.cli.command("create-tables")
def create_tables() -> None:
    Base.metadata.create_all(engine)
