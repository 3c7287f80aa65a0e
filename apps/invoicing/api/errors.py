"""Errors, all of which are returned as `{"error": "CODE", "message": "…"}`."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from apps.invoicing.api.models import Problem
from apps.invoicing.database import sql
from apps.invoicing.storage import StorageUnavailable
from holdfast import StoreUnavailable

if TYPE_CHECKING:
    from apps.invoicing.database import Connection, Pool

log = logging.getLogger("invoicing.api")

UNAVAILABLE = (
    StoreUnavailable,
    StorageUnavailable,
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # The driver's own state after a connection died in the middle of an exchange.
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    # A lock that is not free, or a database that accepts no connections.
    asyncpg.ObjectNotInPrerequisiteStateError,
)
"""Temporary errors: the same request may succeed a moment later."""

_UNREADABLE = "cannot be read as JSON"
_RESOURCES = {
    "invoiceId": "INVOICE_NOT_FOUND",
    "customerId": "CUSTOMER_NOT_FOUND",
    "enrolmentId": "ENROLMENT_NOT_FOUND",
    "deliveryId": "DELIVERY_NOT_FOUND",
    "fileId": "FILE_NOT_FOUND",
}


_SOON = {"Retry-After": "1"}


class ApiError(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def not_found(parameter: str, value: object) -> ApiError:
    return ApiError(404, _RESOURCES[parameter], f"there is no {parameter} {value}")


async def existing(connection: "Pool | Connection", name: str, parameter: str, value: UUID) -> asyncpg.Record:
    """Return the row that a statement finds by its id, or raise a 404 if there is none."""
    row = await connection.fetchrow(sql(name), value)
    if row is None:
        raise not_found(parameter, value)
    return row


def wrong_state(status: str, wanted: str) -> ApiError:
    return ApiError(409, f"INVOICE_IS_{status}", f"the invoice is {status}, not {wanted}")


def documented(**problems: str) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of errors, given as `_404="no such invoice"` and so on."""
    every = {"_503": "The database or the storage is unavailable; Retry-After says when to try again."} | problems
    return {
        int(status.removeprefix("_")): {"model": Problem, "description": description}
        for status, description in every.items()
    }


def answer(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    # A message may quote characters that cannot be encoded, such as half of a surrogate pair.
    text = message.encode("utf-8", "replace").decode()
    return JSONResponse({"error": code, "message": text}, status, headers)


async def _told(request: Request, error: ApiError) -> Response:  # noqa: ARG001
    return answer(
        error.status, error.code, str(error), _SOON if error.status == HTTPStatus.SERVICE_UNAVAILABLE else None
    )


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    problem = error.errors()[0]
    place, *rest = [str(part) for part in problem["loc"]]
    if place == "path":
        # A value that is not a UUID cannot be the id of anything.
        return answer(404, _RESOURCES[rest[0]], f"there is no such {rest[0]}")
    where, text = ".".join(rest), str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "json_invalid":
        where, text = "body", _UNREADABLE
    elif problem["type"] == "model_attributes_type" or (problem["type"] == "missing" and not rest):
        is_json = "json" in request.headers.get("content-type", "")
        where, text = where or "body", f"send a JSON object{'' if is_json else ', with Content-Type: application/json'}"
    return answer(422, "INVALID_REQUEST", f"{where}: {text}" if where else text)


async def _refused(request: Request, error: HTTPException) -> Response:  # noqa: ARG001
    """Respond to what the framework itself refuses: an unknown path, a wrong method, an unreadable body."""
    if error.status_code == HTTPStatus.BAD_REQUEST:
        return answer(422, "INVALID_REQUEST", f"body: {_UNREADABLE}")
    status = HTTPStatus(error.status_code)
    return answer(status, status.name, status.phrase, error.headers)


async def _unavailable(request: Request, error: Exception) -> Response:
    log.warning("%s %s: %s: %s", request.method, request.url.path, type(error).__name__, error)
    return answer(503, "UNAVAILABLE", "a part of the service is unavailable; try again", _SOON)


async def _broken(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """Respond to an unexpected error. The server logs its traceback; the client learns no details."""
    return answer(500, "INTERNAL", "something went wrong on the server; your request is not the cause")


def install(api: FastAPI) -> None:
    api.exception_handler(ApiError)(_told)
    api.exception_handler(RequestValidationError)(_invalid)
    api.exception_handler(HTTPException)(_refused)
    for kind in UNAVAILABLE:
        api.exception_handler(kind)(_unavailable)
    api.exception_handler(Exception)(_broken)
