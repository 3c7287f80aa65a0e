"""Every variable of the worker: its default, and the Holdfast setting that it becomes.

The effects of these settings are tested in test_worker_ticks.py, test_worker_outbox.py and test_modes.py.
"""

from datetime import timedelta

import pytest

from apps.invoicing.jobs import RENDER_PDF, SEND_EMAIL, SNAPSHOT_TAX
from apps.invoicing.settings import Misconfigured, Settings
from apps.invoicing.tools import Tools
from apps.invoicing.worker import build_app
from holdfast import Holdfast
from holdfast.backoff import exponential

URL = "postgresql://nobody@127.0.0.1/nothing"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setenv("DATABASE_URL", URL)


def built() -> Holdfast:
    settings = Settings.load()
    return build_app(settings, Tools(settings))


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


DEFAULTS = {
    "runners": ("queue", "invoiceReminders", "classesBilling", "maintenance"),
    "tick_max": seconds(480),
    "runner_max": seconds(60),
    "runner_items": 200,
    "shard_index": None,
    "shard_count": None,
    "busy_delay": seconds(0.25),
    "idle_backoff_min": seconds(1),
    "idle_backoff_max": seconds(30),
    "poll": seconds(30),
    "idle_backoff_jitter": seconds(0.5),
    "error_backoff_min": seconds(30),
    "error_backoff_max": seconds(30),
    "error_backoff_jitter": seconds(2),
    "shutdown": seconds(30),
    "claim_max": 50,
    "concurrency": 10,
    "lease": seconds(60),
    "renew": seconds(15),
}


def test_without_variables_every_setting_has_its_documented_default() -> None:
    settings = built().settings
    assert {name: getattr(settings, name) for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("variables", "changed"),
    [
        ({"WORKER_TICK_RUNNERS": "classesBilling,outbox"}, {"runners": ("classesBilling", "queue", "maintenance")}),
        ({"WORKER_TICK_OVERALL_MAX_MS": "90000"}, {"tick_max": seconds(90)}),
        ({"WORKER_TICK_RUNNER_MAX_MS": "2000"}, {"runner_max": seconds(2)}),
        ({"WORKER_TICK_RUNNER_MAX_ITEMS": "7"}, {"runner_items": 7}),
        (
            {"WORKER_TICK_SHARD_INDEX": "1", "WORKER_TICK_SHARD_COUNT": "3"},
            {"shard_index": 1, "shard_count": 3},
        ),
        ({"WORKER_BUSY_LOOP_DELAY_MS": "10"}, {"busy_delay": seconds(0.01)}),
        ({"WORKER_IDLE_BACKOFF_MIN_MS": "100"}, {"idle_backoff_min": seconds(0.1)}),
        ({"WORKER_IDLE_BACKOFF_MAX_MS": "60000"}, {"idle_backoff_max": seconds(60), "poll": seconds(60)}),
        ({"WORKER_IDLE_BACKOFF_JITTER_MS": "0"}, {"idle_backoff_jitter": seconds(0)}),
        (
            {"WORKER_TICK_LOOP_ERROR_BACKOFF_MS": "100"},
            {"error_backoff_min": seconds(0.1), "error_backoff_max": seconds(0.1)},
        ),
        ({"WORKER_TICK_LOOP_MAX_JITTER_MS": "5"}, {"error_backoff_jitter": seconds(0.005)}),
        ({"WORKER_SHUTDOWN_TIMEOUT_MS": "500"}, {"shutdown": seconds(0.5)}),
        ({"OUTBOX_BATCH_SIZE": "5"}, {"claim_max": 5}),
        ({"OUTBOX_CONCURRENCY": "3"}, {"concurrency": 3}),
        ({"OUTBOX_LEASE_DURATION_MS": "40000"}, {"lease": seconds(40)}),
        ({"OUTBOX_LEASE_HEARTBEAT_MS": "1000"}, {"renew": seconds(1)}),
    ],
)
def test_each_variable_changes_only_its_setting(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], changed: dict[str, object]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = built().settings
    different = {name: getattr(settings, name) for name in DEFAULTS if getattr(settings, name) != DEFAULTS[name]}
    assert different == changed


@pytest.mark.parametrize("kind", [RENDER_PDF.name, SEND_EMAIL.name, SNAPSHOT_TAX.name])
def test_every_handler_is_retried_as_the_variables_say(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    handler = built().handlers[kind]
    assert (handler.attempts, handler.backoff) == (3, exponential("5s", "120s", "500ms"))
    monkeypatch.setenv("OUTBOX_MAX_ATTEMPTS", "9")
    monkeypatch.setenv("OUTBOX_RETRY_BASE_MS", "10")
    monkeypatch.setenv("OUTBOX_RETRY_MAX_MS", "3000")
    monkeypatch.setenv("OUTBOX_RETRY_JITTER_MS", "1")
    handler = built().handlers[kind]
    assert (handler.attempts, handler.backoff) == (9, exponential("10ms", "3s", "1ms"))


def test_rendering_has_a_separate_limit_and_mails_leave_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {handler.kind: handler.limit for handler in built().handlers} == {
        RENDER_PDF.name: 2,
        SEND_EMAIL.name: 9,
        SNAPSHOT_TAX.name: None,
    }
    monkeypatch.setenv("PDF_RENDER_CONCURRENCY", "4")
    assert built().handlers[RENDER_PDF.name].limit == 4


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OUTBOX_LEASE_DURATION_MS", "400"),
        ("WORKER_IDLE_BACKOFF_MAX_MS", "5"),
        ("OUTBOX_CONCURRENCY", "1000000"),
        ("DATABASE_URL", "mysql://host/database"),
    ],
)
def test_a_setting_that_holdfast_refuses_is_reported_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv("OUTBOX_LEASE_HEARTBEAT_MS", "100")
    monkeypatch.setenv("WORKER_IDLE_BACKOFF_MIN_MS", "5")
    monkeypatch.setenv(variable, value)
    with pytest.raises(Misconfigured, match=f"^{variable}: "):
        built()
