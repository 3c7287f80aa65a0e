"""The wrong clock: only the wall clock is wrong, and only in one process."""

import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from holdfast_lab.faults.wrong_clock import shift_at

_LOOK = """
from holdfast_lab.faults.wrong_clock import make_wrong
make_wrong(-3600.0, 0.0)
import time
from datetime import UTC, datetime
from uuid_utils.compat import uuid7
assert type(datetime.fromisoformat("2026-01-01")) is type(datetime.now()) is type(datetime(2026, 1, 1))
assert isinstance(datetime.now(), datetime)
print(time.time(), time.time_ns() / 1e9, datetime.now(UTC).timestamp(), (uuid7().int >> 80) / 1000, time.monotonic())
"""


def test_every_wall_clock_is_wrong_and_the_monotonic_clock_is_not() -> None:
    before, monotonic = datetime.now(UTC).timestamp(), time.monotonic()
    done = subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, text=True, check=True, timeout=60)
    *wrong, right = (float(number) for number in done.stdout.split())
    after = datetime.now(UTC).timestamp()
    assert [before - 0.1 <= moment + 3600 <= after + 0.1 for moment in wrong] == [True] * 4
    assert monotonic <= right <= time.monotonic()


@pytest.mark.parametrize(
    ("moment", "jump_every", "shift"),
    [(0.0, 0.0, 60.0), (9.9, 0.0, 60.0), (0.4, 0.5, 60.0), (0.6, 0.5, -60.0), (1.1, 0.5, 60.0)],
)
def test_a_clock_that_jumps_goes_back_and_forth(moment: float, jump_every: float, shift: float) -> None:
    assert shift_at(moment, 60.0, jump_every) == shift
