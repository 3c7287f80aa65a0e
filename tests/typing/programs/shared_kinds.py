"""Everything that the producer and the worker of a shop share."""

from dataclasses import dataclass

from holdfast import Kind


@dataclass
class Invoice:
    number: int


@dataclass
class Sent:
    message_id: str


SEND = Kind("invoice.send", Invoice, returns=Sent)
ARCHIVE = Kind("invoice.archive", Invoice, queue="slow", version=2)
SWEEP = Kind("sweep")
COUNT = Kind("count", returns=int)
EITHER = Kind("either", Invoice | Sent)
LINES = Kind("lines", list[Invoice], returns=dict[str, int])
