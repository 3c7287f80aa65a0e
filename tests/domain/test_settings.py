"""Settings: wrong, misspelled or contradictory values are refused in one line that names the variable."""

import os
from datetime import timedelta

import pytest

from holdfast.domain.errors import InvalidInput
from holdfast.settings import GROUPS, Settings, variable

SECRET = "opensesame"

REFUSED = {
    "renewal above half the lease": (
        {"LEASE": "30s", "RENEW": "16s"},
        "(16s) is more than half of HOLDFAST_LEASE (30s); set HOLDFAST_RENEW to 15s or less, or HOLDFAST_LEASE to 32s",
    ),
    "renewal above half the default lease": ({"RENEW": "20s"}, "HOLDFAST_RENEW (20s) is more than half of"),
    "no renewal at all": ({"RENEW": "0s"}, "HOLDFAST_RENEW: shorter than 1ms"),
    "lease": ({"LEASE": "400ms"}, "HOLDFAST_LEASE: shorter than 500ms; a worker could not renew it in time"),
    "index without count": ({"SHARD_INDEX": "1"}, "HOLDFAST_SHARD_COUNT is not set; set both or neither"),
    "count without index": (
        {"SHARD_COUNT": "3"},
        "HOLDFAST_SHARD_INDEX is not set; set it from 0 to 2, or set neither",
    ),
    "index beyond count": (
        {"SHARD_INDEX": "3", "SHARD_COUNT": "3"},
        "HOLDFAST_SHARD_INDEX is 3, but HOLDFAST_SHARD_COUNT is 3; the index goes from 0 to 2",
    ),
    "negative index": ({"SHARD_INDEX": "-1", "SHARD_COUNT": "3"}, "HOLDFAST_SHARD_INDEX: -1 is less than 0"),
    "no shards": ({"SHARD_INDEX": "0", "SHARD_COUNT": "0"}, "HOLDFAST_SHARD_COUNT: 0 is not a number from 1 to 10000"),
    "too many shards": ({"SHARD_INDEX": "0", "SHARD_COUNT": "10001"}, "HOLDFAST_SHARD_COUNT: 10001 is not a number"),
    "store": ({"STORE": f"mysql://me:{SECRET}@host"}, "HOLDFAST_STORE: 'mysql' is not known; use postgresql://"),
    "schema": ({"SCHEMA": "pg_x"}, "HOLDFAST_SCHEMA: 'pg_x' is not usable"),
    "idle minimum above the poll": (
        {"IDLE_BACKOFF_MIN": "2s"},
        "HOLDFAST_IDLE_BACKOFF_MIN (2s) is more than HOLDFAST_POLL (1s, the default); lower one or raise the other",
    ),
    "poll above the idle maximum": (
        {"IDLE_BACKOFF_MAX": "500ms"},
        "HOLDFAST_POLL (1s, the default) is more than HOLDFAST_IDLE_BACKOFF_MAX (500ms); lower",
    ),
    "no idle minimum": ({"IDLE_BACKOFF_MIN": "0s"}, "HOLDFAST_IDLE_BACKOFF_MIN: shorter than 1ms"),
    "error minimum above its maximum": (
        {"ERROR_BACKOFF_MIN": "3s", "ERROR_BACKOFF_MAX": "2s"},
        "HOLDFAST_ERROR_BACKOFF_MIN (3s) is more than HOLDFAST_ERROR_BACKOFF_MAX (2s)",
    ),
    "a runner longer than its tick": (
        {"RUNNER_MAX": "10m"},
        "HOLDFAST_RUNNER_MAX (10m) is more than HOLDFAST_TICK_MAX (8m, the default)",
    ),
    "runner without time": ({"RUNNER_MAX": "0s"}, "HOLDFAST_RUNNER_MAX: shorter than 1ms"),
    "runner items": ({"RUNNER_ITEMS": "0"}, "HOLDFAST_RUNNER_ITEMS: 0 is less than 1"),
    "no concurrency": ({"CONCURRENCY": "0"}, "HOLDFAST_CONCURRENCY: 0 is not a number from 1 to 10000"),
    "too much concurrency": ({"CONCURRENCY": "10001"}, "HOLDFAST_CONCURRENCY: 10001 is not a number from 1"),
    "concurrency in words": ({"CONCURRENCY": "many"}, "HOLDFAST_CONCURRENCY: 'many' is not a whole number"),
    "look-ahead": ({"MOST_AHEAD": "-1"}, "HOLDFAST_MOST_AHEAD: -1 is less than 0"),
    "claims of nothing": ({"CLAIM_MAX": "0"}, "HOLDFAST_CLAIM_MAX: 0 is less than 1"),
    "poll": ({"POLL": "9ms"}, "HOLDFAST_POLL: shorter than 10ms"),
    "poll without a unit": ({"POLL": "5"}, "HOLDFAST_POLL: '5' is not a duration"),
    "negative wait": ({"BUSY_DELAY": "-1s"}, "HOLDFAST_BUSY_DELAY: '-1s' is negative"),
    "yes or no": ({"LISTEN": "perhaps"}, "HOLDFAST_LISTEN: 'perhaps' is not true or false"),
    "health port": ({"HEALTH_PORT": "65536"}, "HOLDFAST_HEALTH_PORT: 65536 is not a number from 1 to 65535"),
    "health port 0": ({"HEALTH_PORT": "0"}, "HOLDFAST_HEALTH_PORT: 0 is not a number from 1"),
    "health port of Kubernetes": ({"HEALTH_PORT": "tcp://10.0.0.1:80"}, "set enableServiceLinks: false"),
    "health host": ({"HEALTH_HOST": " "}, "HOLDFAST_HEALTH_HOST: is empty"),
    "a broker's health without a broker": ({"HEALTH_BROKER": "true"}, "set HOLDFAST_RABBITMQ_URL, or turn"),
    "listener": ({"LISTEN_URL": f"mysql://me:{SECRET}@host/shop"}, "HOLDFAST_LISTEN_URL: is not an address"),
    "listener's port": ({"LISTEN_URL": f"postgresql://me:{SECRET}@host:port/shop"}, "HOLDFAST_LISTEN_URL: is not"),
    "broker": ({"RABBITMQ_URL": f"http://me:{SECRET}@host"}, "HOLDFAST_RABBITMQ_URL: is not an address; write amqp://"),
    "exchange": ({"RABBITMQ_EXCHANGE": " "}, "HOLDFAST_RABBITMQ_EXCHANGE: is empty"),
    "routing key": ({"RABBITMQ_ROUTING_KEY": " "}, "HOLDFAST_RABBITMQ_ROUTING_KEY: is empty"),
    "retention": ({"RETENTION": "59m"}, "HOLDFAST_RETENTION: shorter than 1h; keys and late replies depend on"),
    "dead letters": ({"DEAD_LETTER_RETENTION": "0s"}, "HOLDFAST_DEAD_LETTER_RETENTION: shorter than 1h; people"),
    "runs": ({"RUN_RETENTION": "0s"}, "HOLDFAST_RUN_RETENTION: shorter than 1h; people"),
    "queue": ({"QUEUES": "q" * 101}, "HOLDFAST_QUEUES: 101 characters are over the limit of 100"),
    "replica": ({"REPLICA": "a\nb"}, "HOLDFAST_REPLICA: 'a\\nb' contains a control character"),
    "replica that is no text": ({"REPLICA": "\udcff"}, "HOLDFAST_REPLICA: '\\udcff' contains a control character"),
    "long replica": ({"REPLICA": "r" * 201}, "HOLDFAST_REPLICA: 201 characters are over the limit of 200"),
    "exchange that is no text": ({"RABBITMQ_EXCHANGE": "\udcff"}, "HOLDFAST_RABBITMQ_EXCHANGE: '\\udcff' contains"),
    "long routing key": ({"RABBITMQ_ROUTING_KEY": "ü" * 128}, "HOLDFAST_RABBITMQ_ROUTING_KEY: 256 bytes are over"),
    "host of two lines": ({"HEALTH_HOST": "a\nb"}, "HOLDFAST_HEALTH_HOST: 'a\\nb' contains a control character"),
    "very long": ({"POLL": "9" * 100_000}, " is not a duration; write it like"),
    "a name of two lines": ({"A\nB": "1"}, "HOLDFAST_A B is not a setting; `holdfast settings` lists"),
    "a typo": ({"CONCURENCY": "8"}, "HOLDFAST_CONCURENCY is not a setting; did you mean HOLDFAST_CONCURRENCY?"),
    "the field's name": ({"DB_SCHEMA": "jobs"}, "HOLDFAST_DB_SCHEMA is not a setting; did you mean HOLDFAST_SCHEMA?"),
    "nothing alike": ({"QWXYZ": "8"}, "HOLDFAST_QWXYZ is not a setting; `holdfast settings` lists all settings"),
}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HOLDFAST_"):
            monkeypatch.delenv(name)


def set_all(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"HOLDFAST_{name}", value)


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_setting_is_refused_in_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    values, expected = REFUSED[case]
    set_all(monkeypatch, values)
    with pytest.raises(InvalidInput) as refused:
        Settings.load()
    assert expected in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) <= 1_000
    causes = [refused.value, refused.value.__cause__, refused.value.__context__]
    assert SECRET not in "".join(str(cause) for cause in causes)


def test_the_defaults_are_valid() -> None:
    settings = Settings.load()
    assert settings.model_fields_set == set()
    assert settings.idle_backoff_min == timedelta(milliseconds=20)
    assert settings.error_backoff_min == timedelta(milliseconds=100)


@pytest.mark.parametrize(
    "values",
    [
        {"LEASE": "60s", "RENEW": "30s"},
        {"LEASE": "500ms"},
        {"SHARD_INDEX": "2", "SHARD_COUNT": "3"},
        {"IDLE_BACKOFF_MIN": "1s", "POLL": "1s"},
        {"RUNNER_MAX": "8m"},
        {"CONCURRENCY": "10000", "HEALTH_PORT": "65535"},
        {"RABBITMQ_URL": "amqps://me@host/vhost", "HEALTH_BROKER": "1"},
        {"LISTEN_URL": "postgres://host/shop"},
        {"POLL": ""},
        {"SHARD_INDEX": "9999", "SHARD_COUNT": "10000"},
        {"STORE": "postgres://host/shop", "SCHEMA": "Jobs of-today"},
        {"STORE": "embedded:/folder?version=18"},
        {"STORE": "memory:"},
    ],
    ids=str,
)
def test_values_at_the_edge_of_the_allowed_range_are_accepted(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str]
) -> None:
    set_all(monkeypatch, values)
    Settings.load()


def test_a_default_minimum_adapts_to_a_smaller_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"POLL": "15ms", "ERROR_BACKOFF_MAX": "50ms"})
    settings = Settings.load()
    assert settings.idle_backoff_min == timedelta(milliseconds=15)
    assert settings.error_backoff_min == timedelta(milliseconds=50)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOLDFAST_TEST_ANYTHING", "1"),
        ("HOLDFAST_BENCH_URL", "postgresql://host/x"),
        ("HOLDFAST_HOME", "/somewhere"),
        ("HOLDFAST_SERVICE_HOST", "10.0.0.1"),
        ("HOLDFAST_SERVICE_PORT_HTTP", "80"),
        ("HOLDFAST_PORT", "tcp://10.0.0.1:80"),
        ("HOLDFAST_API_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("HOLDFASTISH", "1"),
    ],
)
def test_variables_not_meant_for_the_settings_are_ignored(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert Settings.load().model_fields_set == set()


def test_settings_in_code_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"SCHEMA": "one", "STORE": "memory:"})
    settings = Settings.load(db_schema="two", store=None)
    assert (settings.db_schema, settings.store) == ("two", "memory:")


def test_changes_are_checked_together_with_existing_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"RENEW": "10s", "CONCURRENCY": "7"})
    settings = Settings.load()
    assert settings.changed(lease=timedelta(seconds=20), poll=None).lease == timedelta(seconds=20)
    assert settings.changed(lease=timedelta(seconds=20)).concurrency == 7
    with pytest.raises(InvalidInput, match=r"^HOLDFAST_RENEW \(10s\) is more than half of lease \(19s\); set"):
        settings.changed(lease=timedelta(seconds=19))
    with pytest.raises(InvalidInput, match=r"^concurrency: 0 is not a number from 1 to 10000$"):
        settings.changed(concurrency=0)


def test_errors_use_the_callers_name_for_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"RENEW": "10s"})
    called = {"lease": "--lease", "tick_max": "--max-time", "runner_max": "--runner-max-time"}
    settings = Settings.load()
    with pytest.raises(InvalidInput, match=r"^HOLDFAST_RENEW \(10s\) is more than half of --lease \(19s\)"):
        settings.changed(called=called, lease="19s")
    with pytest.raises(InvalidInput, match=r"^--max-time: '5' is not a duration"):
        settings.changed(called=called, tick_max="5")
    with pytest.raises(InvalidInput, match=r"^--runner-max-time \(9m\) is more than HOLDFAST_TICK_MAX \(8m, the def"):
        settings.changed(called=called, runner_max="9m")


def test_a_changed_poll_still_moves_the_default_minimum() -> None:
    assert Settings.load().changed(poll=timedelta(milliseconds=10)).idle_backoff_min == timedelta(milliseconds=10)


def test_every_setting_has_a_description_and_a_group() -> None:
    fields = list(Settings.model_fields)
    assert fields[0] in GROUPS
    assert set(GROUPS) <= set(fields)
    assert all(Settings.model_fields[name].description for name in fields)
    assert len({variable(name) for name in fields}) == len(fields)
