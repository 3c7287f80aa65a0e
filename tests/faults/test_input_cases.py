"""The cases of bad input at a small size, and checks that each case detects what it must detect."""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Holdfast, NewJob
from holdfast.domain.cron import Timetable, parse_timetable
from holdfast.domain.enqueued import Enqueued
from holdfast.domain.json_text import encode
from holdfast_lab.faults.cases import sequences as sequences_case
from holdfast_lab.faults.cases import zones as zones_case
from holdfast_lab.faults.cases.inputs import hostile_names, hostile_values
from holdfast_lab.faults.cases.sequences import wide_sequences
from holdfast_lab.faults.cases.zones import zones
from tests.databases import Database, connected
from tests.faults.laboratory import Listening

pytestmark = pytest.mark.long

NAMES: dict[str, float] = {"names": 200, "schemas": 2}
WIDE: dict[str, float] = {"jobs": 5, "conflicts": 5, "races": 2}


def in_this_process(number: int, _: object) -> ThreadPoolExecutor:
    """Stay in this process, because the test's patches apply only here."""
    return ThreadPoolExecutor(number)


async def schemas(database: Database) -> list[str]:
    async with connected(database.url) as connection:
        rows = await connection.fetch(
            "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema|public)'"
        )
    return [row[0] for row in rows]


async def test_hostile_values_are_refused_or_end_clearly_and_the_worker_survives(database: Database) -> None:
    lab = Listening(database.url, {"values": 500})
    await hostile_values(lab)
    assert lab.violations == []
    assert lab.figures["refused"] > 50
    assert lab.figures["succeeded"] > 50
    assert lab.figures["failed INVALID_RESULT"] > 10
    assert await schemas(database) == ["holdfast"]


async def test_an_unchecked_payload_is_noticed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.domain.kinds.encode", lambda value: json.dumps(value))
    lab = Listening(database.url, {"values": 60})
    await hostile_values(lab)
    assert {line.partition(":")[0] for line in lab.violations} >= {"unclear refusal", "refused too late"}


async def test_an_unchecked_result_is_noticed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.domain.failures.encode", lambda value, **_: json.dumps(value))
    lab = Listening(database.url, {"values": 100})
    await hostile_values(lab)
    assert {line.partition(":")[0] for line in lab.violations} == {"unclear end"}


async def test_the_worst_values_are_always_included(database: Database) -> None:
    lab = Listening(database.url, {"values": 0})
    await hostile_values(lab)
    assert lab.violations == []
    # As payloads, as results of an async and a blocking handler, as errors of both, and as progress.
    assert lab.figures == {"refused": 5, "failed INVALID_RESULT": 10, "dead ERROR": 15}


async def test_a_result_changed_on_its_way_is_noticed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(value: object, **how: Any) -> str:  # noqa: ANN401
        return f"[{encode(value, **how)}]"

    monkeypatch.setattr("holdfast.domain.failures.encode", changed)
    lab = Listening(database.url, {"values": 100})
    await hostile_values(lab)
    assert lab.violations
    assert all("its result is" in line and "its handler gave" in line for line in lab.violations)


async def test_there_may_be_more_schemas_than_hostile_names(database: Database) -> None:
    lab = Listening(database.url, {"names": 1, "schemas": 10})
    await hostile_names(lab)
    assert lab.violations == []
    assert await schemas(database) == ["holdfast"]


async def test_hostile_names_are_refused_or_stored_unchanged(database: Database) -> None:
    lab = Listening(database.url, NAMES)
    await hostile_names(lab)
    assert lab.violations == []
    assert 50 < lab.figures["names refused"] < 150
    assert lab.figures["schemas refused"] > 20
    assert await schemas(database) == ["holdfast"]


async def test_unchecked_names_are_noticed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.domain.job._check_text", lambda field, value: None)
    lab = Listening(database.url, NAMES)
    await hostile_names(lab)
    assert any(line.startswith("refused too late: ") for line in lab.violations)


async def test_numbers_beyond_32_bits_work_and_conflicts_use_none_up(database: Database) -> None:
    lab = Listening(database.url, WIDE)
    await wide_sequences(lab)
    assert lab.violations == []
    assert lab.figures == {"sequences": 3, "conflicts": 15, "races": 2}


class Burning(Holdfast):
    """Uses up a sequence number for each call, even one that has no effect."""

    async def enqueue_many(self, jobs: Iterable[NewJob], *, conn: object = None) -> list[Enqueued]:
        async with connected(self.opened.url) as connection:
            await connection.fetchval("SELECT nextval($1::text::regclass)", f'"{self.settings.db_schema}".run_id_seq')
        return await super().enqueue_many(jobs)


async def test_a_number_used_up_by_a_conflict_is_noticed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences_case, "Holdfast", Burning)
    lab = Listening(database.url, WIDE)
    await wide_sequences(lab)
    assert [line.partition(" went")[0] for line in lab.violations] == ["burned: run_id_seq"]


async def test_occurrences_match_the_oracle() -> None:
    lab = Listening("", {"zones": 3, "years": 2})
    await zones(lab)
    assert lab.violations == []
    assert lab.figures["occurrences compared"] > 10_000


async def test_a_timetable_without_its_time_zone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_zone(text: str, zone: str) -> Timetable:
        return parse_timetable(text, "UTC")

    monkeypatch.setattr(zones_case, "parse_timetable", without_zone)
    monkeypatch.setattr(zones_case, "ProcessPoolExecutor", in_this_process)
    lab = Listening("", {"zones": 1, "years": 0.1})
    await zones(lab)
    assert lab.violations


async def test_an_occurrence_left_out_at_a_clock_jump_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Skipping:
        """Skips the occurrence at a clock jump."""

        def __init__(self, timetable: Timetable) -> None:
            self._timetable = timetable

        def next_after(self, moment: datetime) -> datetime:
            occurrence = self._timetable.next_after(moment)
            return (
                self._timetable.next_after(occurrence)
                if occurrence == datetime(2020, 3, 29, 1, tzinfo=UTC)
                else occurrence
            )

    monkeypatch.setattr(zones_case, "parse_timetable", lambda text, zone: Skipping(parse_timetable(text, zone)))
    monkeypatch.setattr(zones_case, "ProcessPoolExecutor", in_this_process)
    monkeypatch.setattr(zones_case, "ZONES", ("Europe/Berlin",))
    lab = Listening("", {"zones": 1, "years": 1})
    await zones(lab)
    assert lab.violations == [
        "wrong occurrence: '30 2 * * *' in Europe/Berlin: 2020-03-29T01:00:00+00:00 is found only by the oracle"
    ]
