"""Running cases: what a case does to a user's server, and how a broken case affects the others."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast_lab.faults.case import Case, Need, Run
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.run import Plan, Result, missing, run_plan
from holdfast_lab.faults.server import FaultServer
from tests.databases import Database, connected


def case(name: str, run: Run) -> Case:
    return Case(name, name, run, {}, {}, frozenset(), 3.0)


async def results_of(database: Database, *cases: Case) -> Sequence[Result]:
    return await run_plan(Plan(cases, 1, url=database.url), lambda *_: None, lambda _: None)


async def test_on_a_users_server_only_the_connections_of_the_case_are_killed(database: Database) -> None:
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


def test_a_case_that_lacks_a_program_names_it_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    why = missing(Need.CLUSTER, FaultServer("", tmp_path))
    assert why == "runs Patroni, etcd, HAProxy and PgBouncer, and etcd is not installed"


async def test_a_broken_case_does_not_affect_the_results_of_others(database: Database) -> None:
    async def mistaken(lab: Lab) -> None:
        raise ValueError("it is wrong")

    async def fine(lab: Lab) -> None:
        lab.note("reached", 1)

    first, second = await results_of(database, case("K1", mistaken), case("K2", fine))
    assert (first.is_fine, first.broken.partition(" (test_run.py:")[0]) == (False, "ValueError: it is wrong")
    assert (second.is_fine, [figure.name for figure in second.figures]) == (True, ["reached"])
