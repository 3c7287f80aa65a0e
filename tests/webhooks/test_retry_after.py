"""Which delays a receiver may ask for."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.webhooks.retry_after import LONGEST, delay_of

DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", 1),
        (" 120 ", 120),
        ("3600", 3600),
        ("3601", 3600),
        ("9" * 5_000, 3600),
        ("Wed, 21 Oct 2015 07:29:30 GMT", 90),
        ("Wednesday, 21-Oct-15 07:29:30 GMT", 90),
        ("Wed Oct 21 07:29:30 2015", 90),
        ("Thu, 22 Oct 2015 07:28:00 GMT", 3600),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600),
    ],
)
def test_a_delay_is_honored_up_to_an_hour(text: str, seconds: int) -> None:
    assert delay_of({"retry-after": text, "date": DATE}) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "0", "000", "-1", "+5", "1.5", "1e3", "soon", "٣", "²", DATE, "Wed, 21 Oct 2015 07:27:59 GMT", "31 Feb"],
)
def test_without_a_usable_delay_the_handlers_backoff_decides(text: str) -> None:
    assert delay_of({"retry-after": text, "date": DATE}) is None


def test_without_a_header_the_handlers_backoff_decides() -> None:
    assert delay_of({}) is None


def test_a_date_is_compared_with_this_machines_clock_if_the_receiver_names_no_time() -> None:
    at = datetime.now(UTC) + timedelta(minutes=10)
    for others in ({}, {"date": "nonsense"}):
        delay = delay_of({"retry-after": at.strftime("%a, %d %b %Y %H:%M:%S GMT"), **others})
        assert delay is not None
        assert timedelta(minutes=9) < delay <= timedelta(minutes=10)


@given(st.text(), st.text())
def test_no_header_can_cause_an_error_or_a_long_delay(text: str, date: str) -> None:
    delay = delay_of({"retry-after": text, "date": date})
    assert delay is None or timedelta(0) < delay <= LONGEST
