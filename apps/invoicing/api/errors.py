"""Everything that goes wrong is answered as `{"error": "CODE", "message": "…"}`."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import asyncpg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from apps.invoicing.api.models import Problem
from apps.invoicing.storage import StorageUnavailable
from holdfast import StoreUnavailable

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
    # A lock that is not free, a database that lets nobody in.
    asyncpg.ObjectNotInPrerequisiteStateError,
)
"""What passes: the same request may succeed a moment later."""

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
    return ApiError(404, _RESOURCES[parameter], f"nothing has the {parameter} {value}")


def wrong_state(status: str, wanted: str) -> ApiError:
    return ApiError(409, f"INVOICE_IS_{status}", f"the invoice is {status}, not {wanted}")


def documented(**problems: str) -> dict[int | str, dict[str, Any]]:
    """For OpenAPI: `_404="no such invoice"` and so on."""
    every = {"_503": "The database or the storage is away for now; Retry-After says when to ask again."} | problems
    return {
        int(status.removeprefix("_")): {"model": Problem, "description": description}
        for status, description in every.items()
    }


def answer(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    # A message may quote what no encoding knows, such as half of a surrogate pair.
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
        # What cannot be an id is the id of nothing.
        return answer(404, _RESOURCES[rest[0]], f"nothing has this {rest[0]}")
    where, text = ".".join(rest), str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "json_invalid":
        where, text = "body", _UNREADABLE
    elif problem["type"] == "model_attributes_type" or (problem["type"] == "missing" and not rest):
        is_json = "json" in request.headers.get("content-type", "")
        where, text = where or "body", f"send a JSON object{'' if is_json else ', with Content-Type: application/json'}"
    return answer(422, "INVALID_REQUEST", f"{where}: {text}" if where else text)


async def _refused(request: Request, error: HTTPException) -> Response:  # noqa: ARG001
    """What the framework refuses by itself: no such path, no such method, a body that cannot be read."""
    if error.status_code == HTTPStatus.BAD_REQUEST:
        return answer(422, "INVALID_REQUEST", f"body: {_UNREADABLE}")
    status = HTTPStatus(error.status_code)
    return answer(status, status.name, status.phrase, error.headers)


async def _unavailable(request: Request, error: Exception) -> Response:
    log.warning("%s %s: %s: %s", request.method, request.url.path, type(error).__name__, error)
    return answer(503, "UNAVAILABLE", "a part of the service is away for now; ask again", _SOON)


async def _broken(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """The server logs it, with its traceback; the client learns nothing of it."""
    return answer(500, "INTERNAL", "something is wrong here, and it is not your request")


def install(api: FastAPI) -> None:
    api.exception_handler(ApiError)(_told)
    api.exception_handler(RequestValidationError)(_invalid)
    api.exception_handler(HTTPException)(_refused)
    for kind in UNAVAILABLE:
        api.exception_handler(kind)(_unavailable)
    api.exception_handler(Exception)(_broken)
