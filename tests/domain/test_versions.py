"""Versions of payloads: how a job carries one, and how older payloads are upgraded."""

from random import Random
from typing import Any

import pytest

from holdfast import Holdfast, InvalidInput
from holdfast.domain.json_text import Json, decode
from holdfast.domain.versions import check_upgrades, upgraded, version_of, wait_for_newer_worker


def add_b(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "b": payload["a"] + 1}


def add_c(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "c": payload["b"] + 1}


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        (None, 1),
        ("{}", 1),
        ('{"other": "holdfast.version"}', 1),
        ('{"holdfast.version": 1}', 1),
        ('{"a": 1, "holdfast.version": 7}', 7),
        ('["holdfast.version"]', 1),
    ],
)
def test_a_job_without_the_header_has_version_1(headers: str | None, version: int) -> None:
    assert version_of(None if headers is None else Json(headers)) == version


@pytest.mark.parametrize("wrong", ['"2"', "0", "-1", "true", "null", "1.5", "10000000"])
def test_an_invalid_version_header_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"^header holdfast\.version: .* is not a version$"):
        version_of(Json(f'{{"holdfast.version": {wrong}}}'))


def test_a_payload_passes_through_every_upgrade_from_its_version() -> None:
    upgrades = {1: add_b, 2: add_c}
    assert decode(upgraded(Json('{"a": 1}'), 1, upgrades)) == {"a": 1, "b": 2, "c": 3}
    assert decode(upgraded(Json('{"a": 1, "b": 5}'), 2, upgrades)) == {"a": 1, "b": 5, "c": 6}


@pytest.mark.parametrize("version", [1, 3])
def test_a_payload_without_an_upgrade_function_is_unchanged(version: int) -> None:
    payload = Json('{ "a": 1.0 }')
    assert upgraded(payload, version, {2: add_c}) is payload


@pytest.mark.parametrize(
    ("upgrades", "words"),
    [
        ({1: 5}, "give a function for each version"),
        (["a"], "give a function for each version"),
        ({3: add_b}, "start from 3, but the handler has version 3"),
        ({1: add_b}, "start from 1, but the handler has version 3"),
        ({0: add_b, 1: add_b, 2: add_b}, "version: 0 is not a number from 1"),
    ],
)
def test_upgrades_with_a_gap_or_beyond_the_handler_are_refused(upgrades: Any, words: str) -> None:  # noqa: ANN401
    with pytest.raises(InvalidInput, match=words):
        check_upgrades(upgrades, 3)


@pytest.mark.parametrize("version", [0, -1, True, "2", 1.0, 10**7])
def test_handlers_and_producers_refuse_an_invalid_version(version: Any) -> None:  # noqa: ANN401
    app = Holdfast("memory:")
    with pytest.raises(InvalidInput, match=r"^version: .* is not a number from 1 to 1,000,000$"):
        app.handler("greet", version=version)(lambda job: None)
    with pytest.raises(InvalidInput, match=r"^version: .* is not a number from 1 to 1,000,000$"):
        app.job("greet", version=version)


def test_a_job_carries_the_version_of_its_handler_or_an_explicit_one() -> None:
    app = Holdfast("memory:")
    app.handler("greet", version=2, payload=dict[str, int])(lambda job: None)
    assert app.job("greet", {"a": 1}).headers == '{"holdfast.version":2}'
    assert app.job("greet", {"a": 1}, headers={"trace": "x"}).headers == '{"trace":"x","holdfast.version":2}'
    # With a different version than the handler's, the payload does not have to fit the handler.
    assert app.job("greet", {"a": "text"}, version=1).headers is None
    assert app.job("other", version=3).headers == '{"holdfast.version":3}'
    with pytest.raises(InvalidInput, match="payload of 'greet'"):
        app.job("greet", {"a": "text"})


def test_the_wait_for_a_newer_worker_is_short_and_random() -> None:
    random = Random(5)
    seconds = [wait_for_newer_worker(random).total_seconds() for _ in range(200)]
    assert 1 <= min(seconds) < 2
    assert 9 < max(seconds) <= 10
