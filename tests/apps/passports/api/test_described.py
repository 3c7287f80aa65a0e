"""The API answers as its OpenAPI description says, for valid and invalid requests generated from the description."""

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.result import Ok

from tests.apps.passports.api.conftest import Api, World, served

pytestmark = [pytest.mark.postgres, pytest.mark.long, pytest.mark.timeout(600)]

EXAMPLES = 20
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.mark.parametrize("mode", GenerationMode)
async def test_every_request_is_answered_as_described(api: Api, world: World, mode: GenerationMode) -> None:
    headers = {"Authorization": api.ann.http.headers["Authorization"]}
    async with served(api.api) as url:
        await asyncio.to_thread(send_all, url, mode, world.ids, headers)


def send_all(url: str, mode: GenerationMode, known: dict[str, str], headers: dict[str, str]) -> None:
    """Send requests from a separate thread. Half of them refer to something that exists."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) > 40
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not (operation.path_parameters or operation.query or operation.body):
            continue
        for path in (None, known):
            send(operation, mode, path, headers)


def send(operation: Any, mode: GenerationMode, path: dict[str, str] | None, headers: dict[str, str]) -> None:  # noqa: ANN401
    @examples(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def test(case: Case[Any]) -> None:
        if path is not None:
            case.path_parameters |= {name: path[name] for name in case.path_parameters if name in path}
        case.call_and_validate(headers=headers, checks=CHECKS)

    test()
