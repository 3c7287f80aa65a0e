"""Running cases: what a case does to a user's server, and what a broken one does to the others."""

from collections.abc import Sequence

from holdfast_lab.faults.case import Case, Run
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.run import Plan, Result, run_plan
from tests.databases import Database, connected


def case(name: str, run: Run) -> Case:
    return Case(name, name, run, {}, {}, frozenset(), 3.0)


async def results_of(database: Database, *cases: Case) -> Sequence[Result]:
    return await run_plan(Plan(cases, 1, url=database.url), lambda *_: None, lambda _: None)


async def test_of_a_users_server_only_the_connections_of_the_case_are_killed(database: Database) -> None:
    killed = []

    async def kill_all(lab: Lab) -> None:
        async with lab.workers(1):
            await lab.until_started(await lab.enqueue_many("fault.work", 1, {}))
            killed.append(await lab.kill_connections(100))

    async with connected(database.url) as other:
        (result,) = await results_of(database, case("K1", kill_all))
        assert await other.fetchval("SELECT 1") == 1
    assert (result.violations, result.broken) == ([], "")
    assert killed[0] >= 2


async def test_a_case_with_a_mistake_leaves_the_others_their_results(database: Database) -> None:
    async def mistaken(lab: Lab) -> None:
        raise ValueError("it is wrong")

    async def fine(lab: Lab) -> None:
        lab.note("reached", 1)

    first, second = await results_of(database, case("K1", mistaken), case("K2", fine))
    assert (first.is_fine, first.broken.partition(" (test_run.py:")[0]) == (False, "ValueError: it is wrong")
    assert (second.is_fine, [figure.name for figure in second.figures]) == (True, ["reached"])
