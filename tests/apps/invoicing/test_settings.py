"""Each worker variable in the tables: name, default and valid values. test_worker_variables.py tests the effects."""

import pytest

from apps.invoicing.settings import LOCKS, Misconfigured, Settings, milliseconds

# Exactly as the tables have them.
DEFAULTS = {
    "WORKER_TICK_RUNNERS": "outbox,invoiceReminders,classesBilling",
    "WORKER_TICK_OVERALL_MAX_MS": "480000",
    "WORKER_TICK_RUNNER_MAX_MS": "60000",
    "WORKER_TICK_RUNNER_MAX_ITEMS": "200",
    "WORKER_TICK_SHARD_INDEX": "unset",
    "WORKER_TICK_SHARD_COUNT": "unset",
    "WORKER_BUSY_LOOP_DELAY_MS": "250",
    "WORKER_IDLE_BACKOFF_MIN_MS": "1000",
    "WORKER_IDLE_BACKOFF_MAX_MS": "30000",
    "WORKER_IDLE_BACKOFF_JITTER_MS": "500",
    "WORKER_TICK_LOOP_ERROR_BACKOFF_MS": "30000",
    "WORKER_TICK_LOOP_MAX_JITTER_MS": "2000",
    "WORKER_SHUTDOWN_TIMEOUT_MS": "30000",
    "OUTBOX_BATCH_SIZE": "50",
    "OUTBOX_CONCURRENCY": "10",
    "PDF_RENDER_CONCURRENCY": "2",
    "OUTBOX_LEASE_DURATION_MS": "60000",
    "OUTBOX_LEASE_HEARTBEAT_MS": "15000",
    "OUTBOX_MAX_ATTEMPTS": "3",
    "OUTBOX_RETRY_BASE_MS": "5000",
    "OUTBOX_RETRY_MAX_MS": "120000",
    "OUTBOX_RETRY_JITTER_MS": "500",
    "WORKER_API_BASE_URL": "unset",
    "WORKER_API_SERVICE_TOKEN": "unset",
}
# Values that are valid together with the defaults of all other variables.
OTHERS = DEFAULTS | {
    "WORKER_TICK_RUNNERS": "classesBilling,outbox",
    "WORKER_TICK_SHARD_INDEX": "1",
    "WORKER_TICK_SHARD_COUNT": "3",
    "WORKER_API_BASE_URL": "https://api.example",
    "WORKER_API_SERVICE_TOKEN": "a-service-token-of-these-tests",
}
NUMBERS = [name for name, value in DEFAULTS.items() if value.isdigit()]
OTHER_NUMBERS = [
    "WORKER_TICK_SHARD_INDEX",
    "WORKER_TICK_SHARD_COUNT",
    "DOWNLOAD_LINK_TTL_MS",
    "API_PORT",
    "WORKER_METRICS_PORT",
]
ZERO_ALLOWED = {
    "WORKER_BUSY_LOOP_DELAY_MS",
    "WORKER_IDLE_BACKOFF_JITTER_MS",
    "WORKER_TICK_LOOP_MAX_JITTER_MS",
    "WORKER_SHUTDOWN_TIMEOUT_MS",
    "OUTBOX_RETRY_JITTER_MS",
}


def text_of(settings: Settings, name: str) -> str:
    value = getattr(settings, name.lower())
    if value is None:
        return "unset"
    return ",".join(value) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_default(name: str) -> None:
    assert text_of(Settings.load(), name) == DEFAULTS[name]


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_variable_of_that_name_changes_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = str(int(OTHERS[name]) - 1) if name in NUMBERS else OTHERS[name]
    if name.startswith("WORKER_TICK_SHARD"):
        monkeypatch.setenv("WORKER_TICK_SHARD_INDEX", "1")
        monkeypatch.setenv("WORKER_TICK_SHARD_COUNT", "3")
    monkeypatch.setenv(name, value)
    assert text_of(Settings.load(), name) == value != DEFAULTS[name]


@pytest.mark.parametrize("name", DEFAULTS)
def test_empty_counts_as_unset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "")
    assert text_of(Settings.load(), name) == DEFAULTS[name]


@pytest.mark.parametrize("name", NUMBERS)
def test_an_invalid_number_is_refused_in_one_line_that_names_the_variable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ("-1", "1.5", "soon", *(() if name in ZERO_ALLOWED else ("0",))):
        monkeypatch.setenv(name, wrong)
        with pytest.raises(Misconfigured, match=f"^{name}: [^\n]+$"):
            Settings.load()


@pytest.mark.parametrize("name", [*NUMBERS, *OTHER_NUMBERS])
@pytest.mark.parametrize("huge", ["1000000000000", "99999999999999999999", "9" * 5000], ids=len)
def test_a_number_out_of_range_is_refused(name: str, huge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, huge)
    with pytest.raises(Misconfigured, match=f"^{name}: [^\n]{{1,200}}$"):
        Settings.load()


@pytest.mark.parametrize("name", sorted(ZERO_ALLOWED))
def test_zero_means_no_delay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "0")
    assert text_of(Settings.load(), name) == "0"


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"WORKER_TICK_RUNNERS": "outbox,mail"}, "'mail' is not a runner"),
        ({"WORKER_TICK_RUNNERS": "outbox,outbox"}, "given twice"),
        ({"WORKER_TICK_RUNNERS": "outbox,,classesBilling"}, "'' is not a runner"),
        ({"WORKER_TICK_SHARD_INDEX": "0"}, "set both or neither"),
        ({"WORKER_TICK_SHARD_COUNT": "2"}, "set both or neither"),
        ({"WORKER_API_BASE_URL": "api.example"}, "WORKER_API_BASE_URL: write http://"),
        ({"WORKER_API_BASE_URL": "http://"}, "WORKER_API_BASE_URL: write http://"),
        ({"WORKER_API_BASE_URL": "http://[api"}, "WORKER_API_BASE_URL: write http://"),
        ({"WORKER_API_BASE_URL": "http://api:port"}, "WORKER_API_BASE_URL: write http://"),
        ({"API_PORT": "0"}, "API_PORT"),
        ({"DOWNLOAD_LINK_TTL_MS": "0"}, "DOWNLOAD_LINK_TTL_MS"),
    ],
)
def test_contradictory_values_are_refused(
    variables: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Misconfigured, match=named) as refusal:
        Settings.load()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        (
            {"WORKER_TICK_SHARD_INDEX": "2", "WORKER_TICK_SHARD_COUNT": "2"},
            "WORKER_TICK_SHARD_INDEX (2) is not below WORKER_TICK_SHARD_COUNT (2); set it to 1 or less",
        ),
        (
            {"WORKER_IDLE_BACKOFF_MIN_MS": "30001"},
            (
                "WORKER_IDLE_BACKOFF_MIN_MS (30001) is more than WORKER_IDLE_BACKOFF_MAX_MS (30000, the default);"
                " set it to 30000 or less"
            ),
        ),
        (
            {"WORKER_TICK_OVERALL_MAX_MS": "59999"},
            (
                "WORKER_TICK_RUNNER_MAX_MS (60000, the default) is more than WORKER_TICK_OVERALL_MAX_MS (59999);"
                " set it to 59999 or less"
            ),
        ),
        (
            {"OUTBOX_RETRY_BASE_MS": "3", "OUTBOX_RETRY_MAX_MS": "2"},
            "OUTBOX_RETRY_BASE_MS (3) is more than OUTBOX_RETRY_MAX_MS (2); set it to 2 or less",
        ),
        (
            {"OUTBOX_LEASE_DURATION_MS": "10000"},
            (
                "OUTBOX_LEASE_HEARTBEAT_MS (15000, the default) is more than half of OUTBOX_LEASE_DURATION_MS (10000);"
                " set it to 5000 or less"
            ),
        ),
        (
            {"OUTBOX_LEASE_DURATION_MS": "999", "OUTBOX_LEASE_HEARTBEAT_MS": "600"},
            (
                "OUTBOX_LEASE_HEARTBEAT_MS (600) is more than half of OUTBOX_LEASE_DURATION_MS (999);"
                " set it to 499 or less"
            ),
        ),
    ],
)
def test_both_of_two_contradictory_numbers_are_named(
    variables: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Misconfigured) as refusal:
        Settings.load()
    assert str(refusal.value) == told


def test_runners_keep_their_order_and_may_have_spaces_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_TICK_RUNNERS", " classesBilling , outbox ")
    assert Settings.load().worker_tick_runners == ("classesBilling", "outbox")


def test_the_lock_keys_of_the_schedulers() -> None:
    assert LOCKS == {
        "invoiceReminders": "worker:scheduler:invoiceReminders",
        "classesBilling": "worker:scheduler:classesBilling",
    }


def test_secrets_are_not_shown() -> None:
    secrets = {
        "worker_api_service_token": "hush-1-hush-1-hush-1",
        "database_url": "postgresql://app:hush-2@db/app",
        "smtp_url": "smtp://app:hush-3@mail:25",
        "download_link_secret": "hush-4-hush-4-hush-4",
        "files_url": "s3://hush-5",
    }
    settings = Settings.load(**secrets)
    assert "hush" not in repr(settings)
    assert settings.download_link_secret == "hush-4-hush-4-hush-4"


@pytest.mark.parametrize("token", ["hush\n", " hush", "hush ", "hüsh", "hu\x00sh"])
def test_a_token_that_fits_no_header_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(Misconfigured, match=r"^WORKER_API_SERVICE_TOKEN: has characters other") as refused:
        Settings.load(worker_api_service_token=token)
    assert "sh" not in str(refused.value).removeprefix("WORKER_API_SERVICE_TOKEN")


@pytest.mark.parametrize("name", ["DOWNLOAD_LINK_SECRET", "WORKER_API_SERVICE_TOKEN"])
def test_an_easily_guessed_secret_is_refused_and_not_shown(name: str) -> None:
    assert getattr(Settings.load(**{name.lower(): "x" * 16}), name.lower()) == "x" * 16
    for short in ("h", "hush" * 3 + "..."):
        with pytest.raises(Misconfigured, match=rf"^{name}: [^\n]*16 characters") as refusal:
            Settings.load(**{name.lower(): short})
        assert "hush" not in str(refusal.value)


def test_ports_are_local_unless_configured_otherwise() -> None:
    settings = Settings.load()
    assert (settings.api_host, settings.worker_metrics_host) == ("127.0.0.1", "127.0.0.1")


def test_a_number_of_milliseconds() -> None:
    assert milliseconds(1_500).total_seconds() == 1.5
