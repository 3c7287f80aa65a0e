"""Settings given in an app's code: they override the environment, and errors name the keyword."""

import os
from collections.abc import Callable
from datetime import timedelta

import pytest

from holdfast import Holdfast, InvalidInput
from holdfast.settings import GivenSettings, Settings

# mypy must find each of these too, because it reports an unused ignore as an error.
REFUSED: dict[str, tuple[Callable[[], Holdfast], str]] = {
    "a bare number": (
        lambda: Holdfast("memory:", lease=60),  # type: ignore[arg-type]
        "lease: 60 is not a duration; write it like",
    ),
    "a word": (
        lambda: Holdfast("memory:", concurrency="many"),  # type: ignore[arg-type]
        "concurrency: 'many' is not a whole number",
    ),
    "no list": (lambda: Holdfast("memory:", queues=5), "queues: Input should be a valid tuple"),  # type: ignore[arg-type]
    "out of range": (lambda: Holdfast("memory:", health_port=0), "health_port: 0 is not a number from 1 to 65535"),
    "a pair": (
        lambda: Holdfast("memory:", lease="10s", renew="6s"),
        "renew (6s) is more than half of lease (10s); set renew to 5s or less, or lease to 12s",
    ),
    "misspelled": (
        lambda: Holdfast("memory:", concurency=3),  # type: ignore[call-arg]
        "'concurency' is not a setting; did you mean concurrency?",
    ),
    "the variable": (
        lambda: Holdfast("memory:", HOLDFAST_LEASE="60s"),  # type: ignore[call-arg]
        "'HOLDFAST_LEASE' is not a setting; did you mean lease?",
    ),
    "the field of the schema": (
        lambda: Holdfast("memory:", db_schema="jobs"),  # type: ignore[call-arg]
        "'db_schema' is not a setting; did you mean schema?",
    ),
    "an argument of ours": (
        lambda: Holdfast("memory:", called="x"),  # type: ignore[call-arg]
        "'called' is not a setting; the settings are store, schema, concurrency",
    ),
    "an argument of the library's": (
        lambda: Holdfast("memory:", _env_prefix="X_"),  # type: ignore[call-arg]
        "'_env_prefix' is not a setting",
    ),
}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HOLDFAST_"):
            monkeypatch.delenv(name)


def test_code_can_set_every_setting_by_name() -> None:
    assert ["store", "db_schema", *GivenSettings.__annotations__] == list(Settings.model_fields)


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_setting_is_refused_in_one_line_that_names_the_keyword(case: str) -> None:
    make, expected = REFUSED[case]
    with pytest.raises(InvalidInput) as refused:
        make()
    assert str(refused.value).startswith(expected)
    assert len(str(refused.value).splitlines()) == 1


def test_code_overrides_the_environment_setting_by_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LEASE": "50s", "POLL": "7s", "RUNNERS": "queue", "RETENTION": "2h"}.items():
        monkeypatch.setenv(f"HOLDFAST_{name}", value)
    app = Holdfast("memory:", lease="60s", runners=("queue", "sweep"), retention=timedelta(hours=3), poll=None)
    assert app.settings.lease == timedelta(seconds=60)
    assert app.settings.runners == ("queue", "sweep")
    assert app.settings.retention == timedelta(hours=3)
    assert app.settings.poll == timedelta(seconds=7)
    assert app.worker_settings().lease == timedelta(seconds=60)
    assert app.worker_settings(lease="5s", poll=None).lease == timedelta(seconds=5)


def test_code_and_environment_are_checked_together_and_errors_name_both_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_RENEW", "20s")
    with pytest.raises(InvalidInput, match=r"^HOLDFAST_RENEW \(20s\) is more than half of lease \(39s\)"):
        Holdfast("memory:", lease="39s")
    assert Holdfast("memory:", lease="40s").settings.renew == timedelta(seconds=20)


def test_a_setting_from_code_keeps_its_name_when_an_option_contradicts_it() -> None:
    settings = Holdfast("memory:", lease="60s", renew="20s").settings
    with pytest.raises(InvalidInput, match=r"^renew \(20s\) is more than half of --lease \(30s\); set renew to 15s"):
        settings.changed(called={"lease": "--lease"}, lease="30s")


def test_a_misspelled_worker_setting_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^'concurency' is not a setting; did you mean concurrency\?$"):
        Holdfast("memory:").worker_settings(concurency=3)  # type: ignore[call-arg]
