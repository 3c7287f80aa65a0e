"""The jobs that the demo enqueues, and what it reads back from the store."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

from holdfast.app import Holdfast
from holdfast.domain.job import Job, JobState, NewJob
from holdfast.store.contract import JobFilter

INVOICES = 60
EMAILS = 120
THUMBNAILS = 80
REPORTS = 6
PAYMENTS = 8

WELCOME_KEY = "welcome:ada"
URGENT = {"video.convert": 1}


def todays_orders(app: Holdfast) -> list[NewJob]:
    """Jobs of all kinds, mixed as on a day in a shop."""
    orders = [
        *_spread("invoice.issue", [{"number": number} for number in range(1, INVOICES + 1)]),
        *_spread("email.send", [{"order": order, "server_busy": order % 10 == 0} for order in range(EMAILS)]),
        *_spread("thumbnail.render", [{"height": 240 + step} for step in range(THUMBNAILS)]),
        *_spread("report.build", [{"month": month} for month in range(1, REPORTS + 1)]),
        *_spread("payment.check", [{"order": order} for order in range(PAYMENTS)]),
        *_spread("video.convert", [{"clip": 1, "broken_codec": True}, {"clip": 2}]),
        *_spread("address.check", [{"street": "Nowhere Lane"}]),
        *_spread("webhook.deliver", [{"url": "https://partner.example/hook"}]),
    ]
    # Make the jobs only after sorting: of jobs that are due at the same moment, the one made first runs first.
    orders.sort(key=lambda order: order.place)
    return [app.job(order.kind, order.payload, priority=URGENT.get(order.kind, 5)) for order in orders]


@dataclass(frozen=True, slots=True)
class _Order:
    place: float
    kind: str
    payload: dict[str, object]


def _spread(kind: str, payloads: list[dict[str, object]]) -> list[_Order]:
    """Spread the orders evenly over the day."""
    return [_Order((index + 0.5) / len(payloads), kind, payload) for index, payload in enumerate(payloads)]


def welcome(app: Holdfast) -> NewJob:
    return app.job("email.send", {"to": "ada@example.com"}, key=WELCOME_KEY)


@dataclass(frozen=True)
class Picture:
    """All jobs in the store at one moment."""

    jobs: Sequence[Job]

    @classmethod
    async def take(cls, app: Holdfast) -> "Picture":
        return cls(await app.jobs.list(JobFilter(), 10_000))

    @cached_property
    def states(self) -> Mapping[JobState, int]:
        return Counter(job.state for job in self.jobs)

    @cached_property
    def by_kind(self) -> Mapping[str, Mapping[JobState, int]]:
        kinds: dict[str, Counter[JobState]] = {}
        for job in reversed(self.jobs):
            kinds.setdefault(job.kind, Counter())[job.state] += 1
        return kinds

    @cached_property
    def errors(self) -> Mapping[UUID, Sequence[Mapping[str, Any]]]:
        return {job.id: job.errors for job in self.jobs if job.errors}

    @property
    def finished(self) -> int:
        return sum(count for state, count in self.states.items() if state.is_final)

    @property
    def rescued(self) -> list[Job]:
        return [job for job in self.jobs if job.losses]

    @property
    def running(self) -> list[Job]:
        return [job for job in self.jobs if job.state is JobState.RUNNING]

    def of_kind(self, kind: str) -> list[Job]:
        return [job for job in self.jobs if job.kind == kind]

    def with_error(self, code: str) -> list[Job]:
        """Jobs with an attempt that ended with this code."""
        return [job for job in self.jobs if any(error["code"] == code for error in self.errors.get(job.id, ()))]
