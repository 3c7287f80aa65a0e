"""Timetables in time zones whose clocks jump."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context

from holdfast.domain.cron import parse_timetable
from holdfast_lab.faults.case import case
from holdfast_lab.faults.cases.place import Lab
from holdfast_lab.faults.oracle import YearsOfOccurrences

EXPRESSIONS = ("30 2 * * *", "0 0 * * *", "*/30 2 * * 0", "0 */8 * * *")
"""Two fixed times of day, one of which is often skipped, and two that follow the clock."""
ZONES = (
    "Africa/Cairo", "Africa/Casablanca", "Africa/El_Aaiun", "Africa/Johannesburg", "America/Adak", "America/Asuncion",
    "America/Chicago", "America/Godthab", "America/Havana", "America/Los_Angeles", "America/Mexico_City",
    "America/New_York", "America/Port-au-Prince", "America/Santiago", "America/Sao_Paulo", "America/St_Johns",
    "Antarctica/Casey", "Antarctica/Troll", "Asia/Almaty", "Asia/Amman", "Asia/Beirut", "Asia/Gaza", "Asia/Jerusalem",
    "Asia/Kathmandu", "Asia/Kolkata", "Asia/Tehran", "Asia/Tokyo", "Atlantic/Azores", "Australia/Adelaide",
    "Australia/Eucla", "Australia/Lord_Howe", "Australia/Sydney", "Europe/Berlin", "Europe/Chisinau", "Europe/Dublin",
    "Europe/London", "Pacific/Apia", "Pacific/Auckland", "Pacific/Chatham", "Pacific/Easter",
)  # fmt: skip
_FIRST_YEAR = 2020


@case(
    "R27",
    "cron expressions in all kinds of time zones, compared with an oracle",
    small={"zones": 40, "years": 5},
    large={"zones": 40, "years": 20},
)
async def zones(lab: Lab) -> None:
    """Over several years, Holdfast and the oracle must agree on every occurrence."""
    chosen = lab.random.sample(ZONES, int(lab.size["zones"]))
    first = datetime(_FIRST_YEAR, 1, 1, tzinfo=UTC)
    days = int(365 * lab.size["years"])
    compared = 0
    loop = asyncio.get_running_loop()
    # In a separate process, because this takes long and the laboratory must stay responsive.
    with ProcessPoolExecutor(1, get_context("spawn")) as elsewhere:
        for number, zone in enumerate(chosen):
            for expression, expected, found in await loop.run_in_executor(elsewhere, _both, zone, first, days):
                compared += len(expected)
                for occurrence in sorted(set(expected) ^ set(found))[:3]:
                    whose = "found only by the oracle" if occurrence in expected else "not found by the oracle"
                    lab.violation("wrong occurrence", f"{expression!r} in {zone}: {occurrence.isoformat()} is {whose}")
            lab.progress(f"{number + 1} of {len(chosen)} zones compared")
    lab.note("occurrences compared", compared)


def _both(zone: str, first: datetime, days: int) -> list[tuple[str, list[datetime], list[datetime]]]:
    oracle, end = YearsOfOccurrences(zone, first, days), first + timedelta(days=days)
    return [(each, oracle.occurrences(each), list(_found(each, zone, first, end))) for each in EXPRESSIONS]


def _found(expression: str, zone: str, first: datetime, end: datetime) -> Iterator[datetime]:
    timetable = parse_timetable(expression, zone)
    occurrence = timetable.next_after(first - timedelta(seconds=1))
    while occurrence < end:
        yield occurrence
        occurrence = timetable.next_after(occurrence)
