"""The check finds each mistake at the step where a crash does damage, and passes the corrected handler."""

from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.testing import Tables, check_idempotency
from tests.databases import Database, connected
from tests.testing.shop import SCHEMA, PaymentService, balances, letters, payment_service, payments

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


@pytest.fixture
async def url(database: Database) -> str:
    """The shop's database."""
    async with connected(database.url) as connection:
        await connection.execute(SCHEMA)
    return database.url


@pytest.fixture
def service(threads_end: None) -> Iterator[PaymentService]:
    with payment_service() as service:
        yield service


def tables(url: str) -> Tables:
    return Tables(url, "customer", "letter", "payment")


async def test_a_row_that_is_inserted_again_is_found(url: str) -> None:
    app = Holdfast("memory:")
    letters(app, url)
    report = await check_idempotency(app, "letter.wrong", {"customer": 7}, observe=tables(url))
    assert not report.ok
    assert [step.text for step in report.steps] == [
        "INSERT INTO letter (customer) VALUES ($1)",
        "UPDATE customer SET letters = 1 WHERE id = $1",
    ]
    moments = [problem.step and problem.step.number for problem in report.problems]
    assert moments == [1, 2, None], "and not before the first step"
    first = report.problems[0]
    assert first.step is not None
    assert first.step.text.startswith("INSERT INTO letter")
    assert first.step.place is not None
    assert first.step.place.startswith("tests/testing/shop.py:")
    assert first.differences == ("letter: 1 more of {customer: 7}",)
    # Serial numbers and times also differ between clean runs.
    assert report.ignored == ("letter.id", "letter.written_at")
    with pytest.raises(AssertionError, match=r"letter\.wrong is not idempotent: 3 of 4 crashes leave a trace"):
        report.raise_for_problems()


async def test_a_row_that_is_unique_passes(url: str) -> None:
    app = Holdfast("memory:")
    letters(app, url)
    report = await check_idempotency(app, "letter.unique", {"customer": 7}, observe=tables(url))
    assert report.ok, report
    assert report.crashes == 4, "before the first step, after each of two, and before the finish"
    async with connected(url) as connection:
        assert await connection.fetchval("SELECT count(*) FROM letter") == 0, "as before the check"
        assert await connection.fetchval("SELECT count(*) FROM customer") == 2


async def test_a_finish_in_the_handlers_transaction_passes(url: str) -> None:
    app = Holdfast("memory:")
    letters(app, url)
    report = await check_idempotency(app, "letter.transaction", {"customer": 7}, observe=tables(url), database=url)
    assert report.ok, report
    assert [step.text.split()[0] for step in report.steps] == ["INSERT", "UPDATE", "SELECT", "COMMIT;"]


async def test_a_payment_that_is_made_again_is_found(url: str, service: PaymentService) -> None:
    app = Holdfast("memory:")
    payments(app, url, service.url)
    report = await check_idempotency(
        app,
        "payment.wrong",
        {"amount": 5},
        observe=(tables(url), lambda: {"charges": len(service.charges)}),
        setup=service.charges.clear,
    )
    assert [step.text.split()[0] for step in report.steps] == ["SELECT", "COMMIT", "POST", "INSERT", "COMMIT"]
    moments = [problem.step and problem.step.number for problem in report.problems]
    assert moments == [3, 4], "once the payment is committed, the second run sees it"
    assert f"POST {service.url}: sent twice instead of once" in report.problems[0].differences
    assert "observed: charges is 2 instead of 1" in report.problems[0].differences


async def test_a_payment_with_a_key_passes(url: str, service: PaymentService) -> None:
    app = Holdfast("memory:")
    payments(app, url, service.url)
    report = await check_idempotency(
        app, "payment.right", {"amount": 5}, observe=tables(url), setup=service.charges.clear
    )
    assert report.ok, report
    assert report.crashes == 7


async def test_a_payment_that_is_never_made_is_found(url: str, service: PaymentService) -> None:
    app = Holdfast("memory:")
    payments(app, url, service.url)
    report = await check_idempotency(
        app, "payment.lost", {"amount": 5}, observe=tables(url), setup=service.charges.clear
    )
    (problem,) = report.problems
    assert problem.step is not None
    assert (problem.step.number, problem.step.text) == (4, "COMMIT")
    assert problem.differences == (f"POST {service.url}: sent never instead of once",)


async def test_a_sum_that_is_added_again_and_a_second_job_are_found(url: str) -> None:
    app = Holdfast("memory:")
    balances(app, url)
    report = await check_idempotency(app, "balance.wrong", {"amount": 5}, observe=tables(url))
    moments = [problem.step and problem.step.text.split()[0] for problem in report.problems]
    assert moments == ["COMMIT;", "enqueue", None], "before the COMMIT nothing has happened"
    after_commit, after_enqueue, _ = report.problems
    assert after_commit.differences == ("customer: balance is 10 instead of 5 in {id: 7, letters: 0}",)
    assert any("enqueued jobs: 1 more of {kind: 'receipt.send'" in each for each in after_enqueue.differences)


async def test_a_sum_a_job_and_the_outcome_in_one_transaction_pass(url: str) -> None:
    app = Holdfast("memory:")
    balances(app, url)
    report = await check_idempotency(app, "balance.right", {"amount": 5}, observe=tables(url), database=url)
    assert report.ok, report
    assert report.steps[-1].text == "COMMIT;"


async def test_a_job_that_is_enqueued_again_is_found_and_one_with_a_key_passes(url: str) -> None:
    app = Holdfast("memory:")
    balances(app, url)
    report = await check_idempotency(app, "receipt.wrong", {"amount": 5})
    assert [problem.step and problem.step.number for problem in report.problems] == [1, None]
    assert report.steps[0].text == 'enqueue receipt.send {"amount":5}'
    assert (await check_idempotency(app, "receipt.right", {"amount": 5})).ok
