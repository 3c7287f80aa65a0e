"""Shared by the tests of the testing tools."""

from collections.abc import Iterator

import pytest

from tests.testing import billing


@pytest.fixture
def sent(threads_end: None) -> Iterator[list[str]]:
    """What the handlers of billing.py did."""
    with billing.nothing_sent_before() as sent:
        yield sent
