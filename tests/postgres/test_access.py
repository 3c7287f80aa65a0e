"""A role that may not log in or write: the error is one line, no job is blamed, and recovery needs no restart."""

from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.domain.errors import HoldfastError, StoreUnavailable
from holdfast.errors import AccessRefused
from tests.databases import Database, opened_store
from tests.postgres.roles import Role, role_of
from tests.store_contract.steps import job

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


@pytest.fixture
def role(database: Database) -> Iterator[Role]:
    with role_of(database.url) as role:
        yield role


async def test_a_role_with_its_own_grants_can_enqueue(role: Role) -> None:
    async with Holdfast(role.url) as app:
        assert (await app.enqueue("work", {})).is_new


@pytest.mark.parametrize("jobs", [1, 10, 1000], ids=["one", "many", "by COPY"])
@pytest.mark.parametrize("key", [None, "a"], ids=["", "with a key"])
async def test_a_producer_without_privileges_gets_a_clear_error_and_works_once_it_has_them(
    role: Role, jobs: int, key: str | None
) -> None:
    async with Holdfast(role.url) as app:
        for allowed in (True, False, True):
            role.allow_writes(allowed)
            new = [app.job("work", {}, key=key and f"{key} {number} {allowed}") for number in range(jobs)]
            if allowed:
                assert len(await app.enqueue_many(new)) == jobs
            else:
                with pytest.raises(AccessRefused, match=r"^PostgreSQL refused: permission denied for .*; grant"):
                    await app.enqueue_many(new)


async def test_a_producer_that_may_not_log_in_gets_a_clear_error_and_works_once_it_may(role: Role) -> None:
    async with opened_store(role.url) as store:
        await store.enqueue([job()])
        role.allow_logins(False)
        refusals: list[HoldfastError] = []
        while not refusals or not isinstance(refusals[-1], AccessRefused):
            # A connection that was cut off does not know the reason.
            with pytest.raises(StoreUnavailable) as raised:
                await store.enqueue([job()])
            refusals.append(raised.value)
        assert len(refusals) <= 3
        assert str(refusals[-1]).startswith("PostgreSQL refused the login: ")
        assert "is not permitted to log in; check the role" in str(refusals[-1])
        role.allow_logins(True)
        await store.enqueue([job()])
