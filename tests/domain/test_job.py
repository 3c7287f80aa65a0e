"""What can be enqueued: all invalid input is refused before a transaction begins, in one line."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import InvalidInput
from holdfast.domain.handlers import Handlers
from holdfast.domain.job import IfExists, Job, JobError, JobState, NewJob, check_attempts, check_name
from holdfast.domain.json_text import Json
from holdfast.events.subscriptions import Subscribed
from holdfast.producer.new_events import new_event
from holdfast.producer.new_jobs import new_job
from tests.domain.answers import answer

AT = datetime(2030, 1, 1, tzinfo=UTC)


def new(**options: Any) -> NewJob:  # noqa: ANN401 - these tests pass wrong types
    return NewJob(**{"kind": "work", "payload": Json("{}"), **options})


def test_a_kind_and_a_payload_are_enough() -> None:
    job = new()
    assert (job.queue, job.priority, job.tenant, job.delay, job.run_at) == ("default", 5, "", None, None)
    assert (job.max_attempts, job.key, job.headers, job.correlation_id) == (None, None, None, str(job.id))


def test_the_correlation_id_defaults_to_the_id_of_the_job() -> None:
    assert new(id=UUID(int=7)).correlation_id == str(UUID(int=7))
    assert new(id=UUID(int=7), correlation_id="order-5").correlation_id == "order-5"


def test_ids_are_version_7_and_increase() -> None:
    ids = [new().id for _ in range(1000)]
    assert all(isinstance(id, UUID) and id.version == 7 for id in ids)
    assert ids == sorted(set(ids))


def test_durations_and_times_are_normalized() -> None:
    assert new(delay="5m").delay == timedelta(minutes=5)
    assert new(key="k", window="5m").window == timedelta(minutes=5)
    assert new(key="k", if_exists="replace").if_exists is IfExists.REPLACE
    in_tokyo = datetime.fromisoformat("2030-01-01T09:00:00+09:00")
    run_at = new(run_at=in_tokyo).run_at
    assert (run_at, run_at and run_at.tzinfo) == (AT, UTC)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"id": "abc"}, "id: 'abc' is not a UUID; pass a uuid.UUID"),
        ({"id": None}, "id: None is not a UUID; pass a uuid.UUID"),
        ({"kind": ""}, "kind: is empty; give it at least one character"),
        ({"kind": 5}, "kind: 5 is not text"),
        ({"kind": "x" * 201}, "kind: 201 characters are over the limit of 200"),
        ({"kind": "a\nb"}, "kind: 'a\\nb' contains a control character or another unprintable character"),
        ({"kind": "a\0"}, "kind: 'a\\x00' contains a control character or another unprintable character"),
        ({"kind": "\ud800"}, "kind: '\\ud800' contains a control character or another unprintable character"),
        ({"queue": ""}, "queue: is empty; give it at least one character"),
        ({"queue": None}, "queue: None is not text"),
        ({"queue": "x" * 101}, "queue: 101 characters are over the limit of 100"),
        ({"queue": "\t"}, "queue: '\\t' contains a control character or another unprintable character"),
        ({"tenant": "x" * 201}, "tenant: 201 characters are over the limit of 200"),
        ({"tenant": 5}, "tenant: 5 is not text"),
        ({"tenant": "\x7f"}, "tenant: '\\x7f' contains a control character or another unprintable character"),
        ({"correlation_id": "x" * 201}, "correlation_id: 201 characters are over the limit of 200"),
        ({"key": ""}, "key: is empty; give it at least one character"),
        ({"key": 5}, "key: 5 is not text"),
        ({"key": "x" * 501}, "key: 501 characters are over the limit of 500"),
        ({"key": "\u200b"}, "key: '\\u200b' contains a control character or another unprintable character"),
        (
            {"key": "\U0001f600" * 500, "tenant": "\U0001f600" * 200},
            "key: 2,804 bytes with its tenant and kind are over the limit of 2,500",
        ),
        ({"key": "k", "if_exists": "update"}, "if_exists: 'update' is not known; use keep, keep_live or replace"),
        ({"key": "k", "if_exists": None}, "if_exists: None is not known; use keep, keep_live or replace"),
        ({"if_exists": "replace"}, 'if_exists="replace" needs a key; give one with key='),
        ({"if_exists": "keep_live"}, 'if_exists="keep_live" needs a key; give one with key='),
        ({"window": "5m"}, "window needs a key; give one with key="),
        (
            {"key": "k", "window": "0s"},
            "window: is zero; give the time for which to hold the key, or leave it out",
        ),
        ({"key": "k", "window": 5}, 'window: 5 is not a duration; write it like "90s" or "5m", or pass a timedelta'),
        ({"key": "k", "window": "5m", "if_exists": "replace"}, 'give if_exists="replace" or a window, not both'),
        ({"key": "k", "window": "5m", "if_exists": "keep_live"}, 'give if_exists="keep_live" or a window, not both'),
        ({"payload": {"a": 1}}, "payload: dict is not JSON text; app.job() converts any value"),
        ({"payload": b"1"}, "payload: bytes is not JSON text; app.job() converts any value"),
        ({"payload": None}, "payload: NoneType is not JSON text; app.job() converts any value"),
        ({"headers": {"a": 1}}, "headers: dict is not JSON text; app.job() converts any value"),
        ({"priority": -1}, "priority: -1 is not a number from 0 (most urgent) to 9"),
        ({"priority": 10}, "priority: 10 is not a number from 0 (most urgent) to 9"),
        ({"priority": 5.0}, "priority: 5.0 is not a number from 0 (most urgent) to 9"),
        ({"priority": True}, "priority: True is not a number from 0 (most urgent) to 9"),
        ({"priority": "high"}, "priority: 'high' is not a number from 0 (most urgent) to 9"),
        ({"priority": None}, "priority: None is not a number from 0 (most urgent) to 9"),
        ({"max_attempts": 0}, "attempts: 0 is not a number from 1 to 1000"),
        ({"max_attempts": 1001}, "attempts: 1001 is not a number from 1 to 1000"),
        ({"max_attempts": True}, "attempts: True is not a number from 1 to 1000"),
        ({"max_attempts": "3"}, "attempts: '3' is not a number from 1 to 1000"),
        ({"delay": timedelta(0), "run_at": AT}, "give a delay or a run_at, not both"),
        ({"delay": timedelta(seconds=-1)}, f"delay: {timedelta(seconds=-1)!r} is negative; a duration is zero or more"),
        ({"delay": timedelta(days=36_501)}, f"delay: {timedelta(days=36_501)!r} is longer than a hundred years"),
        ({"delay": 5}, 'delay: 5 is not a duration; write it like "90s" or "5m", or pass a timedelta'),
        ({"run_at": "soon"}, "run_at: 'soon' is not a datetime"),
        (
            {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001
            "run_at: 2030-01-01T00:00:00 has no time zone; use datetime.now(UTC) or add tzinfo",
        ),
        (
            {"run_at": datetime.max.replace(tzinfo=UTC)},
            "run_at: 9999-12-31T23:59:59.999999+00:00 is not before the year 9999",
        ),
    ],
)
def test_an_invalid_job_is_refused_in_one_line(options: dict[str, object], line: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        new(**options)
    assert str(refused.value) == line


class Unshown:
    def __repr__(self) -> str:
        raise RuntimeError("not even this")


class ManyLines:
    def __repr__(self) -> str:
        return "a\n" * 1_000_000


@pytest.mark.parametrize(
    "value", [Unshown(), ManyLines(), 10**5000, [10**5000], b"\xff"], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize(
    "option",
    [
        "id",
        "kind",
        "queue",
        "tenant",
        "key",
        "correlation_id",
        "priority",
        "max_attempts",
        "delay",
        "run_at",
        "if_exists",
    ],
)
def test_a_value_that_cannot_be_shown_is_refused_in_one_line_too(option: str, value: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        new(**{option: value})
    assert str(refused.value).startswith(f"{option.removeprefix('max_')}: ")
    assert len(str(refused.value)) < 1_000
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("value", [0, False, 0.0, b"", [], {}])
@pytest.mark.parametrize("option", ["tenant", "correlation_id"])
def test_only_empty_text_counts_as_an_empty_name(option: str, value: object) -> None:
    for key in (None, "k"):
        with pytest.raises(InvalidInput, match=f"^{option}: .* is not text$"):
            new(key=key, **{option: value})
        with pytest.raises(InvalidInput, match=f"^{option}: .* is not text$"):
            new_job(Handlers(), "work", key=key, **{option: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=f"^{option}: .* is not text$"):
        new_event(Handlers(), Subscribed(), "work.done", **{option: value})  # type: ignore[arg-type]


def test_names_can_be_as_long_as_their_limit_and_in_any_script() -> None:
    job = new(kind="ü" * 200, queue="日" * 100, tenant="x" * 200, key="x" * 500, correlation_id="x" * 200)
    assert (len(job.kind), len(job.queue)) == (200, 100)


@given(st.text())
def test_every_accepted_name_can_be_shown_and_stored(text: str) -> None:
    name, line = answer(lambda: check_name("kind", text))
    if name is None:
        assert "\n" not in line
    else:
        assert text.isprintable()
        assert "\0" not in text
        text.encode()


def test_attempts_range_from_one_to_a_thousand() -> None:
    assert [check_attempts(1), check_attempts(1000)] == [1, 1000]


def test_as_dict_gives_json_as_values_and_times_as_text() -> None:
    id = uuid4()
    job = Job.read(
        id=id,
        kind="work",
        queue="default",
        priority=5,
        state=JobState.FAILED,
        payload=Json('{"a":1}'),
        headers=None,
        tenant="",
        correlation_id="c",
        key=None,
        attempt=1,
        losses=0,
        max_attempts=None,
        created_at=AT,
        holder=id,
        result=Json("null"),
        errors=(Json('{"code":"X"}'),),
    )
    shown = job.as_dict()
    assert list(shown) == list(Job.__slots__)
    assert (shown["id"], shown["holder"], shown["payload"]) == (str(id), str(id), {"a": 1})
    assert (shown["created_at"], shown["state"], shown["errors"]) == (AT.isoformat(), "failed", [{"code": "X"}])
    assert (shown["result"], shown["headers"], shown["finished_at"]) == (None, None, None)


def test_final_states_and_dead_letters() -> None:
    assert [state for state in JobState if not state.is_final] == ["ready", "running"]
    assert [state for state in JobState if state.is_dead_letter] == ["failed", "dead"]


def test_as_dict_gives_every_part_of_an_error() -> None:
    assert JobError(code="X").as_dict() == {"code": "X", "type": "", "message": "", "traceback": ""}
