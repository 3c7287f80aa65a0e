"""Errors, all of which are returned as problem+json (RFC 9457) with a code and one line of detail."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import asyncpg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from apps.passports.api.models import Problem
from apps.passports.codes import DB_UNAVAILABLE, PAYLOAD_TOO_LARGE, VALIDATION_ERROR, Conflict, DatabaseUnavailable
from apps.passports.codes import NotFound as NoSuchThing
from apps.passports.rules import RuleSyntaxError, RuleTypeError
from holdfast import StoreUnavailable
from holdfast.webhooks import WebhookAddressRefused

log = logging.getLogger("passports.api")

_MEDIA_TYPE = "application/problem+json"
_SOON = {"Retry-After": "1"}
_ANSWERS: tuple[tuple[type[Exception], int, str], ...] = (
    (NoSuchThing, 404, "NOT_FOUND"),
    (Conflict, 409, "CONFLICT"),
    (RuleSyntaxError, 422, "RULE_SYNTAX_ERROR"),
    (RuleTypeError, 422, "RULE_TYPE_ERROR"),
    (WebhookAddressRefused, 422, "WebhookAddressRefused"),
)
_OUTAGES = (
    DatabaseUnavailable,
    StoreUnavailable,
    # No outage, but trying again helps.
    asyncpg.TransactionRollbackError,
)
_DESCRIPTIONS = {
    401: "The token is missing or wrong.",
    404: "There is no such thing, or it belongs to another tenant.",
    409: "The request does not fit the state of things.",
    413: "The body is too large.",
    415: "The body is of another media type.",
    422: "A value is wrong.",
    503: "A part of the service is unavailable; Retry-After says when to try again.",
}


class ApiError(Exception):
    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.headers = headers


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of errors."""
    content = {_MEDIA_TYPE: {"schema": Problem.model_json_schema()}}
    return {status: {"description": _DESCRIPTIONS[status], "content": content} for status in statuses}


def unavailable(code: str, detail: str) -> ApiError:
    return ApiError(503, code, detail, _SOON)


def install(api: FastAPI) -> None:
    api.exception_handler(ApiError)(_told)
    api.exception_handler(RequestValidationError)(_invalid)
    api.exception_handler(HTTPException)(_refused)
    for kind, *_ in _ANSWERS:
        api.exception_handler(kind)(_answered)
    for kind in _OUTAGES:
        api.exception_handler(kind)(_unavailable)
    api.exception_handler(Exception)(_broken)


def _answer(status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    # A detail may quote characters that cannot be encoded, such as half of a surrogate pair.
    text = " ".join(detail.split()).encode("utf-8", "replace").decode()
    problem = Problem(title=HTTPStatus(status).phrase, status=status, code=code, detail=text)
    return JSONResponse(problem.model_dump(), status, headers, _MEDIA_TYPE)


async def _told(request: Request, error: ApiError) -> Response:  # noqa: ARG001
    return _answer(error.status, error.code, str(error), error.headers)


async def _answered(request: Request, error: Exception) -> Response:  # noqa: ARG001
    status, code = next((status, code) for kind, status, code in _ANSWERS if isinstance(error, kind))
    return _answer(status, code, str(error))


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    problem = error.errors()[0]
    place, *rest = [str(part) for part in problem["loc"]]
    where, text = ".".join(rest), str(problem["msg"]).removeprefix("Value error, ")
    if place == "path":
        # A value of the wrong form cannot name anything.
        return _answer(404, "NOT_FOUND", f"there is no such {where.removesuffix('_id').replace('_', ' ')}")
    if problem["type"] == "json_invalid":
        return _answer(422, VALIDATION_ERROR, "body: cannot be read as JSON")
    if problem["type"] == "model_attributes_type" or (problem["type"] == "missing" and not rest):
        if "json" not in request.headers.get("content-type", ""):
            return _answer(415, "UNSUPPORTED_MEDIA_TYPE", "send a JSON object, with Content-Type: application/json")
        where, text = where or "body", "send a JSON object"
    return _answer(422, VALIDATION_ERROR, f"{where}: {text}" if where else text)


async def _refused(request: Request, error: HTTPException) -> Response:  # noqa: ARG001
    """Respond to what the framework itself refuses: an unknown path, a wrong method, an unreadable body."""
    if error.status_code == HTTPStatus.BAD_REQUEST:
        return _answer(422, VALIDATION_ERROR, "body: cannot be read")
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return _answer(413, PAYLOAD_TOO_LARGE, error.detail)
    status = HTTPStatus(error.status_code)
    return _answer(status, status.name, status.phrase, error.headers)


async def _unavailable(request: Request, error: Exception) -> Response:
    log.warning("%s %s: %s: %s", request.method, request.url.path, type(error).__name__, error)
    return _answer(503, DB_UNAVAILABLE, "the database is unavailable; try again", _SOON)


async def _broken(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """Respond to an unexpected error. The server logs its traceback; the client learns no details."""
    return _answer(500, "INTERNAL", "something went wrong on the server; your request is not the cause")
