"""Subscriptions and publishing on every store."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast.domain.errors import InvalidInput
from holdfast.domain.event import EVENT_HEADER, NewEvent, patterns_of
from holdfast.domain.job import Job, JobState
from holdfast.domain.json_text import Json, encode
from holdfast.store.events import EventJob, EventStore, NewSubscription, Subscription
from tests.databases import StoreCase
from tests.store_contract.steps import BROKEN, ENDINGS, START, everything, finished, shown, wants

PAID = NewEvent(type="invoice.paid", payload=encode({"invoice": 17}))
HOUR = timedelta(hours=1)


def subscriptions(**patterns: str) -> list[NewSubscription]:
    return [NewSubscription(name, pattern) for name, pattern in patterns.items()]


async def names_that_hear(events: EventStore, type: str) -> list[str]:
    return [job.subscription for job in await events.publish(replace(PAID, type=type))]


async def job_of(case: StoreCase, made: EventJob) -> Job:
    return await shown(case, made.id)


async def test_every_subscription_gets_its_own_job(case: StoreCase, events: EventStore) -> None:
    await events.declare(
        [
            NewSubscription("receipt", "invoice.paid", queue="mail", priority=2, max_attempts=9),
            NewSubscription("book", "invoice.*"),
        ]
    )
    event = replace(
        PAID, tenant="acme", correlation_id="order-4", headers=encode({"trace": [1.10, None], EVENT_HEADER: "forged"})
    )
    book, receipt = await events.publish(event)
    assert (book.subscription, book.is_new, receipt.subscription, receipt.is_new) == ("book", True, "receipt", True)
    about = {"id": str(event.id), "type": "invoice.paid", "published_at": "2030-01-01T12:00:00.000000Z"}
    for made, queue, priority, attempts in ((book, "default", 5, None), (receipt, "mail", 2, 9)):
        job = await job_of(case, made)
        assert (job.kind, job.state) == (made.subscription, JobState.READY)
        assert (job.queue, job.priority, job.max_attempts) == (queue, priority, attempts)
        assert (job.tenant, job.correlation_id, job.key) == ("acme", "order-4", None)
        assert job.as_dict()["payload"] == {"invoice": 17}
        assert job.as_dict()["headers"] == {"trace": [1.1, None], EVENT_HEADER: about}
        assert (job.created_at, job.run_at) == (START, START)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, "{"),
        ("{}", "{"),
        ('{"b":1e+25,"a":[1.10,null],"é\\"":{"z":1,"y":2}}', '{"b":1e+25,"a":[1.10,null],"é\\"":{"z":1,"y":2},'),
    ],
)
async def test_headers_are_kept_as_written(case: StoreCase, events: EventStore, given: str | None, kept: str) -> None:
    await events.declare(subscriptions(all="*"))
    (made,) = await events.publish(replace(PAID, type='a "b"', headers=None if given is None else Json(given)))
    about = f'{{"id":"{PAID.id}","type":"a \\"b\\"","published_at":"2030-01-01T12:00:00.000000Z"}}'
    (leased,) = await case.store.claim(wants("all"))
    assert leased.id == made.id
    assert leased.headers == f'{kept}"{EVENT_HEADER}":{about}}}'


async def test_jobs_of_one_event_have_one_correlation_id(case: StoreCase, events: EventStore) -> None:
    await events.declare(subscriptions(receipt="invoice.paid", book="*"))
    made = await events.publish(PAID)
    assert {(await job_of(case, each)).correlation_id for each in made} == {str(PAID.id)}


async def test_the_jobs_of_one_event_are_independent(case: StoreCase, events: EventStore) -> None:
    await events.declare(subscriptions(receipt="invoice.paid", book="invoice.paid"))
    book, receipt = await events.publish(PAID)
    (leased,) = await case.store.claim(wants("receipt"))
    await finished(case, leased.lease, ENDINGS["fail"])
    assert (await job_of(case, receipt)).state is JobState.FAILED
    assert (await job_of(case, book)).state is JobState.READY
    assert (await job_of(case, book)).errors == ()
    assert BROKEN.code in str((await job_of(case, receipt)).errors)


async def test_a_pattern_is_a_type_or_a_prefix_of_whole_words(events: EventStore) -> None:
    await events.declare(
        subscriptions(exact="invoice.paid", deep="invoice.paid.*", prefix="invoice.*", word="invoice", all="*")
    )
    expected = {
        "invoice.paid": ["all", "exact", "prefix"],
        "invoice.paid.late": ["all", "deep", "prefix"],
        "invoice.paid.late.again": ["all", "deep", "prefix"],
        "invoice": ["all", "word"],
        "invoices.paid": ["all"],
        "Invoice.paid": ["all"],
        "invoice paid": ["all"],
        "invoice_paid": ["all"],
        "a%.b": ["all"],
    }
    assert {type: await names_that_hear(events, type) for type in expected} == expected


async def test_without_a_matching_subscription_no_job_is_made(case: StoreCase, events: EventStore) -> None:
    await events.declare(subscriptions(receipt="invoice.paid"))
    assert await events.publish(replace(PAID, type="invoice.sent")) == []
    assert await everything(case) == []


async def test_a_key_makes_one_job_for_each_subscription(case: StoreCase, events: EventStore) -> None:
    await events.declare(subscriptions(receipt="invoice.paid", book="invoice.*"))
    event = replace(PAID, key="invoice-17")
    first = await events.publish(event)
    assert [job.is_new for job in first] == [True, True]
    again = await events.publish(replace(event, id=UUID(int=7), payload=encode({"invoice": 18})))
    assert again == [replace(job, is_new=False) for job in first]
    await events.declare(subscriptions(archive="*"))
    late = await events.publish(event)
    assert [(job.subscription, job.is_new) for job in late] == [("archive", True), ("book", False), ("receipt", False)]
    elsewhere = await events.publish(replace(event, tenant="acme"))
    assert all(job.is_new for job in elsewhere)
    assert {(await job_of(case, each)).key for each in late} == {"invoice-17"}


async def test_declaring_again_changes_only_the_differences(case: StoreCase, events: EventStore) -> None:
    await events.declare(subscriptions(receipt="invoice.paid", book="invoice.*"))
    await case.clock.advance(HOUR)
    await events.declare([NewSubscription("receipt", "invoice.paid", priority=1), NewSubscription("book", "invoice.*")])
    assert await events.list() == [
        Subscription("book", "invoice.*", "default", 5, None, START, START),
        Subscription("receipt", "invoice.paid", "default", 1, None, START, START + HOUR),
    ]


async def test_a_declaration_stays_when_another_app_declares_its_own(events: EventStore) -> None:
    await events.declare(subscriptions(receipt="invoice.paid"))
    await events.declare(subscriptions(book="invoice.*"))
    await events.declare([])
    assert [subscription.name for subscription in await events.list()] == ["book", "receipt"]


async def test_events_are_delivered_between_the_declaration_and_the_removal(
    case: StoreCase, events: EventStore
) -> None:
    assert await events.publish(PAID) == []
    await events.declare(subscriptions(receipt="invoice.paid"))
    (made,) = await events.publish(PAID)
    assert await events.remove("receipt")
    assert not await events.remove("receipt")
    assert await events.publish(PAID) == []
    assert (await job_of(case, made)).state is JobState.READY


async def test_unusual_names_are_kept(case: StoreCase, events: EventStore) -> None:
    names = ["b", "A", "é", "a.b", "Z'--", 'x"; DROP', "ü" * 100]
    await events.declare([NewSubscription(name, "ключ.*") for name in names])
    made = await events.publish(replace(PAID, type="ключ.é'\"%_\\", key="k"))
    assert [job.subscription for job in made] == sorted(names)
    assert {job.kind for job in await everything(case)} == set(names)


@pytest.mark.parametrize(
    "pattern", ["", ".", "a.", ".a", "a..b", "a*", "*.a", "a.*.b", "**", "a.**", "a\nb", None, "é" * 128]
)
def test_an_ambiguous_pattern_is_refused(pattern: object) -> None:
    with pytest.raises(InvalidInput, match=r"^pattern: "):
        NewSubscription("receipt", pattern)  # type: ignore[arg-type]


@pytest.mark.parametrize("type", ["", ".", "a.", ".a", "a..b", "*", "a.*", "a*b", "a\0", 7, "a" * 256])
def test_an_event_type_consists_of_words_separated_by_dots(type: object) -> None:
    with pytest.raises(InvalidInput, match=r"^event type: "):
        NewEvent(type=type, payload=Json("{}"))  # type: ignore[arg-type]


def test_a_subscription_whose_jobs_would_be_invalid_is_refused() -> None:
    for wrong in ({"name": ""}, {"queue": ""}, {"priority": 10}, {"priority": True}, {"max_attempts": 0}):
        with pytest.raises(InvalidInput):
            NewSubscription(**{"name": "receipt", "pattern": "*", **wrong})  # type: ignore[arg-type]


def test_a_type_has_one_pattern_for_each_of_its_prefixes() -> None:
    assert patterns_of("a.b.c") == ["*", "a.*", "a.b.*", "a.b.c"]
