"""What a look at everything costs, decided by the test and not by the machine."""

import pytest

from holdfast.store.postgres import lanes


def looks_are(price: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dear` or `cheap`, from the first one on."""
    monkeypatch.setattr(lanes, "_CHEAP_SECONDS", {"dear": -1.0, "cheap": float("inf")}[price])
    monkeypatch.setattr(lanes, "_LOOKS_COMPARED", 1)
    monkeypatch.setattr(lanes, "_SECONDS_PER_CLAIMED_JOB", 0.0)
