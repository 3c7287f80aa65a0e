"""Timetables as people write them, their occurrences, and the handling of missed occurrences."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.cron import MOST_COUNTED, Due, Missed, Timetable, due_at, parse_timetable
from holdfast.domain.errors import InvalidInput
from tests.domain.answers import answer

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)  # a Wednesday
EXAMPLE = '"every 2m", "03:17 daily", "08:00 weekdays", "09:30 monday" or "17 3 * * *"'


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("every 90s", "every 1m30s"),
        ("  EVERY 1.5m ", "every 1m30s"),
        ("every 1h 30m", "every 1h30m"),
        ("every 1500ms", "every 1s500ms"),
        ("17 3 * * *", "17 3 * * *"),
        ("017  03\t* * *", "17 3 * * *"),
        ("03:17 daily", "17 3 * * *"),
        ("3:17 Daily", "17 3 * * *"),
        ("08:00 weekdays", "0 8 * * 1-5"),
        ("0 8 * * mon-fri", "0 8 * * 1-5"),
        ("08:00 weekends", "0 8 * * 0,6"),
        ("09:30 monday", "30 9 * * 1"),
        ("09:30 thursday, mon", "30 9 * * 1,4"),
        ("09:30 sunday", "30 9 * * 0"),
        ("30 9 * * 7", "30 9 * * 0"),
        ("30 9 * * Fri-7", "30 9 * * 0,5,6"),
        ("hourly", "0 * * * *"),
        ("0 0-23 * Jan-Dec *", "0 * * * *"),
        ("0-59 */1 * * *", "* * * * *"),
        ("*/15,45,50 * * * *", "*/15,50 * * * *"),
        ("5/20 * * * *", "5,25,45 * * * *"),
        ("0 3 L,LW * *", "0 3 L,LW * *"),
        ("0 3 * * 5L,MON#2", "0 3 * * 1#2,5L"),
    ],
)
def test_two_spellings_of_one_timetable_are_equal(written: str, text: str) -> None:
    timetable = parse_timetable(written, "America/Santiago")
    assert (timetable.text, timetable.zone) == (text, "America/Santiago")
    assert timetable == parse_timetable(text, "America/Santiago")
    assert hash(timetable) == hash(parse_timetable(text, "America/Santiago"))
    assert timetable != parse_timetable(text, "UTC")


def test_a_star_is_not_equal_to_a_list_because_clock_jumps_treat_them_differently() -> None:
    assert parse_timetable("0 */12 * * *") != parse_timetable("0 0,12 * * *")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (5, "5 is not text; "),
        (None, "None is not text; "),
        ("", "'' does not have the five fields of a cron expression; "),
        ("every", "'every' does not have the five fields of a cron expression; "),
        ("17 3 * *", "'17 3 * *' does not have the five fields of a cron expression; "),
        (
            "* 17 3 * * *",
            "'* 17 3 * * *' does not have the five fields of a cron expression (for seconds, use \"every 10s\"); ",
        ),
        ("61 * * * *", "'61 * * * *': bad minute; "),
        ("0 24 * * *", "'0 24 * * *': bad hour; "),
        ("0 0 32 2 *", "'0 0 32 2 *': bad day-of-month; "),
        ("0 0 1 13 *", "'0 0 1 13 *': bad month; "),
        ("0 0 * * someday", "'0 0 * * someday': bad day-of-week; "),
        ("*/90 * * * *", "'*/90 * * * *': minute: a step of 90 is longer than the field; "),
        ("0 */25 * * *", "'0 */25 * * *': hour: a step of 25 is longer than the field; "),
        ("0 0 30 2 *", "'0 0 30 2 *' never occurs; "),
        ("0 0 31 4,6 *", "'0 0 31 4,6 *' never occurs; "),
        ("0 0 */20 * 1#2", "'0 0 */20 * 1#2' never occurs; "),
        ("* " * 150, "300 characters are over the limit of 200; "),
    ],
)
def test_an_invalid_timetable_is_refused_with_examples(text: str, problem: str) -> None:
    assert answer(lambda: parse_timetable(text)) == (None, f"timetable: {problem}write it like {EXAMPLE}")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("every day", "'day' is not a duration; write it like \"90s\", \"5m\" or \"1h30m\", after the word every"),
        ("every 0.5s", "'every 0.5s' is not from 1s to 366d; write it like \"every 90s\" or \"every 2m\""),
        ("every 367d", "'every 367d' is not from 1s to 366d; write it like \"every 90s\" or \"every 2m\""),
        ("every 1.0001s", "'every 1.0001s' is not in whole milliseconds; write it like \"every 90s\""),
        ("24:00 daily", "'24:00 daily' has no time of day from 00:00 to 23:59; write it like \"03:17 daily\""),
        (
            "09:30 tuesday,noday",
            "'09:30 tuesday,noday': 'noday' is not a day; write it like \"03:17 daily\" or \"09:30 monday,thursday\"",
        ),
    ],
)  # fmt: skip
def test_a_nearly_valid_timetable_is_refused_with_a_fitting_example(text: str, line: str) -> None:
    assert answer(lambda: parse_timetable(text)) == (None, f"timetable: {line}")


@given(st.text(alphabet="0123456789*/,-LW#:. everydailymonsu", max_size=30) | st.text(max_size=30))
def test_any_text_is_a_timetable_or_is_refused_in_one_line(text: str) -> None:
    timetable, line = answer(lambda: parse_timetable(text))
    if timetable is None:
        assert line.startswith("timetable: ")
        assert len(line.splitlines()) == 1
    else:
        assert parse_timetable(timetable.text) == timetable
        assert timetable.next_after(NOON) > NOON


def cron_fields() -> st.SearchStrategy[str]:
    def terms(low: int, high: int, others: list[str]) -> st.SearchStrategy[str]:
        number = st.integers(low, high)
        span = st.tuples(number, number).map(lambda ends: f"{min(ends)}-{max(ends)}")
        step = st.tuples(st.just("*") | span, st.integers(1, high)).map(lambda parts: f"{parts[0]}/{parts[1]}")
        term = number.map(str) | st.just("*") | span | step | st.sampled_from(others)
        return st.lists(term, min_size=1, max_size=3).map(",".join)

    days = terms(1, 28, ["L", "LW"])
    return st.tuples(
        terms(0, 59, ["7"]), terms(0, 23, ["7"]), days, terms(1, 12, ["jan"]), terms(0, 6, ["7", "SUN", "2L", "1#3"])
    ).map(" ".join)


@given(cron_fields(), st.sampled_from(["UTC", "America/Santiago", "Australia/Lord_Howe"]))
def test_the_stored_form_of_an_expression_has_the_same_occurrences(written: str, zone: str) -> None:
    timetable, _ = answer(lambda: parse_timetable(written, zone))
    if timetable is None:
        return
    stored, moment = parse_timetable(timetable.text, zone), NOON
    for _ in range(20):
        assert stored.next_after(moment) == timetable.next_after(moment)
        moment = stored.next_after(moment)


@pytest.mark.parametrize(
    ("zone", "line"),
    [
        ("Santiago", "'Santiago' is not the name of a time zone; write it like \"America/Santiago\""),
        ("europe/berlin", "'europe/berlin' is not the name of a time zone; write it like \"Europe/Berlin\""),
        ("America", "'America' is not the name of a time zone; write it like \"America/Santiago\""),
        ("../etc/passwd", "'../etc/passwd' is not the name of a time zone; write it like \"America/Santiago\""),
        ("a\0b", "'a\\x00b' is not the name of a time zone; write it like \"America/Santiago\""),
        ("", "'' is not the name of a time zone; write it like \"America/Santiago\""),
        ("localtime", "'localtime' is not the name of a time zone; write it like \"America/Santiago\""),
        (UTC, 'datetime.timezone.utc is not text; write the name of a time zone, like "America/Santiago"'),
    ],
)
def test_an_invalid_zone_is_refused(zone: str, line: str) -> None:
    for text in ("hourly", "every 2m"):
        assert answer(lambda text=text: parse_timetable(text, zone)) == (None, f"tz: {line}")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "occurrence"),
    [
        ("every 2m", datetime(2026, 3, 4, 12, 2, tzinfo=UTC)),
        ("every 7s", datetime(2026, 3, 4, 12, 0, 3, tzinfo=UTC)),
        ("every 1d", datetime(2026, 3, 5, tzinfo=UTC)),
        ("* * * * *", datetime(2026, 3, 4, 12, 1, tzinfo=UTC)),
        ("12:00 daily", datetime(2026, 3, 5, 12, tzinfo=UTC)),
        ("12:01 daily", datetime(2026, 3, 4, 12, 1, tzinfo=UTC)),
        ("09:30 monday,friday", datetime(2026, 3, 6, 9, 30, tzinfo=UTC)),
        ("0 0 13 * 5", datetime(2026, 3, 6, tzinfo=UTC)),  # either: the 13th, or a Friday
        ("0 0 */13 * 5", datetime(2026, 3, 27, tzinfo=UTC)),  # both, because one begins with a star
        ("0 0 L * *", datetime(2026, 3, 31, tzinfo=UTC)),
        ("0 0 29 2 *", datetime(2028, 2, 29, tzinfo=UTC)),
        ("*/5 0 * 2 MON#5", datetime(2044, 2, 29, tzinfo=UTC)),
    ],
)
def test_the_next_occurrence_is_strictly_after_the_moment(text: str, occurrence: datetime) -> None:
    assert parse_timetable(text).next_after(NOON) == occurrence
    assert parse_timetable(text).next_after(occurrence - timedelta(microseconds=1)) == occurrence
    assert parse_timetable(text).next_after(occurrence) > occurrence


def test_interval_occurrences_are_the_same_in_every_zone_even_before_1970() -> None:
    for moment in (NOON, datetime(1969, 12, 31, 23, 59, 30, tzinfo=UTC)):
        occurrences = {parse_timetable("every 2m", zone).next_after(moment) for zone in ("UTC", "Asia/Kolkata")}
        assert len(occurrences) == 1
        assert occurrences.pop().timestamp() % 120 == 0


@pytest.mark.parametrize("text", ["every 2m", "hourly", "0 0 29 2 *"])
def test_a_moment_needs_a_zone_and_occurrences_end_before_the_year_9999(text: str) -> None:
    with pytest.raises(InvalidInput, match="has no time zone"):
        parse_timetable(text).next_after(datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidInput, match="the year 9999"):
        parse_timetable(text, "America/Santiago").next_after(datetime(9999, 6, 1, tzinfo=UTC))


TIMETABLES = [
    parse_timetable(text, "America/Santiago")
    for text in ("every 1s", "every 7m", "* * * * *", "*/15 * * * *", "17 3 * * *", "0 0 1 * *")
]


@given(
    st.sampled_from(TIMETABLES),
    st.integers(0, 60),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(Missed),
    st.integers(1, 70),
)
def test_a_plan_equals_walking_through_the_occurrences(
    timetable: Timetable, count: int, part: float, missed: Missed, limit: int
) -> None:
    occurrences = [timetable.next_after(NOON)]
    for _ in range(count):
        occurrences.append(timetable.next_after(occurrences[-1]))
    coming = timetable.next_after(occurrences[-1])
    now = occurrences[-1] + part * (coming - occurrences[-1])
    if now >= coming:
        now = occurrences[-1]

    is_late = now - occurrences[-1] >= timedelta(minutes=1)
    expected = {
        Missed.ALL: occurrences[-limit:],
        Missed.ONCE: occurrences[-1:],
        Missed.SKIP: [] if is_late else occurrences[-1:],
    }
    run = expected[missed]
    assert due_at(timetable, occurrences[0], now, missed, limit) == Due(tuple(run), len(occurrences) - len(run), coming)


def test_an_occurrence_that_is_not_due_stays_the_next_one() -> None:
    occurrence = NOON + timedelta(minutes=30)
    assert due_at(parse_timetable("every 1m"), occurrence, NOON, Missed.ALL, 5) == Due((), 0, occurrence)


def test_a_stored_occurrence_counts_even_if_the_timetable_has_no_such_occurrence() -> None:
    stored, now = NOON - timedelta(minutes=7), NOON + timedelta(minutes=5)
    for text in ("hourly", "every 1h"):
        timetable = parse_timetable(text)
        coming = NOON + timedelta(hours=1)
        assert due_at(timetable, stored, now, Missed.ALL, 5) == Due((stored, NOON), 0, coming)
        assert due_at(timetable, stored, stored, Missed.SKIP, 5) == Due((stored,), 0, NOON)


def test_years_of_missed_seconds_are_counted_without_walking_through_them() -> None:
    ago = NOON - timedelta(days=3650)
    due = due_at(parse_timetable("every 1s"), ago, NOON, Missed.ALL, 3)
    assert due.occurrences == tuple(NOON - timedelta(seconds=seconds) for seconds in (2, 1, 0))
    assert due.dropped == 3650 * 86_400 + 1 - 3


def test_a_year_of_missed_minutes_is_walked_only_near_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    timetable = parse_timetable("* * * * *")
    walk, steps = timetable.next_after, 0

    def counted(self: Timetable, moment: datetime) -> datetime:
        nonlocal steps
        steps += 1
        return walk(moment)

    monkeypatch.setattr(type(timetable), "next_after", counted)
    due = due_at(timetable, NOON - timedelta(days=365), NOON, Missed.ALL, 100)
    assert due.occurrences == tuple(NOON - timedelta(minutes=minutes) for minutes in range(99, -1, -1))
    assert MOST_COUNTED <= due.dropped <= 2 * MOST_COUNTED
    assert steps < 5 * MOST_COUNTED
